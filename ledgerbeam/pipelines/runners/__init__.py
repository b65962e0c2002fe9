"""How a job runs: locally in waves, or as one Beam pipeline; processes and their deaths."""
