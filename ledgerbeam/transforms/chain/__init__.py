"""The linear chain of steps: from URLs with wildcards to the ledger."""
