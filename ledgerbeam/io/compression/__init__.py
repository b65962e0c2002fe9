"""Compressed sources: read as streams, or by position if there are seek points."""
