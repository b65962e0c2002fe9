"""``ledgerbeam ledger``: what can be done with a ledger, each action in a module of its own."""
