"""The `.idx` file with the offset of each record of a source, and readers that use it."""
