"""Arrow IPC files: random access to rows by the footer, and writing."""
