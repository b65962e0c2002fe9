"""Tar archives: headers, samples, how they are read and written."""
