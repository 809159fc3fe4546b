"""The conformance oracle drives a manager, in this process or in another, and holds it against the laws of the spec."""
