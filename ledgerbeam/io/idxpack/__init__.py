"""lhotse's `.idxpack`: the indexes of many files in one."""
