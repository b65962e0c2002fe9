"""Parts that every package uses: processes, imports, names, secrets."""
