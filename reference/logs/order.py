"""The order of events: that of the log, but those of one thread in the order of their times.

A thread does one thing after the other, and its clock tells in which order; a log is written by many threads, and a
line may come late. The places of a thread's events stay what they are, among those of other threads: they are filled
in the order of time. Events without a thread or a time stay where they are.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from kvlatch.reference.logs.events import Event

Thread = tuple[str | None, str | None, str]


@attrs.define
class Order:
    """Orders a log batch by batch. ``moved`` counts events that stood in the wrong place, ``first`` says where."""

    moved: int = 0
    first: str = ""
    _last: dict[Thread, float] = attrs.field(factory=dict)

    def of(self, events: Sequence[Event]) -> Sequence[Event]:
        """The events in their order. One that belongs before those of an earlier batch stays where it is."""
        late: set[Thread] = set()
        last = self._last
        for event in events:
            if event.time is not None and event.thread is not None:
                thread = event.node, event.rank, event.thread
                latest = last.get(thread)
                if latest is not None and event.time < latest:
                    late.add(thread)
                    self.moved += 1
                    self.first = self.first or f"{{unit}} {event.line}, thread {event.thread}: {event.time:g} s"
                else:
                    last[thread] = event.time
        if not late:
            return events
        ordered = list(events)
        for thread in late:
            at = [i for i, e in enumerate(events) if e.time is not None and (e.node, e.rank, e.thread) == thread]
            mine = sorted((events[i] for i in at), key=lambda event: event.time or 0.0)
            for place, event in zip(at, mine, strict=True):
                ordered[place] = event
        return ordered
