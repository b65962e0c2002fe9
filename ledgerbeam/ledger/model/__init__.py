"""What a ledger knows, without storage: identities, tasks, counting, rows, the protocol of stores."""
