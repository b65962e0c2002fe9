"""``ledgerbeam ledger``: actions on a ledger, one module for each."""
