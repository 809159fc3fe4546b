"""Every law, on logs that break it and on healthy ones that look as if they did."""

import gzip
import json
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvlatch.reference.logs.check import check
from kvlatch.reference.logs.ending import ending
from kvlatch.reference.logs.events import OPS, TABLE_OPS, Event
from kvlatch.reference.logs.judge import Judge
from kvlatch.reference.logs.parts import Part
from kvlatch.reference.logs.report import Report
from kvlatch.reference.logs.runs import Recording
from kvlatch.spec.designs import DESIGNS
from kvlatch.spec.model import Instance, Machine
from kvlatch.spec.properties import BY_NAME
from kvlatch.spec.schema import Atomicity, Network
from tests.reference.logs.log_files import Row, arrow_table, ndjson, parquet
from tests.test_bugs import IN_A_ROOM, play

LIFE: list[Row] = [
    {"op": "create", "status": "Bootstrapping"},
    {"op": "write", "incoming": "WaitingForInput", "status": "WaitingForInput"},
    {"op": "write", "incoming": "Transferring", "status": "Transferring"},
    {"op": "write", "incoming": "Success", "status": "Success"},
    {"op": "poll", "status": "Success"},
    {"op": "clear", "status": "Absent"},
]
BOOT, WAIT, MOVE, DONE, POLL, CLEAR = LIFE


def of(tmp_path: Path, *rows: Row, version: int = 1, **more: Any) -> Report:
    """The report of a log of these events, in room 7 if they name none."""
    header = more.pop("header", {})
    return check(ndjson(tmp_path / "log", [{"room": 7, **row} for row in rows], version, **header), **more)


def broken(report: Report) -> set[str]:
    """The laws that are broken, with their scenarios."""
    return {one.name for one in report.judgements if one.verdict == "broken"}


def answers(report: Report) -> dict[str, str]:
    return {one.name: one.verdict for one in report.judgements}


# --------------------------------------------------------------------------------------------------------------------
# Whose entry it is


@pytest.mark.parametrize("field", ["rank", "node"])
def test_each_table_has_entries_of_its_own(tmp_path: Path, field: str) -> None:
    """A healthy room on two ranks, or at both ends, in one file: no alarm, and both are counted."""
    rows = [{**step, field: side, "thread": "worker"} for step in LIFE for side in ("0", "1")]
    report = of(tmp_path, *rows, version=2)
    assert (broken(report), report.exit_code, report.rooms, report.tables) == (set(), 0, 2, 2)


def test_both_ends_must_end_alike(tmp_path: Path) -> None:
    """Success at one end and Failed at the other breaks one-outcome, unless one side gave the request up."""
    failing = [BOOT, WAIT, {"op": "write", "incoming": "Failed", "status": "Failed"}, CLEAR]
    rows = [{**row, "node": "prefill"} for row in LIFE] + [{**row, "node": "decode"} for row in failing]
    report = of(tmp_path, *rows, version=2)
    assert broken(report) == {"one-outcome/both-ends"}
    assert "ended as Success on prefill and as Failed on decode" in str(report.findings[0].sentence)
    rows[-2] = {**rows[-2], "op": "abort"}
    assert broken(of(tmp_path, *rows, version=2)) == set()


@pytest.mark.parametrize("room", [2**64 - 1, 2**63, "chatcmpl-b9-0", ""])
def test_ids_of_any_kind(tmp_path: Path, room: Any) -> None:
    """Unsigned 64-bit ids and strings are read, in either version."""
    report = of(tmp_path, *({**step, "room": room} for step in [*LIFE[:3], {"op": "poll", "status": "Failed"}, MOVE]))
    assert broken(report) >= {"terminal-sticky", "no-resurrection"}
    assert report.findings[0].room == room


def test_numbers_and_other_names_for_statuses(tmp_path: Path) -> None:
    """A status by its number, or by another engine's name that the header explains."""
    rows: list[Row] = [{"op": "create", "status": 1}, {"op": "write", "status": 0}, {"op": 4, "status": "moving"}]
    report = of(tmp_path, *rows, version=2, header={"statuses": {"moving": "Transferring"}})
    assert {"terminal-sticky", "no-resurrection"} <= broken(report)


# --------------------------------------------------------------------------------------------------------------------
# Order


def test_lines_of_one_thread_are_ordered_by_its_clock(tmp_path: Path) -> None:
    """Two lines of a worker that are swapped are judged in the order of time, and named."""
    rows = [BOOT, WAIT, {**DONE, "thread": "w", "time": 0.051}, {**MOVE, "thread": "w", "time": 0.05}, POLL, CLEAR]
    for batch in (None, 1, 3):
        report = of(tmp_path, *rows, batch=batch)
        assert broken(report) == set()
        assert "line 5" in report.disorder[0]


def test_what_breaks_a_law_only_in_the_order_of_the_file_accuses_nobody(tmp_path: Path) -> None:
    """Two threads whose times contradict the lines: named as a contradiction."""
    failed = {"op": "abort", "status": "Failed", "thread": "scheduler", "time": 2.0}
    report = of(tmp_path, BOOT, failed, {**MOVE, "thread": "worker", "time": 1.0})
    assert broken(report) == set()
    assert "Transferring stands after Failed, and its time, 1 s, is before 2 s" in report.disorder[0]
    assert "terminal-sticky" in broken(of(tmp_path, BOOT, failed, {**MOVE, "thread": "worker", "time": 3.0}))


# --------------------------------------------------------------------------------------------------------------------
# Requests on one id


def test_two_live_requests_on_one_id_are_both_named(tmp_path: Path) -> None:
    """The overlap is found whether or not a status of the first is read by the second."""
    second = {"op": "create", "status": "WaitingForInput", "thread": "b"}
    report = of(tmp_path, {**BOOT, "thread": "a"}, WAIT, second, MOVE, DONE, CLEAR)
    assert broken(report) == {"room-reusable/overlap"}
    assert "'a' created on line 2" in report.findings[0].sentence
    assert "created by 'b'" in report.findings[0].sentence


def test_early_metadata_of_the_next_request_is_no_ghost(tmp_path: Path) -> None:
    """With the request said it is told from a ghost; without, nobody is accused."""
    assert broken(of(tmp_path, *LIFE, WAIT, {"op": "create", "status": "WaitingForInput"})) == set()
    early = {**WAIT, "request": "2"}
    rows = [{**row, "request": "1"} for row in LIFE]
    late = {"op": "create", "status": "WaitingForInput", "request": "2"}
    assert broken(of(tmp_path, *rows, early, late, version=2)) == set()
    assert "no-ghost" in broken(of(tmp_path, *rows, {**WAIT, "request": "1"}, version=2))
    assert "no-ghost" in broken(of(tmp_path, *LIFE, MOVE))


def test_success_from_bootstrapping_is_judged_where_transfers_are_logged(tmp_path: Path) -> None:
    """A log without any other status may not log them: not judged, and the room is named."""
    report = of(tmp_path, BOOT, DONE)
    assert (broken(report), report.exit_code) == (set(), 3)
    [reason] = [str(one.answer) for one in report.judgements if one.law == "success-complete"]
    assert reason.startswith("room 7 went from Bootstrapping to Success")
    assert broken(of(tmp_path, *({**row, "room": 1} for row in LIFE), BOOT, DONE)) == {"success-complete"}


# --------------------------------------------------------------------------------------------------------------------
# The end


def timed(*rows: Row, step: float = 10) -> list[Row]:
    return [{**row, "time": step * number} for number, row in enumerate(rows)]


def test_polls_are_no_progress(tmp_path: Path) -> None:
    """A request that is polled for longer than ``quiet`` and does not move is pinned; one that moved lately is not."""
    waiting = [{"op": "poll", "status": "WaitingForInput"}] * 60
    report = of(tmp_path, *timed(BOOT, WAIT, *waiting))
    assert broken(report) == {"no-pin", "settlement"}
    assert "although nothing has happened to it for 600 s (the limit is 300 s)" in report.pinned[0].sentence
    assert broken(of(tmp_path, *timed(BOOT, WAIT, *waiting), quiet=601)) == set()
    assert broken(of(tmp_path, *timed(BOOT, WAIT, *waiting, MOVE))) == set()
    stuck = of(tmp_path, *timed(BOOT, *[{"op": "poll", "status": "Bootstrapping"}] * 60))
    assert broken(stuck) == {"settlement"}


def test_entries_that_nobody_will_clear_are_leaks(tmp_path: Path) -> None:
    """An entry that was terminal long before the log ends breaks settlement, on a node that logs clears."""
    left = [{**row, "room": 1, "time": float(at)} for at, row in enumerate(LIFE[:-1])]
    later = [{**row, "room": 2, "time": 1000.0 + at} for at, row in enumerate(LIFE)]
    report = of(tmp_path, *left, *later)
    assert broken(report) == {"settlement/leak"}
    assert report.exit_code == 1
    report = of(tmp_path, *left, *later[:-1])
    assert broken(report) == set()
    assert report.left == 2


def test_a_thread_that_died_is_a_crash(tmp_path: Path) -> None:
    """Its error is in the sentence."""
    report = of(tmp_path, BOOT, {"op": "end", "thread": "w0", "error": "KeyError: 7"}, version=2)
    assert broken(report) == {"no-crash"}
    assert "thread w0 died: KeyError: 7" in report.findings[0].sentence


def test_only_names_a_law_and_one_that_was_not_judged_is_not_green(tmp_path: Path) -> None:
    """``--only`` answers for that law, with all its scenarios."""
    report = of(tmp_path, *LIFE, only=("no-ghost", "told-once"))
    assert answers(report) == {"no-ghost": "kept", "told-once": "not judged"}


# --------------------------------------------------------------------------------------------------------------------
# Runs of the spec


def events_of(name: int, *, drop: tuple[str, ...] = ()) -> list[Event]:
    """One run of ``latch``, healthy, in an order drawn by chance."""
    chance = random.Random(name)  # noqa: S311  # for no secret
    level: Atomicity = chance.choice(("locked", "cas"))
    network: Network = chance.choice(("orderly", "late", "disorderly"))
    machine = Machine.of(DESIGNS["latch"], level, network, Instance(workers=2, chunks=2, requests=2))
    run: list[Any] = [(None, machine.initial())]
    lean = chance.choice((0.3, 0.6, 0.9))
    for _ in range(chance.choice((20, 60, 150))):
        enabled = machine.enabled(run[-1][1])
        kinds = [[action for action in enabled if action.fair is fair] for fair in (True, False)]
        if not enabled:
            break
        action = chance.choice(kinds[0] if kinds[0] and (not kinds[1] or chance.random() < lean) else kinds[1])
        run.append((action, machine.step(run[-1][1], action)))
    over = not any(action.fair for action in machine.enabled(run[-1][1]))
    return [event for event in Recording(machine, 7).events(run, polled=over) if event.op not in drop]


def verdict(events: list[Event], declared: frozenset[str]) -> set[str]:
    judge = Judge(declared=declared)
    judge.feed(events)
    return {finding.law for finding in ending(judge).findings}


@pytest.mark.parametrize("seed", range(60))
def test_no_healthy_run_is_accused(seed: int) -> None:
    """Whole, without requests, and as a log of version 1: never an alarm (``bench/logs_score.py`` tries 10,000)."""
    events = events_of(seed)
    assert verdict(events, frozenset(OPS)) == set()
    anonymous = [event._replace(request=None) for event in events]
    assert verdict(anonymous, frozenset(OPS)) == set()
    assert verdict([event for event in anonymous if event.op in TABLE_OPS], frozenset()) == set()


@pytest.mark.parametrize("told", IN_A_ROOM, ids=lambda told: told.ref)
def test_every_retold_report_is_found_under_its_law(told: Any) -> None:
    """The log of the very run that breaks a property says that it does."""
    events = list(Recording(told.machine, 7).events(play(told), polled=True))
    assert told.prop in verdict(events, frozenset(OPS))


def test_every_law_of_the_spec_is_broken_by_some_report() -> None:
    """So the test before this one is about all of them."""
    assert {told.prop for told in IN_A_ROOM} == set(BY_NAME)


# --------------------------------------------------------------------------------------------------------------------
# Where a log may be


def test_packed_logs_and_pipes(tmp_path: Path) -> None:
    """.gz and .zst by how they begin, also from a pipe; a packed log that is cut says after which line."""
    pa = pytest.importorskip("pyarrow", reason=".zst is read with pyarrow")
    path = ndjson(tmp_path / "log", [{"room": 7, **row} for row in LIFE * 400])
    packed, zst = tmp_path / "log.gz", tmp_path / "log.zst"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    with pa.output_stream(str(zst), compression="zstd") as file:
        file.write(path.read_bytes())
    for one in (packed, zst):
        assert check(one).events == 2400
    done = subprocess.run(
        [sys.executable, "-m", "kvlatch", "check", "-", "--json"], input=packed.read_bytes(), capture_output=True,
        check=False, timeout=60,
    )  # fmt: skip
    assert (done.returncode, json.loads(done.stdout)["looked_at"]["events"]) == (0, 2400)
    packed.write_bytes(packed.read_bytes()[:-200])
    report = check(packed)
    assert report.exit_code == 2
    assert "cannot be read any further" in str(report.error)


def test_a_log_that_is_being_written_is_followed(tmp_path: Path) -> None:
    """A line as soon as a law breaks, also of an event that came in two parts; an interrupt ends in the report."""
    path = ndjson(tmp_path / "log", [{"room": 7, **BOOT}])
    # In the background of a shell ^C is ignored, and a process inherits that.
    command = ["/usr/bin/env", "--default-signal=INT", sys.executable, "-m", "kvlatch", "check", str(path), "--follow"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        text = json.dumps({"room": 7, "op": "abort", "status": "Failed"}) + "\n" + json.dumps({"room": 7, **MOVE})
        for part in (text[:20], text[20:], "\n"):
            with path.open("a") as file:
                file.write(part)
        assert process.stdout.readline().startswith("room 7, line 4: Transferring over Failed")
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
        assert process.wait(timeout=300) == 1
    assert "broken      terminal-sticky" in rest


def test_a_restart_is_no_fault_of_the_table(tmp_path: Path) -> None:
    """A process that was killed leaves live requests, and the next one of its name begins with an empty table."""
    said = {"node": "prefill@one", "rank": 0, "thread": "scheduler"}
    first = [
        {"room": 1, "op": "create", "status": "Bootstrapping", "time": 1, **said},
        {"room": 2, "op": "create", "status": "Bootstrapping", "time": 1, **said},
        {"room": 2, "op": "abort", "status": "Failed", "time": 2, **said},
        {"room": 2, "op": "poll", "status": "Failed", "time": 2, **said},
    ]
    again = [
        {"room": 2, "op": "create", "status": "Bootstrapping", "time": 4000, **said},
        {"room": 2, "op": "poll", "status": "Bootstrapping", "time": 4001, **said},
    ]

    def laws(*processes: str | None) -> set[str]:
        paths = []
        for number, (process, rows) in enumerate(zip(processes, (first, again), strict=True)):
            paths.append(tmp_path / f"{number}.ndjson")
            header = {"kvlatch-log": 2} | ({"process": process} if process else {})
            paths[-1].write_text("".join(json.dumps(row) + "\n" for row in [header, *rows]))
        return {finding.law for finding in check(*paths).findings}

    assert laws("a", "b") == set()
    assert laws("a", "a") == laws(None, None) >= {"terminal-sticky", "settlement"}


def test_a_clock_that_is_set_back_orders_nothing_anew(tmp_path: Path) -> None:
    """What a thread did afterwards comes after what it did before; a line that is a little late is put in order."""
    said = {"room": 1, "thread": "scheduler"}
    rows = [
        {"op": "create", "status": "Bootstrapping", "time": 5000, **said},
        {"op": "write", "incoming": "WaitingForInput", "status": "WaitingForInput", "time": 5001, **said},
        {"op": "abort", "status": "Failed", "time": 1402, **said},
        {"op": "clear", "status": "Absent", "time": 1404, **said},
        {"op": "poll", "status": "Failed", "time": 1403, **said},
    ]
    path = tmp_path / "log"
    path.write_text("".join(json.dumps(row) + "\n" for row in [{"kvlatch-log": 2}, *rows]))
    report = check(path)
    assert not report.findings
    assert report.moved == 1
    path.unlink()
    again = {"op": "write", "incoming": "Transferring", "status": "Transferring", "time": 1000, **said}
    path.write_text("".join(json.dumps(row) + "\n" for row in [{"kvlatch-log": 2}, *rows[:3], again]))
    assert "terminal-sticky" in {finding.law for finding in check(path).findings}


def test_a_log_that_begins_in_the_middle_does_not_show_what_was_told(tmp_path: Path) -> None:
    """Decode was told before the first line; with a create it would be known that it was not."""
    tell = {"room": 9, "op": "tell", "incoming": "Success", "request": "r"}
    rows = [{"room": 1, "op": op, "incoming": "Success", "request": "q"} for op in ("conclude", "settle")]
    create = {"room": 1, "op": "create", "status": "Bootstrapping", "request": "q"}
    rows.insert(1, {"room": 1, "op": "clear", "request": "q"})
    path = tmp_path / "log"
    for begin, broken in (([tell], set()), ([tell, create], {"told-once"})):
        path.write_text("".join(json.dumps(row) + "\n" for row in [{"kvlatch-log": 2}, *begin, *rows]))
        assert {finding.law for finding in check(path).findings} == broken


@pytest.mark.parametrize("write", [ndjson, lambda path, rows: parquet(path, arrow_table(rows))])
@pytest.mark.parametrize("engine", ["auto", "judge"])
def test_a_clock_that_is_set_back_makes_nobody_silent(tmp_path: Path, write: Any, engine: Any) -> None:
    """A request that has just begun is on its way, whatever the time was before; one that hangs is found in time."""
    rows: list[Any] = [
        {"room": 1, "op": "create", "status": "Bootstrapping", "time": 5000.0},
        {"room": 2, "op": "create", "status": "Bootstrapping", "time": 1400.0},
        {"room": 3, "op": "create", "status": "Bootstrapping", "time": 1401.0},
    ]
    path = write(tmp_path / "log", rows)
    whole = check(path, engine=engine)
    assert (whole.findings, whole.running) == ((), 3)
    parts = [check(path, engine=engine, part=Part(number, 2)) for number in range(2)]
    assert parts[0].merge(parts[1]) == whole
    path.unlink()
    later = check(write(path, [*rows, {"room": 3, "op": "poll", "status": "Bootstrapping", "time": 2000.0}]))
    assert {finding.room for finding in later.findings} == {2, 3}


@pytest.mark.parametrize(("who", "word", "broken"), [(1, "Failed", False), (0, "Failed", True), (1, "Success", True)])
def test_two_workers_that_fail_at_once_may_each_tell(tmp_path: Path, who: int, word: str, broken: bool) -> None:
    """As in ``latch``, where nobody looks whether the other one has; one of them may not do it twice."""
    said = {"room": 1, "op": "tell", "incoming": word, "peer": "decode", "request": "r"}
    rows = [said | {"thread": f"worker {worker}"} for worker in (0, who)]
    path = tmp_path / "log"
    path.write_text("".join(json.dumps(row) + "\n" for row in [{"kvlatch-log": 2}, *rows]))
    assert ("told-once" in {finding.law for finding in check(path).findings}) == broken
