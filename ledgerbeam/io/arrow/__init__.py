"""Arrow IPC files: record batches of columns, found by the footer."""
