"""Runners of jobs: locally in waves, or as one Beam pipeline; supervision of processes."""
