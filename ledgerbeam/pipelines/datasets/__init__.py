"""Jobs of dataset formats."""
