"""Hypothesis profiles: ``ci`` is the default, HYPOTHESIS_PROFILE chooses another."""

import os

from hypothesis import settings

# The settings that Hypothesis itself takes on a CI machine, here everywhere: the same examples
# in every run, no example database, and a failure prints the line that reproduces it.
settings.register_profile("ci", derandomize=True, database=None, deadline=None, print_blob=True)
settings.register_profile("nightly", derandomize=False, deadline=None, max_examples=5_000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))
