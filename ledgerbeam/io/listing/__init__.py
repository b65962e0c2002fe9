"""Listing of files: patterns, pages of listings, and the files that jobs write themselves."""
