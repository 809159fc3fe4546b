"""``kvlatch record`` on processes that run published SGLang, and on ones that do not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kvlatch.reference.laws import Kept
from kvlatch.reference.logs.check import check
from kvlatch.reference.logs.report import Report
from kvlatch.reference.published.sglang import wheels
from kvlatch.reference.published.wheels import CannotFetch

NEWEST = wheels.versions()[-1]
LIMIT = 300
"""Seconds that only a hang reaches."""
MOMENT = 1e-6
DIES = "First message should be b'NixlMsgGuard'"
"""What the bootstrap thread of NIXL dies of at decode's first abort, from 0.5.13 to 0.5.15.post1."""


def record(
    folder: Path, *command: str, options: Sequence[str] = (), **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a command under the recorder, with its logs in a folder."""
    whole = [sys.executable, "-m", "kvlatch", "record", "--into", str(folder), *options, "--", *command]
    around = {**os.environ, **environment}
    return subprocess.run(whole, check=False, capture_output=True, text=True, timeout=LIMIT, env=around)


def played(folder: Path, version: str, backend: str, play: str) -> subprocess.CompletedProcess[str]:
    """Play with the managers of a published version."""
    try:
        wheel = wheels.fetch(version)
    except CannotFetch as error:
        pytest.skip(f"no wheel: {error}")
    return record(folder, sys.executable, "-m", "tests.reference.logs.recorded", str(wheel), backend, play)


def checked(folder: Path, **options: Any) -> Report:
    """What the logs of a folder show, of all processes together."""
    return check(*sorted(folder.glob("*.ndjson")), **options)


def laws(report: Report) -> set[str]:
    """The broken laws."""
    assert not report.error
    return {finding.law for finding in report.findings}


@pytest.mark.network
def test_two_healthy_requests_on_one_id_accuse_nobody(tmp_path: Path) -> None:
    """And nearly all that can be judged of one manager is."""
    ended = played(tmp_path, NEWEST, "nixl", "twice")
    assert ended.returncode == 0, ended.stderr
    report = checked(tmp_path)
    assert laws(report) == set()
    kept = {judgement.law for judgement in report.judgements if isinstance(judgement.answer, Kept)}
    assert kept >= {"terminal-sticky", "success-complete", "room-reusable", "one-outcome", "told-once", "no-ghost"}
    headers = [json.loads(path.read_text().splitlines()[0]) for path in sorted(tmp_path.glob("*.ndjson"))]
    assert ["enqueue" in header["ops"] for header in headers] == [False, True]


@pytest.mark.network
def test_a_lost_failure_is_found(tmp_path: Path) -> None:
    """The race of the incident, on the newest version's own code."""
    assert played(tmp_path, NEWEST, "nixl", "lost").returncode == 0
    assert laws(checked(tmp_path)) == {"terminal-sticky", "no-resurrection"}


@pytest.mark.network
def test_a_killed_process_leaves_what_it_has_written(tmp_path: Path) -> None:
    """SIGKILL in the middle of a second request; the command's own exit code is handed on."""
    assert played(tmp_path, NEWEST, "nixl", "killed").returncode == 137
    report = checked(tmp_path)
    assert laws(report) == set()
    assert report.running == 1


@pytest.mark.thorough
@pytest.mark.network
def test_an_entry_that_is_left_behind_is_found(tmp_path: Path) -> None:
    """An aborted request that nobody clears, while the engine goes on."""
    assert played(tmp_path, NEWEST, "nixl", "left").returncode == 0
    found = [(finding.law, finding.scenario) for finding in checked(tmp_path, quiet=MOMENT).findings]
    assert found == [("settlement", "leak")]


@pytest.mark.thorough
@pytest.mark.network
def test_each_process_writes_a_log_of_its_own(tmp_path: Path) -> None:
    """A forked one, and one that is started afresh, beside their parent; one that does nothing writes none."""
    assert played(tmp_path, NEWEST, "nixl", "children").returncode == 0
    sizes = sorted(len(path.read_text().splitlines()) for path in tmp_path.glob("prefill-*"))
    one = sizes[0] - 1
    assert sizes == [1 + one, 1 + one, 1 + 2 * one]


@pytest.mark.thorough
@pytest.mark.network
@pytest.mark.parametrize("play", ["twice", "aborted"])
@pytest.mark.parametrize("backend", wheels.BACKENDS[1:])
@pytest.mark.parametrize("version", wheels.versions())
def test_no_version_is_accused_of_what_it_does_well(tmp_path: Path, version: str, backend: str, play: str) -> None:
    """Two healthy requests, and an aborted one, or as much of them as can be done here, on every version and backend.

    0.4.6 never clears a room, so there the second request finds the Success of the first, as the published code is
    judged elsewhere.
    """
    try:
        known = wheels.backends(version)
    except CannotFetch as error:
        pytest.skip(f"no wheel: {error}")
    if backend not in known:
        pytest.skip(f"{version} has no manager of {backend} that keeps a table")
    ended = played(tmp_path, version, backend, play)
    assert "is recorded into" in ended.stderr, ended.stderr
    expected = {"terminal-sticky", "room-reusable"} if (version, play) == ("0.4.6", "twice") else set()
    assert laws(checked(tmp_path)) == expected
    assert ended.returncode == 0 or "Missing: " in ended.stderr or DIES in ended.stderr, ended.stderr


def fake(folder: Path, manager: str, numbers: str = "0, 1, 2, 3, 4") -> str:
    """A package `sglang` whose only manager is this; returns the code that makes one."""
    package = folder / "sglang" / "srt" / "disaggregation"
    for name in ("base", "nixl"):
        (package / name).mkdir(parents=True)
        (package / name / "__init__.py").touch()
    for part in (package, package.parent, package.parent.parent):
        (part / "__init__.py").touch()
    names = "Failed, Bootstrapping, WaitingForInput, Transferring, Success"
    (package / "base" / "conn.py").write_text(f"class KVPoll:\n    {names} = {numbers}\n")
    imports = "import sglang.srt.disaggregation.base.conn\n"
    (package / "nixl" / "conn.py").write_text(imports + manager)
    return "import sglang.srt.disaggregation.nixl.conn as conn; m = conn.NixlKVManager(None, 'prefill'); print(7 * 6)"


MANAGER = """
class NixlKVManager:
    def __init__(self, args, mode):
        self.request_status = {table}
    def {update}(self, room, status):
        pass
"""


@pytest.mark.parametrize(
    ("manager", "numbers", "says"),
    [
        (MANAGER.format(table="{}", update="set_status"), "0, 1, 2, 3, 4", "it has no update_status"),
        (MANAGER.format(table="[]", update="update_status"), "0, 1, 2, 3, 4", "is of list, and not a dictionary"),
        (MANAGER.format(table="{}", update="update_status"), "4, 3, 2, 1, 0", "its statuses are {'Failed': 4"),
        (MANAGER.format(table="None", update="update_status"), "0, 1, 2, 3, 4", "is of NoneType"),
        ("class NixlKVManager:\n    update_status = print\n    def __init__(self, args, mode): pass\n",
         "0, 1, 2, 3, 4", "its constructor made no request_status"),
    ],
)  # fmt: skip
def test_a_version_that_is_not_known_is_not_recorded_by_half(
    tmp_path: Path, manager: str, numbers: str, says: str
) -> None:
    """One line says why, no log is left, and the server does what it did."""
    code = fake(tmp_path / "code", manager, numbers)
    ended = record(tmp_path / "logs", sys.executable, "-c", code, PYTHONPATH=str(tmp_path / "code"))
    said = [line for line in ended.stderr.splitlines() if says in line]
    assert len(said) == 1, ended.stderr
    assert ended.stdout == "42\n"
    assert not [*(tmp_path / "logs").iterdir()]
    assert ended.returncode == 3
    assert "nothing was recorded" in ended.stderr


def test_a_manager_of_no_version_that_has_all_it_takes_is_recorded(tmp_path: Path) -> None:
    """With a remark, under the node that was named; and the user's own ``sitecustomize`` is run as ever."""
    code = fake(tmp_path / "code", MANAGER.format(table="{}", update="update_status"))
    (tmp_path / "code" / "sitecustomize.py").write_text(
        "import os; os.environ.get('KVLATCH_RECORD') and print('mine')\n"
    )
    command = (sys.executable, "-c", f"{code}; m.request_status[5] = 1")
    ended = record(tmp_path / "logs", *command, options=["--node", "p0"], PYTHONPATH=str(tmp_path / "code"))
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "mine\n42\n"
    (log,) = (tmp_path / "logs").iterdir()
    header, event = map(json.loads, log.read_text().splitlines())
    assert header["about"] == "NixlKVManager of sglang of an unknown version"
    assert (event["node"], event["rank"], event["room"], event["status"]) == ("p0", "0", 5, "Bootstrapping")


@pytest.mark.parametrize(("command", "code"), [(["no-such-command"], 2), ([sys.executable, "-c", "exit(5)"], 5)])
def test_the_exit_code_is_the_commands(tmp_path: Path, command: list[str], code: int) -> None:
    """And 2 with one line if there is no such command."""
    ended = record(tmp_path, *command)
    assert ended.returncode == code
    assert len(ended.stderr.splitlines()) == 1
