"""The ledger on an object store."""
