"""The jobs of exchanges."""
