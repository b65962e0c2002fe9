"""Plain text: a line is a record."""
