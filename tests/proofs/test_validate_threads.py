"""What the manager does on free threads is a run of its design, and not of one that would have done otherwise."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from random import Random
from typing import Final

import pytest

from kvlatch.proofs.validate import Refused, Run, Validated, validate
from kvlatch.reference.live.journal import LOGGED, WORKER, Journal, Noise, NoisyLock, Reporter, Table
from kvlatch.reference.logs.read import open_log
from kvlatch.reference.logs.write import LogWriter
from kvlatch.reference.manager import DesignManager
from kvlatch.spec.designs import DESIGNS, Design
from kvlatch.spec.schema import Atomicity
from kvlatch.spec.status import KVPoll

LEVELS: Final = [(name, level) for name, design in DESIGNS.items() for level in design.atomicities]
CHUNKS: Final = 2
WORKERS: Final = 2


class Server:
    """A scheduler, a bootstrap thread and two workers around a manager, with aborts from either side, as in a storm.

    It is its manager's host. Nobody waits for anybody; it ends after a number of rounds, settled or not.
    """

    def __init__(self, design: Design, level: Atomicity, log: Path, rooms: int, seed: int) -> None:
        self.random = Random(seed)  # noqa: S311  # chooses a storm, no secret
        self.rooms = range(1, rooms + 1)
        self.writer = LogWriter(log, LOGGED)
        self.journal = Journal(self.writer)
        self.entries = Table(Noise(0.0, 0.0, 0), self.journal, lambda _room, _status: None)
        self.manager = DesignManager(design, level, self, watcher=Reporter(self.journal, self.entries))
        own = WORKERS if design.queues == "sharded" else 1
        self.queues: list[SimpleQueue[tuple[int, int] | None]] = [SimpleQueue() for _ in range(own)]
        self.messages: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

    def table(self) -> Table:
        return self.entries

    def release(self, room: int, request: int) -> None:
        """Nothing is read from pages here."""

    def tell(self, room: int, request: int, status: KVPoll) -> None:
        """Decode does not listen."""

    def run(self) -> None:
        queues = [self.queues[number % len(self.queues)] for number in range(WORKERS)]
        threads = [
            threading.Thread(target=self.listen, name="bootstrap"),
            *(
                threading.Thread(target=self.work, args=(queue,), name=f"{WORKER} {n}")
                for n, queue in enumerate(queues)
            ),
        ]
        for thread in threads:
            thread.start()
        try:
            self.schedule()
        finally:
            self.messages.put(None)
            threads[0].join()
            for queue in queues:
                queue.put(None)
            for thread in threads[1:]:
                thread.join()
            self.writer.close()

    def schedule(self) -> None:
        """Every room is created, polled in turn, and settled; the aborts are drawn."""
        boot, inflight = set(self.rooms), set[int]()
        for room in self.rooms:
            with self.journal.doing("create"):
                self.manager.create(room, 1)
            self.messages.put(partial(self.manager.metadata, room, 1))
        for _ in range(400):
            for room in sorted(boot | inflight):
                if self.random.random() < 0.02:
                    with self.journal.doing("abort"):
                        self.manager.abort(room, 1)
                said = self.manager.poll(room, 1)
                if said == KVPoll.Failed or (said == KVPoll.Success and room in inflight):
                    boot.discard(room)
                    inflight.discard(room)
                    with self.journal.doing("clear"):
                        self.manager.clear(room, 1)
                elif said == KVPoll.WaitingForInput and room in boot:
                    self.journal.did("hold", room)
                    boot.discard(room)
                    inflight.add(room)
                    self.send(room)

    def send(self, room: int) -> None:
        if self.random.random() < 0.5:
            self.messages.put(partial(self.notice, room))
        for chunk in range(CHUNKS):
            if self.manager.enqueue(room, 1, chunk, chunk == CHUNKS - 1):
                self.queues[room % len(self.queues)].put((room, chunk))

    def notice(self, room: int) -> None:
        with self.journal.doing("abort"):
            self.manager.abort_notice(room, 1)

    def listen(self) -> None:
        while (message := self.messages.get()) is not None:
            message()

    def work(self, queue: SimpleQueue[tuple[int, int] | None]) -> None:
        while (job := queue.get()) is not None:
            room, chunk = job
            if self.manager.start(room, 1, chunk, chunk == CHUNKS - 1):
                self.manager.finish(room, 1, chunk, chunk == CHUNKS - 1, room % 5 > 0)


@pytest.fixture
def _often() -> Iterator[None]:
    """Threads take turns as often as they can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def judged(log: Path, design: Design, level: Atomicity) -> list[Validated]:
    opened = open_log(log)
    events = [event for batch in opened.batches() for event in batch.events]
    return list(validate(events, design, opened.declared, (level,)))


def refusals(found: list[Validated]) -> str:
    """The first refusals, for the message of a test that fails."""
    return "\n".join(str(one) for one in [one for one in found if not isinstance(one.answer, Run)][:3])


@pytest.mark.usefixtures("_often")
@pytest.mark.parametrize(("name", "level"), LEVELS)
def test_a_storm_is_a_run_of_what_was_stormed(tmp_path: Path, name: str, level: Atomicity) -> None:
    Server(DESIGNS[name], level, tmp_path / "log", rooms=40, seed=1).run()
    found = judged(tmp_path / "log", DESIGNS[name], level)
    assert Counter(type(one.answer) for one in found) == {Run: 40}, refusals(found)


@pytest.mark.thorough
@pytest.mark.usefixtures("_often")
@pytest.mark.parametrize(("name", "level"), LEVELS)
def test_many_storms_are_runs_of_what_was_stormed(tmp_path: Path, name: str, level: Atomicity) -> None:
    """More than 10,000 rooms in all."""
    for seed in range(16):
        Server(DESIGNS[name], level, tmp_path / f"log{seed}", rooms=40, seed=seed).run()
        found = judged(tmp_path / f"log{seed}", DESIGNS[name], level)
        assert Counter(type(one.answer) for one in found) == {Run: 40}, refusals(found)


# --------------------------------------------------------------------------------------------------------------------
# The incident, at the same place in every design


class Meanwhile(Noise):
    """The first time that a worker goes on to store, or to take a lock for it, something happens first."""

    def __init__(self, happens: Callable[[], None]) -> None:
        super().__init__(0.0, 0.0, 0)
        self._happens: Callable[[], None] | None = happens

    def pause(self) -> None:
        happens = self._happens
        if happens is not None and threading.current_thread().name.startswith(WORKER):
            self._happens = None
            happens()


def on(name: str, call: Callable[[], object]) -> None:
    """Do something on a thread of this name, and wait for its end."""
    thread = threading.Thread(target=call, name=name)
    thread.start()
    thread.join()


def incident(design: Design, level: Atomicity, log: Path) -> None:
    """Decode aborts while a worker is between its checks and its Transferring; then everything goes on to its end."""
    server = Server(design, level, log, rooms=1, seed=0)
    noise = Meanwhile(lambda: on("bootstrap", lambda: server.notice(7)))
    server.entries = table = Table(noise, server.journal, lambda _room, _status: None)
    manager = DesignManager(design, level, server, lambda: NoisyLock(noise), Reporter(server.journal, table))
    server.manager = manager

    def poll() -> None:
        said = manager.poll(7, 1)
        if said in (KVPoll.Failed, KVPoll.Success):
            with server.journal.doing("clear"):
                manager.clear(7, 1)

    def create() -> None:
        with server.journal.doing("create"):
            manager.create(7, 1)

    def admit() -> None:
        assert manager.poll(7, 1) == KVPoll.WaitingForInput
        server.journal.did("hold", 7)
        assert all(manager.enqueue(7, 1, chunk, chunk == CHUNKS - 1) for chunk in range(CHUNKS))

    def work(chunk: int) -> None:
        if manager.start(7, 1, chunk, chunk == CHUNKS - 1):
            manager.finish(7, 1, chunk, chunk == CHUNKS - 1, ok=True)

    on("scheduler", create)
    on("bootstrap", lambda: manager.metadata(7, 1))
    on("scheduler", admit)
    for chunk in range(CHUNKS):
        on(f"{WORKER} 0", partial(work, chunk))
    on("scheduler", poll)
    server.writer.close()


def explains(log: Path) -> set[str]:
    """The designs, each in one atomicity, of which the log is a run."""
    runs = set()
    for name, level in LEVELS:
        (only,) = judged(log, DESIGNS[name], level)
        assert isinstance(only.answer, Run | Refused), only
        if isinstance(only.answer, Run):
            runs.add(f"{name}/{level}")
    return runs


SEED: Final = {"seed-control/locked", "seed-control/split"}
FIX_B: Final = {"fix-b/locked", "fix-b/split", "fix-ab/split"}
RESURRECTED: Final = {*SEED, *FIX_B, "fix-a/split"}
STAYED_FAILED: Final = {
    "fix-a/locked", "fix-a/split", "fix-ab/locked", "fix-ab/split", "latch/locked", "latch/cas", "latch-local/locked",
    "latch-local/cas",
}  # fmt: skip
MARKS_AGAIN: Final = {"sglang-0.5.15.post1/split", "sglang-0.5.19/split"}
INCIDENTS: Final = {
    **dict.fromkeys([*SEED, "fix-a/split"], RESURRECTED),
    **dict.fromkeys(FIX_B, FIX_B),
    **dict.fromkeys(STAYED_FAILED - {"fix-a/split", "fix-ab/split"}, STAYED_FAILED),
    **dict.fromkeys(MARKS_AGAIN, MARKS_AGAIN),
    "sglang-0.5.23/split": {*RESURRECTED, "sglang-0.5.23/split"},
    "mooncake-0.5.15.post1/split": {"mooncake-0.5.15.post1/split"},
}
"""Of which designs the log of each is a run: those that do the same there. A thread may be slow, so what 0.5.23 leaves
undone, to pop the metadata, may only be late elsewhere."""


@pytest.mark.parametrize(("name", "level"), LEVELS)
def test_the_incident_is_told_from_what_others_would_have_done(tmp_path: Path, name: str, level: Atomicity) -> None:
    incident(DESIGNS[name], level, tmp_path / "log")
    assert explains(tmp_path / "log") == INCIDENTS[f"{name}/{level}"]
