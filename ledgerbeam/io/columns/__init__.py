"""Columns: what Parquet and Arrow share, and rows as Arrow batches."""
