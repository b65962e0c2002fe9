"""Records as columns: what Parquet and Arrow IPC share."""
