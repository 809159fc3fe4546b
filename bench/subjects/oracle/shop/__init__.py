"""A manager in a package, with an enumeration of its own and a lock in each object; the adapter lives elsewhere."""
