"""Parquet: rows of columns, found by the footer."""
