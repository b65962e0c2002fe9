"""What formats of columns share: rows as records and records as rows, schemas, and random access to rows in groups."""
