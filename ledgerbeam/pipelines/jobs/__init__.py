"""Jobs: their sources, their outputs, the owner of these, and what is removed."""
