"""In pytest: one examination for all checks, also among workers; selected laws alone; what broke a law comes first."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ADAPTERS = """
import os
import pathlib

from kvlatch import Check, Probe, conforms
from tests.reference.oracle.managers import {base}


class Mine({base}):
    made = 0

    def __init__(self, probe: Probe) -> None:
        super().__init__(probe)
        with pathlib.Path("{log}").open("a") as log:
            log.write(f"{{os.getpid()}}\\n")


@conforms(Mine, seconds=3.0)
def test_mine(check: Check) -> None:
    check()
"""
ROOT = Path(__file__).parents[3]


def project(folder: Path, base: str) -> Path:
    """A project with one test of one manager, in a folder of its tests; how often it was made is in ``made.log``."""
    tests = folder / "checks"
    tests.mkdir(exist_ok=True)
    (tests / "test_mine.py").write_text(ADAPTERS.format(base=base, log=folder / "made.log"), encoding="utf-8")
    return folder


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Pytest in a folder, with the plugin."""
    command = [sys.executable, "-m", "pytest", "-p", "kvlatch.reference.oracle.plugin", "-q", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for name in [name for name in environment if name.startswith("PYTEST_")]:
        del environment[name]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False
    )


def test_selected_laws_alone_and_a_summary(tmp_path: Path) -> None:
    """With -k, one law is asked about, and the report ends with what was judged."""
    done = run(project(tmp_path, "ReleasesTwice"), "-k", "released-once or pages-held")
    assert done.returncode == 1
    assert "laws: 1 kept, 1 broken; looked at plays: " in done.stdout
    assert "1 failed, 1 passed" in done.stdout


def test_the_command_works_where_pytest_ran(tmp_path: Path) -> None:
    """The line that repeats a failure, pasted into a shell in the folder in which pytest ran, breaks the law again."""
    folder = project(tmp_path, "ReleasesTwice")
    done = run(folder, "-k", "released-once")
    again = next(line for line in done.stdout.splitlines() if line.startswith(("again: ", "E           again: ")))
    command = re.sub(r"^.*again: ", "", again).replace(
        "kvlatch conform", f"{shlex.quote(sys.executable)} -m kvlatch conform"
    )
    assert command.startswith("PYTHONPATH=checks ")
    command = command.replace("PYTHONPATH=checks", f"PYTHONPATH=checks:{shlex.quote(str(ROOT))}")
    repeated = subprocess.run(command, shell=True, cwd=folder, capture_output=True, text=True, timeout=600, check=False)  # noqa: S602
    assert repeated.returncode == 1, repeated.stderr
    assert "broken      released-once" in repeated.stdout


def test_what_broke_a_law_is_played_first_the_next_time(tmp_path: Path) -> None:
    """The second run finds it in the first few managers that it makes."""
    folder = project(tmp_path, "Max")
    log = folder / "made.log"
    assert run(folder, "-k", "no-resurrection").returncode == 1
    first = len(log.read_text(encoding="utf-8").split())
    log.unlink()
    assert run(folder, "-k", "no-resurrection").returncode == 1
    assert len(log.read_text(encoding="utf-8").split()) < first / 2


def test_workers_share_one_examination(tmp_path: Path) -> None:
    """Of two workers of pytest-xdist one makes managers, and the other waits for what it finds out."""
    folder = project(tmp_path, "ReleasesTwice")
    done = run(folder, "-k", "released-once or pages-held or no-ghost", "-n", "2")
    assert "1 failed, 2 passed" in done.stdout
    assert done.stdout.count("looked at plays: ") == 1
    assert len(set((folder / "made.log").read_text(encoding="utf-8").split())) == 1
