"""The ledger in a local LMDB environment."""
