"""The linear chain: from patterns to the ledger."""
