"""Tar archives: headers, samples, readers and writers."""
