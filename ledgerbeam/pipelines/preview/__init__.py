"""Predictions and samples of jobs."""
