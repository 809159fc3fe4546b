"""Hypothesis profiles: ``ci`` is the default, HYPOTHESIS_PROFILE chooses another. And the order of the test files."""

import os
from pathlib import Path
from typing import Final

import pytest
from hypothesis import settings

# The settings that Hypothesis itself takes on a CI machine, here everywhere: the same examples
# in every run, no example database, and a failure prints the line that reproduces it.
settings.register_profile("ci", derandomize=True, database=None, deadline=None, print_blob=True)
settings.register_profile("nightly", derandomize=False, deadline=None, max_examples=5_000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

LONGEST: Final = (
    "commands/test_conform.py", "test_docs.py", "reference/oracle/test_vectors.py", "reference/test_manager.py",
    "commands/test_exits.py", "commands/storm/test_live.py",
    "reference/published/sglang/test_overlays.py", "reference/published/sglang/test_scripts.py",
    "test_packaging.py", "proofs/test_certificates.py", "commands/test_explore.py",
    "reference/published/sglang/test_explore.py", "reference/published/sglang/test_verdicts.py",
    "reference/arrays/test_conformance.py", "commands/test_ci.py", "reference/test_user_rows.py",
    "reference/published/vllm/test_scripts.py", "proofs/test_shipped.py", "proofs/test_parametric.py",
    "commands/test_report.py", "proofs/test_gate.py", "proofs/test_induction.py", "proofs/test_reach.py",
    "commands/storm/test_published.py", "proofs/test_inclusion.py",
)  # fmt: skip
"""Files whose tests take ten seconds or more, longest first."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first: where each of two processes takes one file after the other, neither waits for long."""
    here = Path(__file__).parent
    rank = {here / name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.path, len(rank)))
