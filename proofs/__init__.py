"""What is proved about the spec, by which engine, and the command line. Imports ``kvlatch.spec`` and ``reference``."""
