"""Modules that all packages use: processes, imports, names, secrets."""
