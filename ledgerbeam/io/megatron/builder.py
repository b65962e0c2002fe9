"""Collecting the sequences and documents of a dataset while their tokens are written."""
