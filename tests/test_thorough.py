"""``make thorough`` goes on where it was broken off: what has passed on this very tree is not run again."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / ".ci" / "thorough"
TOOL = """#!/bin/sh
echo "$(basename "$0") $*" >> "$CALLS"
case "$*" in *"$FAILS"*) exit 1;; esac
"""
"""In the place of both commands: it writes down how it was called, and fails where it is told to."""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A project of one file, with the script; beside it an environment whose commands only write down their calls."""
    if not SCRIPT.exists():
        pytest.skip("this is no checkout: .ci is not there")
    (tmp_path / "tree" / ".ci").mkdir(parents=True)
    (tmp_path / "tree" / "one.py").write_text("1\n", encoding="utf-8")
    shutil.copy2(SCRIPT, tmp_path / "tree" / ".ci")
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    for name in ("kvlatch", "python"):
        (tmp_path / "venv" / "bin" / name).write_text(TOOL, encoding="utf-8")
        (tmp_path / "venv" / "bin" / name).chmod(0o755)
    return tmp_path / "tree"


def called(tree: Path, fails: str = "nothing does") -> tuple[int, list[str]]:
    """Run the script: its exit code, and the commands that it has called."""
    calls = tree.parent / "calls"
    calls.write_text("", encoding="utf-8")
    environment = {**os.environ, "VENV": str(tree.parent / "venv"), "CALLS": str(calls), "FAILS": fails}
    done = subprocess.run([tree / ".ci" / "thorough"], env=environment, capture_output=True, timeout=300, check=False)
    return done.returncode, calls.read_text(encoding="utf-8").splitlines()


def test_it_goes_on_where_it_was(tree: Path) -> None:
    """After a failure with the part that failed; after all has passed with nothing."""
    first = ["kvlatch prove --thorough", "kvlatch recheck"]
    code, calls = called(tree, fails="test_fuzz")
    assert (code, calls[:-1]) == (1, first)
    code, more = called(tree)
    assert (code, more[0]) == (0, calls[-1])
    assert not set(first) & set(more)
    assert more[-1].endswith("-m thorough")
    assert called(tree) == (0, [])


def test_another_tree_begins_again(tree: Path) -> None:
    """One byte more in a file, or a file more: nothing that passed before counts."""
    _, everything = called(tree)
    (tree / "one.py").write_text("1\n\n", encoding="utf-8")
    assert called(tree) == (0, everything)
    (tree / "two.py").touch()
    assert called(tree) == (0, everything)
    (tree / "two.py").unlink()
    assert called(tree) == (0, [])
