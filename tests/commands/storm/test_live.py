"""Storms on live systems: real NIXL transfers, the real sglang-router, real processes that are killed.

Nothing here depends on how fast the machine is: what is asserted is what was left behind.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

for module in ("httpx", "jinja2", "matplotlib", "prometheus_client", "sglang_router", "starlette", "uvicorn"):
    pytest.importorskip(module, reason="needs the extra live")
pytest.importorskip("nixl_cu12", reason="needs nixl-cu12, which is installed without its dependencies")

from kvlatch.reference.live.settings import Rules, Settings  # noqa: E402
from kvlatch.reference.live.system import CannotStart, System  # noqa: E402
from kvlatch.spec.designs import DESIGNS  # noqa: E402

COMMAND: Final = (sys.executable, "-c", "from kvlatch.commands.main import main; main()")
LIMIT: Final = 240.0
SMALL: Final = ("--requests", "70", "--seconds", "4")
STEADY: Final = ("--requests", "400", "--seconds", "3")
"""More requests than there is time for: so the storm lasts until the part is killed, and beyond."""


def kvlatch(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command line as a process."""
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=LIMIT, check=False)


def storm(out: Path, *arguments: str) -> tuple[int, dict[str, Any], str]:
    """A storm's exit code, its report, and what it said meanwhile."""
    done = kvlatch("storm", "--out", str(out), "--json", *arguments)
    assert done.returncode in (0, 1, 3), done.stderr
    report = json.loads(done.stdout)
    assert json.loads((out / "report.json").read_text()) == report
    return done.returncode, report, done.stderr


def accounted(run: dict[str, Any]) -> None:
    """Every request has an ending, and no process and no port is left."""
    counts = run["counts"]
    assert counts["unaccounted"] == 0
    assert counts["sent"] == counts["completed"] + counts["failed"] + counts["aborted"] == len(run["requests"])
    assert run["left_behind"] == []


@pytest.fixture(scope="module", params=[1, pytest.param(3, marks=pytest.mark.thorough)], ids="{}-times".format)
def compared(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[int, dict[str, Any], Path]:
    """Control against treatment, once or three times each: a storm as ``kvlatch storm`` makes it, only smaller."""
    out = tmp_path_factory.mktemp("storm") / "compared"
    code, report, _ = storm(out, "--seed", "1", "--repetitions", str(request.param), *SMALL)
    assert len(report["runs"]) == 2 * request.param
    return code, report, out


def test_the_control_pins_requests_and_the_treatment_none(compared: tuple[int, dict[str, Any], Path]) -> None:
    """The race fires on both; the gauge stays above 0 on one after its deadline, and comes to 0 on the other.

    One repetition each shows this as well, but it could be chance.
    """
    code, report, _ = compared
    once = len(report["runs"]) == 2
    assert (code, report["conclusion"]) == ((3, "inconclusive") if once else (0, "treatment fixes it"))
    assert report["p"] == pytest.approx(1 / 2 if once else 1 / 20)
    for run in report["runs"]:
        accounted(run)
        counts, control = run["counts"], run["role"] == "control"
        assert run["build"]["name"] == ("seed-control/locked" if control else "latch/locked")
        assert counts["hits"] >= 20  # or the storm would have gone on
        assert (counts["pinned"] > 0) == control
        assert (run["drained"] is None) == control
        assert run["gauge"][-1][1] == counts["pinned"] == len(run["pinned"])
        assert run["metric"]["compared"] > 0
        assert run["metric"]["differed"] == 0
        if not control:
            assert [counts[name] for name in report["proofs"]["latch/locked"]] == [0] * 5
    for role in ("control", "treatment"):
        assert (
            len({phase["fingerprint"] for run in report["runs"] if run["role"] == role for phase in run["phases"]}) == 1
        )


def test_a_pinned_room_leads_to_its_cause(compared: tuple[int, dict[str, Any], Path]) -> None:
    """The commands in the report name the law, and show the write that broke it; treatment's logs are clean."""
    _, report, out = compared
    rooms = {room["room"]: room for run in report["runs"] for room in run["pinned"]}
    room = next(room for room in rooms.values() if room["law"] == "terminal-sticky")
    program, command, log, *rest = room["show"].split()
    assert (program, command) == ("kvlatch", "show")
    told = kvlatch(command, log, *rest)
    assert told.returncode == 0
    assert f"{room['line']}*" in told.stdout
    assert "ends Transferring although it had been terminal" in " ".join(told.stdout.split())
    checked = kvlatch("check", log, "--room", room["room"])
    assert checked.returncode == 1
    assert f"room {room['room']}, line {room['line']}: {room['says']}" in checked.stdout
    for number in range(1, len(report["runs"]) // 2 + 1):
        assert kvlatch("check", str(out / f"treatment-{number}" / "prefill.ndjson")).returncode == 0
    assert room["show"] in (out / "report.html").read_text()


@pytest.mark.parametrize(
    "fault",
    [
        "kill-prefill",
        pytest.param("kill-decode", marks=pytest.mark.thorough),
        pytest.param("kill-router", marks=pytest.mark.thorough),
    ],
)
def test_with_latch_every_request_has_an_ending_when_a_part_is_killed(fault: str, tmp_path: Path) -> None:
    """Killed as by kill -9 in the middle of the storm; who was served before has an answer, who was not an error."""
    _, report, _ = storm(tmp_path / "out", "--build", "latch", "--fault", fault, *STEADY)
    (run,) = report["runs"]
    accounted(run)
    assert run["faults"] == [fault]
    assert run["counts"]["failed"] > 0
    assert run["counts"]["pinned"] == 0


def test_with_latch_a_full_queue_and_clients_that_never_read_do_no_harm(tmp_path: Path) -> None:
    """Computed chunks wait for a worker, unread answers for nobody; and every room is a run of latch, as stormed."""
    few = ("--queue", "1", "--unread", "10", "--hits", "0", "--chunks", "1", "4")
    code, report, _ = storm(tmp_path / "out", "--build", "latch/cas", *few, *SMALL)
    (run,) = report["runs"]
    accounted(run)
    assert [request["detail"] for request in run["requests"]].count("never read its answer") == 10
    assert run["counts"]["wrong_digests"] == 0
    assert code in (0, 3)  # with so few chunks on their way the race may not fire
    is_run = ("check", str(tmp_path / "out" / "latch-cas-1" / "prefill.ndjson"), "--only", "run-of-design", "--design")
    (judged,) = json.loads(kvlatch(*is_run, "latch", "--json").stdout)["judgements"]
    assert (judged["verdict"], judged["looks"]) == ("kept", run["counts"]["sent"])
    assert kvlatch(*is_run, "sglang-0.5.23").returncode == 1  # which does not mark a room again for each chunk


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    lists = (thread.read_text() for thread in Path(f"/proc/{pid}/task").glob("*/children"))
    return [int(child) for children in lists for child in children.split()]


@contextmanager
def started(out: Path) -> Iterator[subprocess.Popen[str]]:
    """A storm that is at work: prefill has written to its log."""
    log = out / "latch-locked-1" / "prefill.ndjson"
    command = [*COMMAND, "storm", "--build", "latch", "--out", str(out), "--seconds", "60", "--requests", "9999"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            deadline = time.monotonic() + LIMIT
            while not log.exists() or log.read_text().count("\n") < 200:
                assert process.poll() is None, process.communicate()
                assert time.monotonic() < deadline
                time.sleep(0.05)  # of a file nobody says when it has grown
            yield process
        finally:
            process.kill()


def test_ctrl_c_stops_cleanly_and_still_writes_the_report(tmp_path: Path) -> None:
    """Exit 130, a report that says so, all processes gone."""
    with started(tmp_path / "out") as process:
        parts = children(process.pid)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=LIMIT)
    assert process.returncode == 130
    assert "the report is still written" in said
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    (run,) = report["runs"]
    assert run["interrupted"]
    accounted(run)
    assert len(parts) == 3
    assert not any(Path(f"/proc/{part}").exists() for part in parts)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for processes in Linux' /proc")
def test_a_storm_that_is_killed_leaves_no_process_behind(tmp_path: Path) -> None:
    """Every part ends with the pipe that it was started with."""
    with started(tmp_path / "out") as process:
        parts = children(process.pid)
        parts += [child for part in parts for child in children(part)]
        process.kill()
    assert len(parts) >= 4  # two engines, the router, and who watches over it
    deadline = time.monotonic() + LIMIT
    while alive := [part for part in parts if _runs(part)]:
        assert time.monotonic() < deadline, alive
        time.sleep(0.05)  # of processes that are not ours nobody says when they end


def _runs(pid: int) -> bool:
    """A process is there, and is not just waiting to be counted by whoever inherited it."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def test_a_part_that_does_not_start_says_why_and_takes_the_others_with_it(tmp_path: Path) -> None:
    """One line with the reason and where the rest of it is; nothing is left running."""
    system = System(Rules(DESIGNS["latch"], "locked"), Settings(page_bytes=-1), tmp_path)
    with pytest.raises(
        CannotStart, match=r"the prefill does not start: ValueError: .* \(all of it is in .*prefill\.log\)"
    ):
        system.start()
    assert system.left_behind() == ()


def test_a_deployment_that_runs_already_is_stormed_over_http_alone(tmp_path: Path) -> None:
    """Where only its gauge is known, that is what is judged; one build is not compared with itself."""
    with System(Rules(DESIGNS["latch"], "locked"), Settings(), tmp_path / "system") as system:
        where = ("--url", system.url("router"), "--metrics", f"{system.url('prefill')}/metrics", "--yes")
        few = ("--requests", "30", "--rate", "40", "--seconds", "1")
        code, report, _ = storm(tmp_path / "one", *where, *few, "--label", "mine")
        assert (code, report["conclusion"]) == (0, "drains")
        (run,) = report["runs"]
        assert (run["build"]["name"], run["log"], run["counts"]["hits"]) == ("mine", None, None)
        assert run["counts"]["sent"] <= 33
        against = ("--against", str(tmp_path / "one" / "report.json"))
        same = kvlatch("storm", *where, *few, "--label", "mine", *against, "--out", str(tmp_path / "two"))
        assert same.returncode == 2
        assert "refused: this is the build of" in same.stderr
        assert not (tmp_path / "two").exists()
        code, report, _ = storm(tmp_path / "three", *where, *few, "--label", "other", *against)
        assert (code, report["conclusion"]) == (3, "no difference")
    assert system.left_behind() == ()
