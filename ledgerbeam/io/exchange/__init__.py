"""Run files of exchanges: keys in their order, records as bytes, the file, and the merging of many of them."""
