"""JSONL: where lines start, what they hold, how they are written."""
