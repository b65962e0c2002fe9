"""The jobs of the command line: they parse flags, wire transforms, watch the run and report."""
