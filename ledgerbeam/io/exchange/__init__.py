"""Run files of exchanges: the encoding of keys and records, the file format, merges, slices and clusters of hashes."""
