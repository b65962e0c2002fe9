"""User functions over the records of a task."""
