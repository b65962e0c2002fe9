"""Access to bytes by URL: ranged reads and atomic writes, for local files and object stores."""
