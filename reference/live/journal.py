"""The status table of a live engine: every store can be delayed, all that its manager does is in the event log.

A delay comes before a store and before a lock is taken: after what the worker has looked at, before what it does.
Only transfer workers are delayed. Delays are drawn from a generator of each worker's own, so they do not
depend on the design.

A write and its line in the log are one step, so these lines have the order of the writes; one that leaves the table as
it is has a line too. Any other line is written by its thread right after what it says. The table does not know what
a thread is about: :meth:`Journal.doing` says so for the calls of the thread in between.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Final

import attrs

from kvlatch.reference.host import Watcher, status_of
from kvlatch.reference.logs.events import OPS
from kvlatch.reference.logs.write import LogWriter
from kvlatch.spec.status import KVPoll

WORKER = "worker"
LOGGED: Final = tuple(op for op in OPS if op not in ("settle", "end"))
"""The operations that an engine's log has."""


class Noise:
    """Delays transfer workers, by chance: ``chance`` at each place, evenly up to ``longest`` seconds."""

    def __init__(self, chance: float, longest: float, seed: int) -> None:
        self._chance = chance
        self._longest = longest
        self._seed = seed
        self._mine = threading.local()

    def pause(self) -> None:
        """Delay the calling thread, if it is a transfer worker and the draw says so."""
        name = threading.current_thread().name
        if not self._chance or not name.startswith(WORKER):
            return
        chance = getattr(self._mine, "random", None)
        if chance is None:
            chance = self._mine.random = random.Random(f"{self._seed} {name}")  # noqa: S311  # for no secret
        if chance.random() < self._chance:
            time.sleep(chance.uniform(0, self._longest))  # the delay itself: nothing is waited for


class NoisyLock:
    """A lock that is not taken at once."""

    def __init__(self, noise: Noise) -> None:
        self._noise = noise
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._noise.pause()
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()


class Journal:
    """What an engine's status manager does, as an event log that says everything a run of its design is judged by."""

    def __init__(self, log: LogWriter) -> None:
        self._log = log
        self._lock = threading.Lock()
        self._mine = threading.local()

    @contextmanager
    def doing(self, op: str) -> Iterator[None]:
        """Log what the calling thread does to the table inside the block as this: create, clear, abort or write."""
        self._mine.op = op
        try:
            yield
        finally:
            del self._mine.op

    def writes(self, status: KVPoll) -> None:
        """The calling thread's next changes, up to another call, are this status being written."""
        self._mine.incoming = status

    def polled(self, room: int, shows: Callable[[], KVPoll | None]) -> None:
        """A poll has returned another status than the one before; ``shows`` says what the table shows now."""
        with self._lock:
            self._log.event("poll", room, shows(), thread=threading.current_thread().name)

    def change(self, room: int, make: Callable[[], KVPoll | None]) -> None:
        """Do something to the table, which says what status it leaves, and log it, as one step."""
        op = getattr(self._mine, "op", "write")
        with self._lock:
            left = make()
            said = {"incoming": getattr(self._mine, "incoming", left)} if op == "write" else {}
            self._log.event(op, room, left, thread=threading.current_thread().name, **said)

    def did(self, op: str, room: int, **more: Any) -> None:
        """Log anything else that the calling thread has done: after the line of whatever it has seen in the table."""
        with self._lock:
            self._log.event(op, room, thread=threading.current_thread().name, **more)


@attrs.frozen(eq=False)
class Table(MutableMapping[int, Any]):
    """The status table. ``stored`` is called at each store, with the status that it left, as part of that step."""

    noise: Noise
    journal: Journal
    stored: Callable[[int, KVPoll | None], None]
    _entries: dict[int, Any] = attrs.field(factory=dict, init=False)

    def __getitem__(self, room: int) -> Any:
        return self._entries[room]

    def __setitem__(self, room: int, entry: Any) -> None:
        self.noise.pause()

        def store() -> KVPoll | None:
            self._entries[room] = entry
            self.stored(room, status_of(entry))
            return status_of(entry)

        self.journal.change(room, store)

    def __delitem__(self, room: int) -> None:
        self.pop(room)

    def pop(self, room: int, *default: Any) -> Any:
        """Remove an entry and return it, in one step."""
        self.noise.pause()
        popped: list[Any] = []

        def remove() -> KVPoll | None:
            popped.append(self._entries.pop(room, *default))
            self.stored(room, None)
            return None

        self.journal.change(room, remove)
        return popped[0]

    def __iter__(self) -> Iterator[int]:
        return iter(list(self._entries))

    def __len__(self) -> int:
        return len(self._entries)

    def peek(self, room: int) -> Any:
        """An entry, or None, without a delay: for observers."""
        return self._entries.get(room)


@attrs.frozen(eq=False)
class Reporter(Watcher):
    """Brings what a manager does into its engine's log."""

    journal: Journal
    table: Table

    def writes(self, status: KVPoll) -> None:
        self.journal.writes(status)

    def kept(self, room: int) -> None:
        self.journal.change(room, lambda: status_of(self.table.peek(room)))

    def did(self, op: str, room: int, request: int, **more: Any) -> None:
        self.journal.did(op, room, **more)
