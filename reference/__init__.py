"""What runs: real managers, driven step by step. Imports ``kvlatch.spec``."""

if __name__ != "kvlatch.reference":  # as at the root of a checkout, where two copies of every class would be made
    raise ImportError("import kvlatch.reference, not reference: its KVPoll would not be that of kvlatch")
