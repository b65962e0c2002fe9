"""The jobs of deduplication."""
