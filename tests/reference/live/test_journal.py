"""The live status table: what is stored is what is logged, in that order, and only workers are delayed."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from kvlatch.reference.live.journal import LOGGED, Journal, Noise, NoisyLock, Reporter, Table
from kvlatch.reference.logs.check import check
from kvlatch.reference.logs.write import LogWriter
from kvlatch.spec.status import KVPoll

NONE = Noise(0.0, 0.0, 0)


def nobody(_room: int, _status: KVPoll | None) -> None:
    """Listens to no store."""


def as_thread(name: str, work: object) -> None:
    """Run something on a thread of this name."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            work()  # type: ignore[operator]
        except BaseException as error:  # noqa: BLE001  # handed on to the test
            failures.append(error)

    thread = threading.Thread(target=run, name=name)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]


def test_the_log_of_the_incident_is_read_by_check(tmp_path: Path) -> None:
    """A table that is written as in the incident leaves a log in which ``kvlatch check`` finds the lost failure."""
    path = tmp_path / "log.ndjson"
    with LogWriter(path, LOGGED) as log:
        journal = Journal(log)
        table = Table(NONE, journal, nobody)

        def store(op: str, status: KVPoll) -> None:
            journal.writes(status)
            with journal.doing(op):
                table[7] = status

        as_thread("scheduler", lambda: store("create", KVPoll.Bootstrapping))
        as_thread("bootstrap", lambda: store("write", KVPoll.WaitingForInput))
        as_thread("bootstrap", lambda: store("abort", KVPoll.Failed))
        as_thread("worker 3", lambda: store("write", KVPoll.Transferring))
        as_thread("scheduler", lambda: journal.polled(7, lambda: table.peek(7)))
    report = check(path)
    assert [(v.room, v.line, v.law, v.op, v.incoming) for v in report.violations] == [
        (7, 5, "terminal-sticky", "write", "Transferring")
    ]
    assert len(report.pinned) == 1
    threads = [json.loads(line).get("thread") for line in path.read_text().splitlines()]
    assert threads == [None, "scheduler", "bootstrap", "bootstrap", "worker 3", "scheduler"]


def test_every_write_is_an_event_with_what_was_written_and_what_it_left(tmp_path: Path) -> None:
    """Also one that stores what was there, and one that stores nothing: a design is known by these."""
    with LogWriter(tmp_path / "log", LOGGED) as log:
        journal = Journal(log)
        table = Table(NONE, journal, nobody)
        watcher = Reporter(journal, table)
        with journal.doing("create"):
            table[7] = KVPoll.Transferring
        watcher.writes(KVPoll.WaitingForInput)
        table[7] = KVPoll.Transferring
        watcher.kept(7)
        watcher.did("take", 7, 1, chunk=0)
        with journal.doing("clear"):
            assert table.pop(7) == KVPoll.Transferring
            assert table.pop(7, None) is None
            with pytest.raises(KeyError):
                del table[7]
    events = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()[1:]]
    assert [(event["op"], event.get("incoming"), event.get("status")) for event in events] == [
        ("create", None, "Transferring"),
        ("write", "WaitingForInput", "Transferring"),
        ("write", "WaitingForInput", "Transferring"),
        ("take", None, None),
        ("clear", None, "Absent"),
        ("clear", None, "Absent"),
    ]


def test_every_store_is_told_before_the_next(tmp_path: Path) -> None:
    """Whoever listens hears of each store, also of one that changes nothing, with what it left."""
    told: list[tuple[int, KVPoll | None]] = []
    table = Table(NONE, Journal(LogWriter(tmp_path / "log", LOGGED)), lambda room, status: told.append((room, status)))
    table[1] = KVPoll.Failed
    table[1] = KVPoll.Failed
    del table[1]
    assert told == [(1, KVPoll.Failed), (1, KVPoll.Failed), (1, None)]


def test_only_workers_are_delayed_and_by_their_own_seed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Delays come before stores and locks, on workers' threads alone; a worker's are the same in every run."""
    slept: dict[str, list[float]] = {}

    def sleep(seconds: float) -> None:
        slept.setdefault(threading.current_thread().name, []).append(seconds)

    monkeypatch.setattr("kvlatch.reference.live.journal.time.sleep", sleep)

    journal = Journal(LogWriter(tmp_path / "log", LOGGED))

    def work(noise: Noise) -> None:
        table = Table(noise, journal, nobody)
        lock = NoisyLock(noise)
        for _ in range(20):
            with lock:
                table.get(1)
                table[1] = KVPoll.Failed

    for name in ("scheduler", "bootstrap", "worker 0", "worker 1"):
        as_thread(name, lambda: work(Noise(0.5, 0.02, seed=4)))
    assert set(slept) == {"worker 0", "worker 1"}
    assert all(0 <= seconds <= 0.02 for name in slept for seconds in slept[name])
    assert slept["worker 0"] != slept["worker 1"]
    before = slept.pop("worker 0")
    assert 0 < len(before) < 40  # of twenty stores and twenty locks
    as_thread("worker 0", lambda: work(Noise(0.5, 0.02, seed=4)))
    assert slept["worker 0"] == before
    slept.clear()
    as_thread("worker 0", lambda: work(Noise(0.0, 0.02, seed=4)))
    assert slept == {}
