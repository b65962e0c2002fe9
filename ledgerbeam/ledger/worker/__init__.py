"""What a worker process does with a ledger: group commit, marks of the tasks in work, folders of runs."""
