"""One room of an event log, told: a line for each event, the one that breaks a law, and how the room ends.

The verdict is that of :func:`kvlatch.reference.logs.check.check`, by the same tables and in the same words. The log is
read in one pass. Memory is what ``check`` takes, and a line for each event of the room; consecutive polls of one thread
that are answered alike are one line.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import attrs
import numpy as np

from kvlatch.reference.logs.check import CHUNK, Pinned, Violation
from kvlatch.reference.logs.laws import EVENTS, SILENT, Event, Laws
from kvlatch.reference.logs.read import LogError, Note, open_log
from kvlatch.reference.logs.rooms import Rooms, Tables
from kvlatch.reference.story import Kind, Line, Story
from kvlatch.spec.designs import Design
from kvlatch.spec.schema import Profile

UNNAMED: Final = "log"
"""The column of events whose thread the log does not name."""


def story(
    path: Path,
    room: int,
    *,
    profile: Profile = "first terminal wins",
    design: Design | None = None,
    chunk: int = CHUNK,
    progress: Callable[[int, int], None] | None = None,
) -> Story:
    """Tell one room of a log; its steps have the numbers of the log's lines (or rows), its times begin with the room.

    A fault of the log after the room's first event is in the last sentence, and ends the story. LogError if there is no
    event of the room, or none before a fault. ``profile``, ``design``, ``chunk`` and ``progress`` are as in ``check``.
    """
    laws = Laws.of(profile, design)
    log = open_log(path, chunk, room)
    rooms, told = Rooms(Tables.of(laws)), _Told()
    violation, fault = None, ""
    try:
        for part in log.chunks:
            for broken in rooms.feed(part.rooms, part.codes, part.line):
                for at in np.flatnonzero(broken.rooms == room).tolist():
                    found = (int(column[at]) for column in (broken.lines, broken.before, broken.codes))
                    violation = Violation.of(laws, room, *found)
            for at, note in zip(np.flatnonzero(part.rooms == room).tolist(), part.notes, strict=True):
                told.add(part.line + at, int(part.codes[at]), note)
            if progress:
                progress(part.done, log.total)
    except LogError as error:
        fault = str(error)
    if not told.steps:
        count = f"{rooms.count:,} room{'' if rooms.count == 1 else 's'}"
        if fault:
            raise LogError(f"{fault}; before that, the log has {count}, and no event of room {room}")
        raise LogError(f"{path}: no event of room {room}: the log has {count}")
    revived = room in rooms.live(revived=True)[0]
    pinned = Pinned(room, told.known, revived, log.unit, None) if told.known and revived else None
    return Story(
        f"{path}, room {room}: {told.extent(log.unit)}",
        tuple(step.line(told.start) for step in told.steps),
        violation.line if violation else None,
        _sentence(told.known, violation, pinned, log.unit, fault),
    )


@attrs.define
class _Step:
    """An event of the room, or polls that were answered alike; ``before`` is the status last known before it."""

    number: int
    code: int
    before: str | None
    note: Note
    times: int = 1

    def line(self, start: float) -> Line:
        """How it is shown; its time counts from ``start``."""
        event = EVENTS[self.code]
        kind: Kind = "reads the table" if event.op == "poll" else "writes the table"
        text = _did(event, self.before) + (f" x {self.times}" if self.times > 1 else "")
        time = "" if self.note.time is None else _seconds(self.note.time - start, "+")
        return Line(self.number, _thread(self.note), text, event.after or "?", "", kind, time)


@attrs.define
class _Told:
    """The room so far. ``known`` is the status that its last event left, None if none is known."""

    steps: list[_Step] = attrs.field(factory=list)
    known: str | None = None
    last: int = 0
    times: list[float] = attrs.field(factory=list)
    """The first time of the room, the earliest and the latest; empty as long as there is none."""

    def add(self, number: int, code: int, note: Note) -> None:
        """Take in an event. A poll that repeats the answer of the one before it breaks no law, so it needs no line."""
        event, previous = EVENTS[code], self.steps[-1] if self.steps else None
        if event.op == "poll" and previous and (previous.code, previous.note.thread) == (code, note.thread):
            previous.times += 1
        else:
            self.steps.append(_Step(number, code, self.known, note))
        if code < SILENT:
            self.known = event.after
        self.last = number
        if note.time is not None:
            start, earliest, latest = self.times or [note.time] * 3
            self.times = [start, min(earliest, note.time), max(latest, note.time)]

    @property
    def start(self) -> float:
        """The time that the others count from."""
        return self.times[0] if self.times else 0.0

    def extent(self, unit: str) -> str:
        """How many events, on which lines, in how much time."""
        count, first = sum(step.times for step in self.steps), self.steps[0].number
        if count == 1:
            return f"1 event, {unit} {first}"
        span = f", {_seconds(self.times[2] - self.times[1])}" if self.times else ""
        return f"{count:,} events, {unit}s {first} to {self.last}{span}"


def _did(event: Event, before: str | None) -> str:
    """What an event did, in words; only what it did where the log does not say what came of it."""
    did = f"write {event.incoming}" if event.op == "write" and event.incoming else event.op
    after = event.after
    if event.op == "poll" or before is None or after is None:
        return did
    if before == after:
        return f"{did}: {after} stays"
    if event.op == "write" and event.incoming == after:
        return f"{did} over {before}"
    return f"{did}: {before} -> {after}"


def _thread(note: Note) -> str:
    """The name of a thread as a terminal can show it."""
    name = note.thread or UNNAMED
    return name if name.isprintable() else name.encode("unicode_escape").decode()


def _seconds(time: float, sign: str = "") -> str:
    """A time to the microsecond, as short as it can be."""
    return f"{time:{sign}.6f}".rstrip("0").rstrip(".") + " s"


def _sentence(known: str | None, violation: Violation | None, pinned: Pinned | None, unit: str, fault: str) -> str:
    """What went wrong, how the room ends, and whether that is the end of the log."""
    end = f"the last known status of the room is {known}" if known else "the status of the room in the end is not known"
    if violation is None:
        said = f"No event breaks a law, and {end}."
    else:
        end = f"the room {pinned}: it is pinned" if pinned else end
        said = f"{unit.capitalize()} {violation.line}: {violation} {end[0].upper()}{end[1:]}."
    return f"{said} {fault}; this is about what came before." if fault else said
