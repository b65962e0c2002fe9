"""Reports on jobs: progress, failures, tables and the HTML report."""
