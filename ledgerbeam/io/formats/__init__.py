"""What each format can do, behind one registry."""
