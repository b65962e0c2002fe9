"""A ledger on an object store: segments, controls, snapshots, and the sidecar that holds them."""
