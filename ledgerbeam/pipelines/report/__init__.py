"""What a run shows: progress, failures, the HTML report."""
