"""Formats of files, their registry, and their base classes."""
