"""What formats of columns share: their rows as records, and random access to rows in groups."""
