"""Line formats: JSON lines and plain text."""
