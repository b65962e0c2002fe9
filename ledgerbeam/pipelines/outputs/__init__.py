"""Outputs of jobs: owner, layout, removal, publication."""
