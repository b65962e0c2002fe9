"""Compressed sources: as streams, and by position where seek points allow it."""
