"""User code: its identity, and its objects in worker processes."""
