"""lhotse's Shar: cuts and their payloads, read and written."""
