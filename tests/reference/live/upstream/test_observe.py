"""What is seen of an engine: the race of a store and an abort, pages under a transfer, threads that die."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import SimpleNamespace

import pytest

from kvlatch.reference.live.journal import Noise
from kvlatch.reference.live.upstream.observe import OPS, Agent, Table, Watch
from kvlatch.reference.live.upstream.replaced import Missing
from kvlatch.reference.live.upstream.stubs import Decision
from kvlatch.reference.logs.write import LogWriter
from kvlatch.spec.status import KVPoll

ROOM = 2**64 - 1


def watch(log: LogWriter | None = None) -> Watch:
    """One that delays nobody."""
    return Watch(Noise(0.0, 0.0, 0), log)


def by(name: str, do: Callable[[], object]) -> None:
    """Do something in a thread of this name."""
    thread = threading.Thread(target=do, name=name)
    thread.start()
    thread.join()


def test_an_abort_between_a_workers_look_and_its_store_is_a_hit() -> None:
    """And one before, or after, or of another room, is none."""
    seen = watch()
    table = Table(seen, {ROOM: KVPoll.WaitingForInput, 1: KVPoll.WaitingForInput})

    def abort(room: int) -> None:
        by("bootstrap", lambda: table.__setitem__(room, KVPoll.Failed))

    def work(meanwhile: Callable[[], object]) -> None:
        def step() -> None:
            status = table[ROOM]
            meanwhile()
            table[ROOM] = max(status, KVPoll.Transferring)

        by("worker 0", step)

    abort(ROOM)
    work(lambda: None)
    work(lambda: abort(1))
    assert seen.counts["hits"] == 0
    work(lambda: abort(ROOM))
    assert seen.counts["hits"] == 1
    assert dict(table) == {ROOM: KVPoll.Transferring, 1: KVPoll.Failed}


def test_each_change_of_the_table_is_an_event(tmp_path: Path) -> None:
    """With who made it: a store by a worker is a write, Failed by another thread an abort, the first one a create."""
    with LogWriter(tmp_path / "log.ndjson", OPS) as log:
        table = Table(watch(log), {})
        by("scheduler", lambda: table.__setitem__(ROOM, KVPoll.Bootstrapping))
        by("bootstrap", lambda: table.__setitem__(ROOM, KVPoll.WaitingForInput))
        by("worker 0", lambda: table.__setitem__(ROOM, KVPoll.Failed))
        by("scheduler", lambda: table.__setitem__(ROOM, KVPoll.Failed))
        by("scheduler", lambda: table.pop(ROOM, None))
        by("scheduler", lambda: table.pop(ROOM, None))
    events = [json.loads(line) for line in (tmp_path / "log.ndjson").read_text().splitlines()[1:]]
    assert [(event["op"], event["status"], event["thread"]) for event in events] == [
        ("create", "Bootstrapping", "scheduler"),
        ("write", "WaitingForInput", "bootstrap"),
        ("write", "Failed", "worker 0"),
        ("abort", "Failed", "scheduler"),
        ("clear", "Absent", "scheduler"),
    ]
    with pytest.raises(KeyError):
        del table[ROOM]


class Wire:
    """An agent whose transfers end when they are told to."""

    state = "PROC"

    def transfer(self, _: object) -> str:
        return self.state

    def check_xfer_state(self, _: object) -> str:
        return self.state


def test_pages_that_come_back_while_they_are_read_are_counted() -> None:
    """From when a transfer is posted to when it has ended; other pages, and those of ended transfers, are not."""
    seen, wire, handle = watch(), Wire(), object()
    agent = Agent(wire, seen, 0.0)
    seen.taken(SimpleNamespace(room=ROOM, prefill_kv_indices=[3, 4], chunk_id=0))
    agent.transfer(handle)
    seen.freed([5, 6])
    assert seen.counts["released early"] == 0
    seen.freed([4, 5])
    assert seen.counts["released early"] == 1
    wire.state = "DONE"
    assert agent.check_xfer_state(handle) == "DONE"
    seen.freed([3])
    assert seen.counts["released early"] == 1


def test_a_wire_is_not_faster_than_it_is_set_to_be() -> None:
    """A transfer that is done at once is in progress until its time is over; one that fails, fails at once."""
    wire, handle = Wire(), object()
    wire.state = "DONE"
    agent = Agent(wire, watch(), 3600.0)
    assert agent.transfer(handle) == agent.check_xfer_state(handle) == "PROC"
    wire.state = "ERR"
    assert agent.check_xfer_state(handle) == "ERR"


def died(error: BaseException, file: Path) -> Watch:
    """What is seen of a thread that raised this in a file."""
    seen = watch()
    file.parent.mkdir(parents=True)
    file.write_text("def go(error):\n    raise error\n", "utf-8")
    spec = spec_from_file_location("raises", file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    with pytest.raises(type(error)) as raised:
        module.go(error)
    seen.died(threading.ExceptHookArgs((type(error), error, raised.tb, threading.current_thread())))
    return seen


def test_a_thread_that_dies_in_upstreams_code_is_upstreams_death(tmp_path: Path) -> None:
    """With its error and its place, and nothing is said against the engine."""
    seen = died(KeyError(7), tmp_path / "sglang/srt/disaggregation/nixl/conn.py")
    assert seen.unfit == ""
    assert seen.deaths == [{"thread": "MainThread", "error": "KeyError: 7", "where": "disaggregation/nixl/conn.py:2"}]


@pytest.mark.parametrize(
    ("error", "file"),
    [
        (Missing("the scheduler's attribute x has no value here"), "sglang/srt/managers/scheduler.py"),
        (Decision("a.b is replaced, and was read as a decision"), "sglang/srt/managers/scheduler.py"),
        (TypeError("not ours"), "kvlatch/reference/live/upstream/memory.py"),
    ],
)
def test_what_our_engine_lacks_is_not_held_against_upstream(error: Exception, file: str, tmp_path: Path) -> None:
    """Then nothing that has happened means anything."""
    seen = died(error, tmp_path / file)
    assert (seen.unfit, seen.deaths) == (str(error), [])
