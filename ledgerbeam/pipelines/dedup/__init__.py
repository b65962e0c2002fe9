"""Jobs of deduplication."""
