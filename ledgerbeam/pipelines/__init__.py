"""Jobs of commands and Python calls: parse options, connect transforms, watch the run, and report the result."""
