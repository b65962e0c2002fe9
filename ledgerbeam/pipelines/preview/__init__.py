"""Dry runs, cost estimates and samples of jobs."""
