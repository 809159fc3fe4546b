"""What an engine knows of itself: which request is where, and what went wrong that no status shows.

The ledger watches; it decides nothing. It is what the metrics are compared with, so it is kept apart from them: a
request's place is noted when it changes, the gauges are the lengths of the scheduler's queues.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import attrs

from kvlatch.spec.status import KVPoll

Place = Literal["boot", "running", "inflight", "done"]


@attrs.define(eq=False)
class _Decision:
    """A worker's call of ``start``, and whether an abort has been written in the room meanwhile."""

    aborted: bool = False


class PrefillLedger:
    """The prefill engine's ledger.

    A *hit* is the race of the incident: Failed was written in a room while a worker was between its look at
    the status and the end of its own write, and the worker, which had not seen it, went on with the transfer.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._places: dict[int, Place] = {}
        self._in_place: Counter[str] = Counter()
        self._changes = 0
        self._deciding: dict[int, list[_Decision]] = {}
        self._transferring: Counter[int] = Counter()
        self._counts: Counter[str] = Counter()

    def moved(self, room: int, place: Place) -> None:
        """A request is in another place."""
        with self._lock:
            if (old := self._places.get(room)) is not None:
                self._in_place[old] -= 1
            self._places[room] = place
            self._in_place[place] += 1
            self._changes += 1

    def settled(self, result: KVPoll) -> None:
        """A request has been completed or failed."""
        with self._lock:
            self._counts[result.name] += 1

    def stored(self, room: int, status: KVPoll | None) -> None:
        """The table shows this status in the room."""
        if status == KVPoll.Failed:
            with self._lock:
                for decision in self._deciding.get(room, ()):
                    decision.aborted = True

    @contextmanager
    def deciding(self, room: int) -> Iterator[list[bool]]:
        """A worker asks whether to transfer a chunk; it appends the answer to the list."""
        decision, answer = _Decision(), list[bool]()
        with self._lock:
            self._deciding.setdefault(room, []).append(decision)
        try:
            yield answer
        finally:
            with self._lock:
                self._deciding[room].remove(decision)
                if not self._deciding[room]:
                    del self._deciding[room]
                if decision.aborted and answer == [True]:
                    self._counts["hits"] += 1

    @contextmanager
    def transferring(self, room: int) -> Iterator[None]:
        """A worker is reading the request's pages."""
        with self._lock:
            self._transferring[room] += 1
        try:
            yield
        finally:
            with self._lock:
                self._transferring[room] -= 1
                if not self._transferring[room]:
                    del self._transferring[room]

    def released(self, room: int) -> None:
        """The request's pages have gone back to the pool."""
        with self._lock:
            self._counts["released"] += 1
            self._counts["released early"] += self._transferring[room] > 0

    def place(self, room: int) -> Place | None:
        """Where a request is; None for a room that never had one."""
        return self._places.get(room)

    def as_json(self, table: dict[int, KVPoll]) -> dict[str, Any]:
        """The counts, the rooms in the inflight queue with what ``table`` shows, and its entries without a request.

        Rooms are strings: JSON's numbers are too short for them.
        """
        with self._lock:
            inflight = [room for room, place in self._places.items() if place == "inflight"]
            ghosts = [room for room in table if self._places.get(room) == "done"]
            orphans = [room for room in table if room not in self._places]
            return {
                "changes": self._changes,
                "requests": {place: count for place, count in self._in_place.items() if count},
                "settled": {status: self._counts[status] for status in ("Success", "Failed")},
                "inflight": {str(room): table[room].name if room in table else "Absent" for room in inflight},
                "hits": self._counts["hits"],
                "released": self._counts["released"],
                "released_early": self._counts["released early"],
                "ghosts": [str(room) for room in ghosts],
                "orphans": [str(room) for room in orphans],
            }
