"""Index, process and restart: Beam jobs over millions of manifests and shards."""

__version__ = "0.1.0"
__all__ = ["__version__"]
