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
from kvlatch.reference.live.upstream.observe import Agent, Table, Watch, attach, over
from kvlatch.reference.live.upstream.stubs import Decision, Missing
from kvlatch.reference.logs.recording import record
from kvlatch.spec.status import KVPoll

ROOM = 2**64 - 1


def watch(noise: Noise | None = None) -> Watch:
    """One that delays nobody."""
    return Watch(noise or Noise(0.0, 0.0, 0))


def by(name: str, do: Callable[[], object]) -> None:
    """Do something in a thread of this name."""
    thread = threading.Thread(target=do, name=name)
    thread.start()
    thread.join()


def test_an_abort_between_a_workers_look_and_its_store_is_a_hit() -> None:
    """And one before, or after, or of another room, is none."""
    seen = watch()
    table = over({ROOM: KVPoll.WaitingForInput, 1: KVPoll.WaitingForInput}, seen)

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


class Manager:
    """What is watched of upstream's."""

    def __init__(self) -> None:
        self.request_status: dict[int, int] = {}
        self.agent = Wire()

    def update_status(self, room: int, status: int) -> None:
        self.request_status[room] = status


def test_the_recorder_sees_the_table_and_a_delay_holds_nobody_else_up(tmp_path: Path) -> None:
    """A worker is delayed before its store, and outside of the recorder's lock; then both see the store as one step."""
    manager = Manager()
    recorder = record(manager, tmp_path / "log")
    delayed, go_on = threading.Event(), threading.Event()

    class Held(Noise):
        def pause(self) -> None:
            if threading.current_thread().name.startswith("worker"):
                delayed.set()
                go_on.wait()

    seen = watch(Held(0.0, 0.0, 0))
    attach(manager, type("Queue", (), {"get": None}), seen, 0.0)
    assert isinstance(manager.request_status, Table)
    manager.update_status(ROOM, KVPoll.WaitingForInput)
    worker = threading.Thread(target=manager.update_status, args=(ROOM, KVPoll.Transferring), name="worker 0")
    worker.start()
    delayed.wait()
    manager.update_status(1, KVPoll.Failed)
    go_on.set()
    worker.join()
    manager.request_status.pop(ROOM)
    recorder.close()
    events = [json.loads(line) for line in recorder.tape.path.read_text().splitlines()[1:]]
    assert [(event["room"], event["status"], event["thread"]) for event in events] == [
        (ROOM, "WaitingForInput", "MainThread"),
        (1, "Failed", "MainThread"),
        (ROOM, "Transferring", "worker 0"),
        (ROOM, "Absent", "MainThread"),
    ]
    assert manager.request_status == {1: KVPoll.Failed}
    with pytest.raises(KeyError):
        del manager.request_status[ROOM]


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


def test_a_key_that_is_not_there_is_missed_by_upstream_and_not_by_its_table(tmp_path: Path) -> None:
    """The error is raised in a table of ours, on behalf of the code that has asked it."""
    table: dict[int, int] = over({}, watch())

    file = tmp_path / "sglang" / "conn.py"
    file.parent.mkdir()
    file.write_text("def go(table):\n    return table[1]\n", "utf-8")
    spec = spec_from_file_location("asks", file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    seen = watch()
    try:
        module.go(table)
    except KeyError as error:
        seen.died(threading.ExceptHookArgs((KeyError, error, error.__traceback__, threading.current_thread())))
    assert [death["where"].endswith("/sglang/conn.py:2") for death in seen.deaths] == [True]


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


def test_what_upstream_says_when_our_engine_lacks_something_is_not_held_against_it_either(tmp_path: Path) -> None:
    """A worker of Mooncake's raises an error of its own about whatever has ended it."""
    error = RuntimeError("Transfer thread failed")
    error.__context__ = Missing("the server's argument tp_size has no value here")
    seen = died(error, tmp_path / "sglang/srt/disaggregation/mooncake/conn.py")
    assert (seen.unfit, seen.deaths) == ("the server's argument tp_size has no value here", [])
