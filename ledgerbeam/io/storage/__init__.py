"""Bytes by URL: local files and object stores, read by ranges, published atomically."""
