"""The recorder on managers of our own: what it notes, and that nothing it does reaches its host."""

from __future__ import annotations

import collections
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvlatch.reference.logs.check import check
from kvlatch.reference.logs.recording import record
from kvlatch.reference.logs.recording.methods import Unknown
from kvlatch.reference.logs.recording.recorder import Recorder
from kvlatch.reference.logs.recording.senders import watch
from kvlatch.reference.logs.recording.tape import MOST_WAITING, Tape

FAILED, BOOTSTRAPPING, WAITING, TRANSFERRING, SUCCESS = range(5)
THREADS, WRITES = 8, 400


class Queue:
    """As upstream's."""

    def __init__(self) -> None:
        self._buf: collections.deque[Any] = collections.deque()
        self._condition = threading.Condition()

    def put(self, item: Any) -> None:
        with self._condition:
            self._buf.append(item)
            self._condition.notify()

    def get(self) -> Any:
        with self._condition:
            while not self._buf:
                self._condition.wait()
            return self._buf.popleft()


class Chunk:
    def __init__(self, room: int, last: bool) -> None:
        self.room, self.is_last_chunk = room, last


class Manager:
    """The shape of upstream's manager, and the smallest one that serves a request."""

    def __init__(self) -> None:
        self.request_status: dict[int, int] = {}
        self.transfer_infos: dict[int, dict[str, str]] = {}
        self.transfer_queues = [Queue()]

    def update_status(self, room: int, status: int) -> None:
        if self.request_status.get(room) in (FAILED, SUCCESS):
            return
        self.request_status[room] = status

    def add_transfer_request(self, room: int, chunk: Chunk) -> None:
        if self.request_status.get(room) == FAILED:
            return
        self.transfer_queues[0].put(chunk)

    def send_kvcache(self) -> int:
        return 0

    def transfer_worker(self, queue: Queue) -> None:
        while (chunk := queue.get()) is not None:
            if self.request_status.get(chunk.room) == FAILED:
                continue
            self.update_status(chunk.room, TRANSFERRING)
            self.send_kvcache()
            if chunk.is_last_chunk:
                self.update_status(chunk.room, SUCCESS)
                self.transfer_infos.pop(chunk.room, None)

    def hear(self, room: int) -> None:
        self.transfer_infos[room] = {"peer": "decode"}
        self.update_status(room, WAITING)


class Sender:
    def __init__(self, mgr: Manager, room: int) -> None:
        self.kv_mgr, self.bootstrap_room = mgr, room
        self.conclude_state: int | None = None
        mgr.update_status(room, BOOTSTRAPPING)

    def send(self, *, last: bool) -> None:
        self.kv_mgr.add_transfer_request(self.bootstrap_room, Chunk(self.bootstrap_room, last))

    def poll(self) -> int | None:
        if self.conclude_state is None:
            status = self.kv_mgr.request_status[self.bootstrap_room]
            self.conclude_state = status if status in (FAILED, SUCCESS) else None
            return status
        return self.conclude_state

    def abort(self) -> None:
        self.kv_mgr.update_status(self.bootstrap_room, FAILED)

    def clear(self) -> None:
        self.kv_mgr.request_status.pop(self.bootstrap_room, None)


def events(folder: Path) -> list[dict[str, Any]]:
    """What was written, without where and when."""
    (path,) = folder.glob("*.ndjson")
    return [json.loads(line) for line in path.read_text().splitlines()[1:]]


def by(name: str, do: Any) -> None:
    thread = threading.Thread(target=do, name=name)
    thread.start()
    thread.join()


def serve(manager: Manager, room: int) -> Sender:
    """A request whose two chunks are sent."""
    sender = Sender(manager, room)
    by("bootstrap", lambda: manager.hear(room))
    sender.send(last=False)
    sender.send(last=True)
    manager.transfer_queues[0].put(None)
    by("worker", lambda: manager.transfer_worker(manager.transfer_queues[0]))
    return sender


def test_a_request_from_its_first_to_its_last_event(tmp_path: Path) -> None:
    """All of it, each with its request, chunk and thread; and the log is a healthy one."""
    manager = Manager()
    recorder = record(manager, tmp_path / "log", senders=[Sender], node="prefill", rank=0)
    sender = serve(manager, 7)
    sender.poll()
    sender.poll()
    sender.clear()
    recorder.close()
    found = [(e["op"], e.get("status"), e.get("chunk"), e.get("request"), e["thread"]) for e in events(tmp_path)]
    assert found == [
        ("create", "Bootstrapping", None, "r1", "MainThread"),
        ("infos", None, None, None, "bootstrap"),
        ("write", "WaitingForInput", None, None, "bootstrap"),
        ("end", None, None, None, "bootstrap"),
        ("enqueue", None, 0, "r1", "MainThread"),
        ("enqueue", None, 1, "r1", "MainThread"),
        ("take", None, 0, "r1", "worker"),
        ("write", "Transferring", None, "r1", "worker"),
        ("post", None, 0, "r1", "worker"),
        ("arrive", None, 0, "r1", "worker"),
        ("end", None, 0, "r1", "worker"),
        ("take", None, 1, "r1", "worker"),
        ("write", "Transferring", None, "r1", "worker"),
        ("post", None, 1, "r1", "worker"),
        ("arrive", None, 1, "r1", "worker"),
        ("write", "Success", None, "r1", "worker"),
        ("forget", None, None, "r1", "worker"),
        ("end", None, 1, "r1", "worker"),
        ("poll", "Success", None, "r1", "MainThread"),
        ("conclude", None, None, "r1", "MainThread"),
        ("clear", "Absent", None, "r1", "MainThread"),
    ]
    report = check(*tmp_path.glob("*.ndjson"))
    assert not report.findings
    assert not report.error


class Refusing(Sender):
    """A sender that fails at once where another one has the room."""

    def __init__(self, mgr: Manager, room: int) -> None:
        taken = room in mgr.request_status
        super().__init__(mgr, room)
        self.conclude_state = FAILED if taken else None


class Inheriting(Sender):
    """A sender that begins with whatever is there."""


@pytest.mark.parametrize(("kind", "law"), [(Refusing, None), (Inheriting, "room-reusable")])
def test_a_request_that_is_refused_creates_nothing(kind: type[Sender], law: str | None, tmp_path: Path) -> None:
    """The first one has the room and fails; only a second one that goes on with its status breaks a law."""
    manager = Manager()
    recorder = record(manager, tmp_path / "log", senders=[kind])
    first = kind(manager, 7)
    first.abort()
    second = kind(manager, 7)
    for sender in (second, first):
        sender.poll()
    first.clear()
    recorder.close()
    creates = [event["request"] for event in events(tmp_path) if event["op"] == "create"]
    assert creates == (["r1"] if law is None else ["r1", "r2"])
    assert {finding.law for finding in check(*tmp_path.glob("*.ndjson")).findings} == ({law} if law else set())


def test_a_chunk_of_an_earlier_request_has_not_arrived(tmp_path: Path) -> None:
    """Nobody sends it, and the room that it names is another request's by now, and alive."""
    manager = Manager()
    recorder = record(manager, tmp_path / "log", senders=[Sender])
    first = Sender(manager, 7)
    manager.hear(7)
    first.send(last=True)
    first.abort()
    first.clear()

    class Looks(Manager):
        """Whose worker sends no chunk of a request that has gone."""

        def transfer_worker(self, queue: Queue) -> None:
            while queue.get() is not None:
                pass

    Sender(manager, 7)
    manager.transfer_queues[0].put(None)
    by("worker", lambda: Looks.transfer_worker(manager, manager.transfer_queues[0]))  # type: ignore[arg-type]  # by duck
    recorder.close()
    assert [event["op"] for event in events(tmp_path) if event["thread"] == "worker"] == ["take", "drop", "end"]


def test_a_request_is_called_what_its_host_calls_it(tmp_path: Path) -> None:
    """Where both ends have a name for it, it is the same in both logs."""
    manager = Manager()
    recorder = record(manager, tmp_path / "log", senders=[Sender])
    recorder.mine.called = "r17"
    Sender(manager, 7)
    recorder.mine.called = None
    Sender(manager, 8)
    recorder.close()
    assert [event["request"] for event in events(tmp_path)] == ["r17", "r1"]


def test_giving_up_is_told_from_a_failure_and_a_chunk_that_nobody_sends_is_dropped(tmp_path: Path) -> None:
    """By who writes Failed; and a write that stores nothing is noted with what the table goes on showing."""
    manager = Manager()
    recorder = record(manager, tmp_path / "log", senders=[Sender])
    sender = Sender(manager, 7)
    sender.send(last=False)
    sender.abort()
    sender.send(last=True)
    manager.update_status(7, TRANSFERRING)
    manager.transfer_queues[0].put(None)
    by("worker", lambda: manager.transfer_worker(manager.transfer_queues[0]))
    Sender(manager, 8)
    manager.update_status(8, FAILED)
    recorder.close()
    found = [(e["room"], e["op"], e.get("status"), e.get("incoming"), e.get("chunk")) for e in events(tmp_path)]
    assert found == [
        (7, "create", "Bootstrapping", None, None),
        (7, "enqueue", None, None, 0),
        (7, "abort", "Failed", None, None),
        (7, "drop", None, None, 1),
        (7, "write", "Failed", "Transferring", None),
        (7, "take", None, None, 0),
        (7, "drop", None, None, 0),
        (7, "end", None, None, 0),
        (8, "create", "Bootstrapping", None, None),
        (8, "write", "Failed", "Failed", None),
    ]


def test_a_worker_that_waits_already_is_recorded_from_its_next_chunk_on(tmp_path: Path) -> None:
    """It has called the queue's own ``get`` before anybody watched."""
    manager = Manager()
    queue = manager.transfer_queues[0]
    waits = threading.Event()

    class Condition(threading.Condition):
        def wait(self, timeout: float | None = None) -> bool:
            waits.set()
            return super().wait(timeout)

    queue._condition = Condition()
    worker = threading.Thread(target=lambda: manager.transfer_worker(queue), name="worker")
    worker.start()
    waits.wait()
    recorder = record(manager, tmp_path / "log", senders=[Sender])
    sender = Sender(manager, 7)
    sender.send(last=True)
    queue.put(None)
    worker.join()
    recorder.close()
    assert "take" in [event["op"] for event in events(tmp_path)]
    assert manager.request_status == {7: SUCCESS}


def test_the_order_of_the_log_is_that_of_the_table(tmp_path: Path) -> None:
    """Eight threads write to one room; each line says what the table showed, and a store shows until the next."""
    manager = Manager()
    recorder = record(manager, tmp_path / "log")

    def write(number: int) -> None:
        for step in range(WRITES):
            manager.request_status[1] = (number + step) % 5
            if step % 50 == 0:
                manager.request_status.pop(1, None)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    last = dict.get(manager.request_status, 1)
    recorder.close()
    found = events(tmp_path)
    assert len(found) == THREADS * (WRITES + WRITES // 50)
    assert found[-1]["status"] == ("Absent" if last is None else ["Failed", "Bootstrapping", "WaitingForInput",
                                                                  "Transferring", "Success"][last])  # fmt: skip
    assert [event["time"] for event in found] == sorted(event["time"] for event in found)


def test_memory_is_bounded_and_nothing_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the writer does not keep up, whoever brings an event too many writes them down."""
    monkeypatch.setattr("kvlatch.reference.logs.recording.tape.INTERVAL", 1e6)
    tape = Tape(tmp_path / "log", ["poll"])
    most = 0
    for room in range(2 * MOST_WAITING + 5):
        tape.note("poll", room, 1)
        most = max(most, len(tape._waiting))
    assert most < MOST_WAITING
    assert len(events(tmp_path)) == 2 * MOST_WAITING
    tape.close()
    assert [event["room"] for event in events(tmp_path)] == [*range(2 * MOST_WAITING + 5)]


def test_whatever_a_room_id_is_the_log_can_be_read(tmp_path: Path) -> None:
    """Unsigned integers stay numbers, NumPy's too; all else becomes a string."""
    tape = Tape(tmp_path / "log", ["poll"])
    for room in (np.int64(5), 2**64 - 1, -3, 'a"b\n', (1, 2)):
        tape.note("poll", room, 1)  # type: ignore[arg-type]  # not what is promised, and what may come
    tape.close()
    assert [event["room"] for event in events(tmp_path)] == [5, 2**64 - 1, "-3", 'a"b\n', "(1, 2)"]
    assert check(tape.path).events == 5


def test_what_goes_wrong_ends_the_recording_and_does_not_reach_the_host(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that cannot be written, an entry that is no status: one line, and the manager serves on."""
    manager = Manager()
    recorder = record(manager, tmp_path / "log", senders=[Sender])
    file = recorder.tape._file
    assert file is not None
    os.close(file)
    recorder.tape._file = 1 << 20  # no file has that number
    sender = serve(manager, 7)
    recorder.tape.flush()
    assert sender.poll() == SUCCESS
    sender.clear()
    assert manager.request_status == {}
    other = Manager()
    record(other, tmp_path / "other", senders=[Sender])
    other.request_status[1] = object()  # type: ignore[assignment]  # what no manager keeps
    assert serve(other, 7).poll() == SUCCESS
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2
    assert all("the recording ends here" in line for line in said)


@pytest.mark.parametrize("shape", ["no table", "a list", "no writer"])
def test_a_manager_that_is_not_known_is_left_as_it_is(tmp_path: Path, shape: str) -> None:
    """Nothing is watched, no file is made, and the message names what is missing."""
    manager: Any = type("Strange", (), {})()
    if shape != "no table":
        manager.request_status = [] if shape == "a list" else {}
    if shape != "no writer":
        manager.update_status = print
    before = dict(vars(manager))
    with pytest.raises(Unknown, match="update_status" if shape == "no writer" else "request_status"):
        record(manager, tmp_path / "log")
    assert vars(manager) == before
    assert not [*tmp_path.iterdir()]


def test_a_class_is_watched_once_and_a_manager_that_is_not_recorded_is_left_alone(tmp_path: Path) -> None:
    """Watching twice is once, and its senders do what they did."""
    watch(Sender)
    watch(Sender)
    recorder = record(manager := Manager(), tmp_path / "log", senders=[Sender])
    assert serve(Manager(), 6).poll() == SUCCESS
    serve(manager, 7).poll()
    recorder.close()
    assert {event["room"] for event in events(tmp_path)} == {7}
    assert [event["op"] for event in events(tmp_path)].count("poll") == 1


def test_polls_that_are_answered_alike_are_noted_once(tmp_path: Path) -> None:
    """A scheduler polls a thousand times a second."""
    recorder = record(manager := Manager(), tmp_path / "log", senders=[Sender])
    sender = Sender(manager, 7)
    for _ in range(1000):
        sender.poll()
    manager.update_status(7, WAITING)
    sender.poll()
    recorder.close()
    polls = [event["status"] for event in events(tmp_path) if event["op"] == "poll"]
    assert polls == ["Bootstrapping", "WaitingForInput"]


def test_nothing_of_it_is_loaded_by_the_rest_of_kvlatch() -> None:
    """Off by default, and at no cost; and its own imports are the standard library's."""
    code = (
        "import sys, kvlatch.reference.logs.check\n"
        "assert not [name for name in sys.modules if 'logs.recording' in name]\n"
    )
    alone = (
        "import sys, kvlatch.reference.logs.recording.sglang\n"
        "tops = {name.partition('.')[0] for name in sys.modules} - set(sys.stdlib_module_names)\n"
        "assert not tops & {'attr', 'attrs', 'click', 'numpy', 'rich'}\n"
    )
    for text in (code, alone):
        subprocess.run([sys.executable, "-c", text], check=True)


def test_a_recorder_by_hand(tmp_path: Path) -> None:
    """Pages are noted by the caller, for a manager whose scheduler is not watched."""
    manager = Manager()
    recorder: Recorder = record(manager, tmp_path / "log", senders=[Sender], releases=True)
    sender = serve(manager, 7)
    sender.poll()
    recorder.released(7, "r1")
    recorder.released(7, "r1")
    sender.clear()
    recorder.close()
    report = check(*tmp_path.glob("*.ndjson"))
    assert [finding.law for finding in report.findings] == ["released-once"]
