"""State of workers and launchers on one host: run folders, marks, the task board, claims, and group commit."""
