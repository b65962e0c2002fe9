"""``ledgerbeam launch``: scripts and manifests that start a job on many hosts, one module per launcher."""
