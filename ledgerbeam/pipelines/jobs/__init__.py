"""What a job is: its sources, its outputs, who owns them, what is removed."""
