"""Parquet: random access to rows by the footer, and writing."""
