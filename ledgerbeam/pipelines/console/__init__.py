"""Console output of runs."""
