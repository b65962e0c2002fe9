"""WARC: the archives of web crawls."""
