"""Iterators over iterators: shuffle, mix, group, transform."""
