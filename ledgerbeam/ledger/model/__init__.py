"""The model of a ledger, without storage: identities, tasks, counting, rows, and the protocol of stores."""
