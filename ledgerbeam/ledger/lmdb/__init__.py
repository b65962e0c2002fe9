"""A ledger on a local disk: LMDB."""
