"""``ledgerbeam launch``: prints what starts a job on many hosts; a module for each way."""
