"""Flows of jobs that read each other's outputs: `flow` and `step` read the file, `plan` and `run` use it."""
