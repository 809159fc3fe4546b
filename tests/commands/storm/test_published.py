"""Storms on published code: upstream's own schedulers, queues, managers and transfers, live."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any, Final

import pytest

from kvlatch.commands.storm.report import COUNTS, OF_UPSTREAM
from kvlatch.reference.logs.check import check
from kvlatch.reference.published.sglang import wheels
from kvlatch.reference.published.wheels import CannotFetch

for package in ("zmq", "msgspec", "psutil", "uvicorn", "sglang_router", "nixl_cu12"):
    pytest.importorskip(package, reason="needs the extra live and nixl-cu12")

pytestmark = pytest.mark.network
LIMIT: Final = 300.0
SMALL: Final = ("--requests", "60", "--seconds", "3", "--hits", "0", "--limit", "5")


def storm(out: Path, *arguments: str) -> tuple[int, dict[str, Any], str]:
    """A storm's exit code, its report, and what it said meanwhile."""
    command = [sys.executable, "-c", "from kvlatch.commands.main import main; main()", "storm", "--out", str(out)]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=LIMIT, check=False)
    report = out / "report.json"
    return done.returncode, json.loads(report.read_text("utf-8")) if report.exists() else {}, done.stdout + done.stderr


def on_a_terminal(out: Path, *arguments: str, columns: int = 80) -> tuple[int, dict[str, Any], str]:
    """The same on a pseudo-terminal of that width."""
    command = [sys.executable, "-c", "from kvlatch.commands.main import main; main()", "storm", "--out", str(out)]
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    said = b""
    with subprocess.Popen([*command, *arguments], stdin=theirs, stdout=theirs, stderr=theirs) as running:
        os.close(theirs)
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # how Linux says that the other end has been closed
                break
            if not part:
                break
            said += part
        code = running.wait(LIMIT)
    os.close(ours)
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", said.decode())
    return code, json.loads((out / "report.json").read_text("utf-8")), text.replace("\r\n", "\n")


def build(version: str, *overlays: str) -> str:
    """The name of a build whose wheel can be had; else the test is skipped."""
    try:
        wheels.fetch(version)
    except CannotFetch as error:
        pytest.skip(f"no wheel: {error}")
    return "+".join([f"sglang=={version}", *overlays])


def judgements(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What is said of each law."""
    (judged,) = report["judgements"]
    return {one["law"]: one for one in judged["judgements"]}


def test_the_first_abort_kills_the_bootstrap_thread_of_0_5_15_post1(tmp_path: Path) -> None:
    """It is named with its error and its line, and those that hang are counted; no process is left.

    All of it on a terminal of 80 columns, which has the figures of the file.
    """
    code, report, said = on_a_terminal(tmp_path / "out", "--build", build("0.5.15.post1"), "--seed", "1", *SMALL)
    assert code == 1, said
    (run,) = report["runs"]
    assert [death["thread"] for death in run["deaths"]] == ["bootstrap"]
    assert run["deaths"][0]["error"].startswith("AssertionError: First message should be b'NixlMsgGuard'")
    assert run["deaths"][0]["where"].startswith("disaggregation/nixl/conn.py:")
    assert run["counts"]["unaccounted"] > 0
    assert run["counts"]["wrong_digests"] == 0
    assert run["left_behind"] == []
    assert report["conclusion"] == "leaves"
    assert {law for law, one in judgements(report).items() if one["verdict"] == "broken"} >= {"settlement", "no-crash"}
    assert "prefill's bootstrap thread died of AssertionError" in said
    lines = said.splitlines()
    for count in (*COUNTS, *OF_UPSTREAM):
        assert f"{count.heading} {run['counts'][count.name]:,}" in [" ".join(line.split()) for line in lines], said
    assert f"  {run['traces']['check']}" in lines


@pytest.mark.thorough
@pytest.mark.parametrize("version", ["0.5.16", "0.5.19", "0.5.20", "0.5.21", "0.5.23"])
def test_later_versions_serve_and_drain(version: str, tmp_path: Path) -> None:
    """Clients that wait are answered with the bytes of their prompt, nobody's thread dies, and the queue is empty."""
    _, report, said = storm(tmp_path / "out", "--build", build(version), "--seed", "1", *SMALL)
    (run,) = report["runs"]
    counts = run["counts"]
    assert counts["completed"] > 0, said
    assert counts["wrong_digests"] == counts["pinned"] == counts["unaccounted"] == 0
    assert (run["deaths"], run["left_behind"]) == ([], [])
    assert run["metric"]["compared"] > 0
    assert run["metric"]["differed"] == 0


@pytest.mark.thorough
def test_the_local_latch_survives_what_0_5_23_does_not(tmp_path: Path) -> None:
    """Lost failures and ghosts of the published build, none of the overlay's."""
    pair = ("--build", build("0.5.23"), "--build", build("0.5.23", "latch-local"))
    code, report, said = storm(tmp_path / "out", *pair, "--seed", "1")
    control, treatment = (
        [run["counts"] for run in report["runs"] if run["role"] == role] for role in ("control", "treatment")
    )
    assert sum(counts["lost_failures"] + counts["ghosts"] for counts in control) > 0
    for name in ("lost_failures", "ghosts", "released_early", "wrong_digests", "pinned", "unaccounted"):
        assert sum(counts[name] for counts in treatment) == 0, said
    assert report["conclusion"] in ("treatment fixes it", "treatment helps")
    lost = 0
    for run in report["runs"]:
        folder = tmp_path / "out" / f"{run['role']}-{run['repetition']}"
        log = check(*folder.glob("*.ndjson"))
        assert log.error is None
        assert {finding.node for finding in log.findings} <= {"prefill", "decode", None}
        if run["role"] == "treatment":
            assert log.findings == ()
            assert {one.law for one in log.judgements if one.verdict == "kept"} >= {"one-outcome", "pages-held"}
        lost += sum((one.law, one.node) == ("terminal-sticky", "prefill") for one in log.findings)
    assert lost == sum(counts["lost_failures"] for counts in control)
    assert code in (0, 1, 3)


@pytest.mark.thorough  # the sample that is left is the next one, whose code asks while it starts
def test_code_that_asks_for_more_is_refused_with_the_name_of_what_it_asks_for(tmp_path: Path) -> None:
    """Exit 3 and one line: what it did after that is not its own doing."""
    overlay = tmp_path / "asks.py"
    overlay.write_text(
        "class Scheduler:\n"
        "    def event_loop_normal_disagg_prefill(self):\n"
        "        self.a_part_of_a_later_version.start()\n",
        "utf-8",
    )
    code, report, said = storm(tmp_path / "out", "--build", build("0.5.23", str(overlay)), *SMALL)
    assert (code, report) == (3, {}), said
    assert said.splitlines()[-1].endswith(
        "cannot be run here: the scheduler's attribute a_part_of_a_later_version has no value here"
    )


def test_code_that_does_not_start_is_refused_with_the_name_of_what_it_asks_for(tmp_path: Path) -> None:
    """Exit 3 and one line, from the engine that has met it; no process is left that waits for it."""
    overlay = tmp_path / "asks.py"
    overlay.write_text(
        "class Scheduler:\n    def init_disaggregation(self):\n        self.a_part_of_a_later_version.start()\n",
        "utf-8",
    )
    code, report, said = storm(tmp_path / "out", "--build", build("0.5.23", str(overlay)), *SMALL)
    assert (code, report) == (3, {}), said
    assert "cannot be run here: prefill: " in said
    assert "the scheduler's attribute a_part_of_a_later_version has no value here (all of it is in " in said


@pytest.mark.thorough
def test_aborts_at_prefill_alone_starve_decode_of_0_5_23(tmp_path: Path) -> None:
    """Nobody tells it: what it waits for in vain is counted, with its pages, and is named."""
    _, report, said = storm(tmp_path / "out", "--build", build("0.5.23"), "--seed", "1", *SMALL, "--aborts", "prefill")
    (run,) = report["runs"]
    assert 0 < run["counts"]["starved"] <= run["counts"]["unsettled"]
    assert run["counts"]["pages_left"] > 0
    assert judgements(report)["settlement"]["verdict"] == "broken"
    assert "held by decode alone: prefill is through with them" in " ".join(said.split())


@pytest.mark.thorough
def test_a_room_id_that_is_used_again_at_once(tmp_path: Path) -> None:
    """Who reuses is counted; a scheduler that dies of it is named, and then everybody hangs."""
    _, report, said = storm(tmp_path / "out", "--build", build("0.5.23"), "--seed", "1", *SMALL, "--reuse")
    (run,) = report["runs"]
    assert run["counts"]["reused"] > 0, said
    assert run["left_behind"] == []
    for death in run["deaths"]:
        assert death["error"].startswith("RuntimeError: Unexpected poll state")
        assert run["counts"]["unsettled"] > 0


@pytest.mark.thorough
@pytest.mark.parametrize("version", ["0.5.15.post1", "0.5.20", "0.5.23"])
def test_two_ranks_serve_and_are_told_apart(version: str, tmp_path: Path) -> None:
    """Each rank's pages arrive at its own peer, and the report has a line for each."""
    _, report, said = storm(tmp_path / "out", "--build", build(version), "--seed", "1", *SMALL, "--ranks", "2")
    (run,) = report["runs"]
    assert run["counts"]["completed"] > 0, said
    assert run["counts"]["wrong_digests"] == 0
    assert [rank["part"] for rank in run["ranks"]] == ["prefill", "decode", "prefill rank 1", "decode rank 1"]
    parts = ("prefill-0", "prefill-1", "decode-0", "decode-1")
    assert all(len(list((tmp_path / "out").rglob(f"{part}.*.ndjson"))) == 1 for part in parts)
    assert run["left_behind"] == []


@pytest.mark.thorough
@pytest.mark.parametrize("version", ["0.5.15.post1", "0.5.23"])
def test_mooncake_serves_over_tcp(version: str, tmp_path: Path) -> None:
    """Upstream's other backend, with its own transfer engine and no device for RDMA: the right bytes come."""
    pytest.importorskip("mooncake.engine", reason="needs mooncake-transfer-engine-non-cuda, and libibverbs for it")
    _, report, said = storm(
        tmp_path / "out", "--build", build(version), "--seed", "1", *SMALL, "--backend", "mooncake"
    )  # fmt: skip
    (run,) = report["runs"]
    assert run["counts"]["completed"] > 0, said
    assert run["counts"]["wrong_digests"] == run["counts"]["unaccounted"] == 0
    assert (run["deaths"], run["left_behind"]) == ([], [])
    (log,) = (tmp_path / "out").rglob("prefill-0.*.ndjson")
    assert "MooncakeKVManager" in log.read_text("utf-8").splitlines()[0]
    assert check(log).error is None
