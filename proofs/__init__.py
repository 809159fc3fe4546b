"""What is proved about the spec, by which engine. Imports ``kvlatch.spec`` and ``reference``."""

if __name__ != "kvlatch.proofs":  # as at the root of a checkout, where two copies of every class would be made
    raise ImportError("import kvlatch.proofs, not proofs: its KVPoll would not be that of kvlatch")
