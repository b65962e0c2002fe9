"""Kinds of jobs: their parameters, their sources, and the opening of their ledgers."""
