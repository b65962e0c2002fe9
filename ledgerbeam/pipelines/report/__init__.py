"""Reports on jobs: progress, failures, tables, metrics and the HTML report."""
