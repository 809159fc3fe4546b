"""The order of events: that of the log, but what one thread did for one room in the order of its times.

A thread does one thing after the other, and its clock tells in which order; a log is written by many threads, and a
line may come late. The places of a thread's events for a room stay what they are, among those of other threads: they
are filled in the order of time. Events without a thread or a time stay where they are. A thread whose time goes back
further than a line can be late has had its clock set: what it did afterwards comes after what it did before. Rooms are
looked at one by one, because no law is about the order of two, so that a part of the rooms has the order that it has
among all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import attrs

from kvlatch.reference.logs.events import Event, Room

LATE: Final = 10.0
"""Seconds by which a line may come late."""

Thread = tuple[str | None, str | None, str | None, str]


@attrs.define
class Order:
    """Orders logs batch by batch. ``moved`` counts events that came late; ``first``: log, line, and a line of text."""

    log: int = 0
    """The number of the log that the events are from."""
    process: str | None = None
    """Which process writes that log, if it says so."""
    moved: int = 0
    first: tuple[int, int, str] | None = None
    _last: dict[Thread, float] = attrs.field(factory=dict)

    def of(self, events: Sequence[Event]) -> Sequence[Event]:
        """The events in their order. One that belongs before those of an earlier batch stays where it is."""
        late: set[Thread] = set()
        set_back: set[int] = set()
        last = self._last
        for i, event in enumerate(events):
            if event.time is not None and event.thread is not None:
                thread = self.process, event.node, event.rank, event.thread
                latest = last.get(thread)
                if latest is not None and latest - LATE <= event.time < latest:
                    late.add(thread)
                    continue
                if latest is not None and event.time < latest:
                    set_back.add(i)
                last[thread] = event.time
        return self._ordered(events, late, set_back) if late else events

    def _ordered(self, events: Sequence[Event], late: set[Thread], set_back: set[int]) -> Sequence[Event]:
        """The events, those of the late threads room by room in the order of their times, up to where a clock was set.

        ``set_back`` are the places at which the clock of their thread was set back.
        """
        places: dict[tuple[Thread, Room, int], list[int]] = {}
        times_set: dict[Thread, int] = {}
        for i, event in enumerate(events):
            if event.time is not None and event.thread is not None:
                thread = self.process, event.node, event.rank, event.thread
                if thread in late:
                    times_set[thread] = times_set.get(thread, 0) + (i in set_back)
                    places.setdefault((thread, event.room, times_set[thread]), []).append(i)
        ordered = list(events)
        moved = []
        for at in places.values():
            latest = float("-inf")
            for i in at:
                time = events[i].time or 0.0
                if time < latest:
                    moved.append(i)
                latest = max(latest, time)
            for place, event in zip(at, sorted((events[i] for i in at), key=lambda e: e.time or 0.0), strict=True):
                ordered[place] = event
        if moved:
            self.moved += len(moved)
            first = events[min(moved)]
            says = f"{{unit}} {first.line}, thread {first.thread}: {first.time:g} s"
            self.first = self.first or (self.log, first.line, says)
        return ordered
