"""Iterators that read indexed data."""
