"""The transforms of exchanges: scatter, merge, gather, join."""
