"""Which files there are: patterns, pages of listings, files that the library wrote itself."""
