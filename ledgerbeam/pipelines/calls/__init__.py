"""What the commands do, as functions of Python: the command line is their other face."""
