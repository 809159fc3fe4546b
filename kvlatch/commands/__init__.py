"""The command line: one module a command, or one folder where the command writes a page."""
