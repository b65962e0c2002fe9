"""The `.idx` file: where each record of a source starts, and readers that use it."""
