"""Jobs of exchanges."""
