"""Somebody else's Python, in a process of its own: it may hang, exit, crash and print without harm to ours."""
