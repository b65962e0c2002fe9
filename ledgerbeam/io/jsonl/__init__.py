"""JSONL: what lines hold, how they are read and written."""
