"""What runs: real managers, driven step by step. Imports ``kvlatch.spec``."""
