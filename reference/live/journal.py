"""The status table of a live engine: every store can be delayed, every change is written to the event log.

A delay comes before a store and before a lock is taken: after what the worker has looked at, before what it does.
Only transfer workers are delayed. Delays are drawn from a generator of each worker's own, so they do not
depend on the design.

A change and its line in the log are one step, so the lines have the order of the changes. The table does not know what
a thread is about: :meth:`Journal.doing` says so for the calls of the thread in between.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from types import TracebackType
from typing import IO, Any

import attrs

from kvlatch.reference.manager import status_of
from kvlatch.spec.status import ABSENT, KVPoll

WORKER = "worker"


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
    """An event log in the format of ``logs/read.py``, one line a change, complete whenever a process dies."""

    def __init__(self, file: IO[str], story: str) -> None:
        self._file = file
        self._start = time.monotonic()
        self._lock = threading.Lock()
        self._mine = threading.local()
        self._write({"kvlatch-log": 1, "story": story})

    @contextmanager
    def doing(self, op: str) -> Iterator[None]:
        """Log what the calling thread does to the table inside the block as this: create, clear, abort or write."""
        self._mine.op = op
        try:
            yield
        finally:
            del self._mine.op

    def polled(self, room: int, shows: Callable[[], KVPoll | None]) -> None:
        """A poll has returned another status than the one before; ``shows`` says what the table shows now."""
        with self._lock:
            self._write(self._event(room, "poll", shows()))

    def change(self, room: int, make: Callable[[], tuple[KVPoll | None, KVPoll | None]]) -> None:
        """Make a change, which says from which status to which, and log it if it is one, as one step."""
        op = getattr(self._mine, "op", "write")
        with self._lock:
            old, new = make()
            if old == new and op != "create":
                return
            event = self._event(room, op, new)
            if op == "write" and new is not None:
                event["incoming"] = new.name
            self._write(event)

    def _event(self, room: int, op: str, status: KVPoll | None) -> dict[str, object]:
        return {
            "room": room,
            "op": op,
            "status": ABSENT if status is None else status.name,
            "thread": threading.current_thread().name,
            "time": round(time.monotonic() - self._start, 6),
        }

    def _write(self, line: object) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()


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

        def store() -> tuple[KVPoll | None, KVPoll | None]:
            old, new = status_of(self._entries.get(room)), status_of(entry)
            self._entries[room] = entry
            self.stored(room, new)
            return old, new

        self.journal.change(room, store)

    def __delitem__(self, room: int) -> None:
        self.pop(room)

    def pop(self, room: int, *default: Any) -> Any:
        """Remove an entry and return it, in one step."""
        self.noise.pause()
        popped: list[Any] = []

        def remove() -> tuple[KVPoll | None, KVPoll | None]:
            popped.append(self._entries.pop(room, *default))
            self.stored(room, None)
            return status_of(popped[0]), None

        self.journal.change(room, remove)
        return popped[0]

    def __iter__(self) -> Iterator[int]:
        return iter(list(self._entries))

    def __len__(self) -> int:
        return len(self._entries)

    def peek(self, room: int) -> Any:
        """An entry, or None, without a delay: for observers."""
        return self._entries.get(room)
