"""The transforms of deduplication."""
