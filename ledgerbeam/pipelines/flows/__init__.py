"""Flows: jobs that follow from each other. `flow` and `step` are what a file says, `plan` and `run` what is done."""
