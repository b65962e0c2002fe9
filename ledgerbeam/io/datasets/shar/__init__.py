"""lhotse's Shar: cuts and their payloads."""
