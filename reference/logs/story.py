"""One room of an event log, told: a line for each event, the one that breaks a law, and how the room ends.

The verdict is that of :func:`kvlatch.reference.logs.check.check`, by the same judge and in the same words. The log is
read in one pass. Memory is a batch of events, an id for each room, and a line for each event of the one that is told;
consecutive polls of one thread that are answered alike are one line.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Final

import attrs

from kvlatch.reference.logs.ending import ending
from kvlatch.reference.logs.events import TABLE_OPS, Event, LogError, Room, Unfinished, name_of
from kvlatch.reference.logs.finding import Finding
from kvlatch.reference.logs.judge import NO_PIN, QUIET, Judge
from kvlatch.reference.logs.order import Order
from kvlatch.reference.logs.read import BATCH, open_log
from kvlatch.reference.story import Kind, Line, Story
from kvlatch.spec.schema import Profile

UNNAMED: Final = "log"
"""The column of events whose thread the log does not name."""


def story(
    path: Path,
    room: Room,
    *,
    profile: Profile = "first terminal wins",
    quiet: float = QUIET,
    batch: int = BATCH,
    progress: Callable[[int, int], None] | None = None,
) -> Story:
    """Tell one room of a log, on all nodes and ranks; its steps have the numbers of the log's lines (or rows).

    A fault of the log after the room's first event is in the last sentence, and ends the story. LogError if there is no
    event of the room, or none before a fault. The other arguments are as in ``check``.
    """
    found = stories([path], [room], profile=profile, quiet=quiet, batch=batch, progress=progress)
    return found[room]


def stories(
    paths: Sequence[Path | str],
    rooms: Collection[Room],
    *,
    profile: Profile = "first terminal wins",
    quiet: float = QUIET,
    batch: int = BATCH,
    progress: Callable[[int, int], None] | None = None,
) -> dict[Room, Story]:
    """Tell several rooms of logs that are read as one, in one pass; LogError if one of them has no event there."""
    told = {room: _Told() for room in rooms}
    judge, order = Judge(profile, quiet), Order()
    seen: set[Room] = set()
    fault, unit = "", "line"
    for path in paths:
        log = open_log(path, batch)
        judge.source = f"{path}, " if len(paths) > 1 else ""
        judge.declared |= log.declared
        judge.process = order.process = log.process
        unit = log.unit
        try:
            for batched in log.batches():
                for event in order.of(batched.events):
                    seen.add(event.room)
                    if event.room not in told:
                        judge.pass_by(event)
                        continue
                    judge.feed((event,))
                    told[event.room].add(event)
                if progress:
                    progress(batched.done, log.total)
        except Unfinished:
            continue
        except LogError as error:
            fault = str(error)
            break
    name = ", ".join(map(str, paths))
    if absent := [room for room, one in told.items() if not one.steps]:
        count = f"{len(seen):,} room{'' if len(seen) == 1 else 's'}"
        if fault:
            raise LogError(f"{fault}; before that, the log has {count}, and no event of {name_of(absent[0])}")
        raise LogError(f"{name}: no event of {name_of(absent[0])}: the log has {count}")
    findings = ending(judge).findings
    return {
        room: _told(name, room, one, tuple(each for each in findings if each.room == room), unit, fault)
        for room, one in told.items()
    }


def _told(name: str, room: Room, told: _Told, findings: tuple[Finding, ...], unit: str, fault: str) -> Story:
    fatal = next((finding for finding in findings if finding.line), None)
    return Story(
        f"{name}, {name_of(room)}: {told.extent(unit)}",
        tuple(step.line(told.start, told.places) for step in told.steps),
        fatal.line if fatal else None,
        _sentence(told.known, findings, unit, fault),
    )


@attrs.define
class _Step:
    """An event of the room, or polls that were answered alike; ``before`` is the status last known before it."""

    event: Event
    before: str | None
    times: int = 1

    def line(self, start: float, places: int) -> Line:
        """How it is shown; its time counts from ``start``."""
        event = self.event
        kind: Kind = "reads the table" if event.op == "poll" else "writes the table"
        if event.op not in TABLE_OPS:
            kind = "else"
        text = _did(event, self.before) + (f" x {self.times}" if self.times > 1 else "")
        time = "" if event.time is None else _seconds(event.time - start, "+")
        entry = event.after or "?" if event.op in TABLE_OPS else self.before or "?"
        place = _table(event) if places > 1 else ""
        return Line(event.line, _thread(event, place), text, entry, "", kind, time, place)


@attrs.define
class _Told:
    """The room so far. ``known`` is the status that its last event left, None if none is known."""

    steps: list[_Step] = attrs.field(factory=list)
    entries: dict[tuple[str | None, str | None], str | None] = attrs.field(factory=dict)
    """The status last known of the room's entry in each table."""
    last: int = 0
    times: list[float] = attrs.field(factory=list)
    """The first time of the room, the earliest and the latest; empty as long as there is none."""

    @property
    def known(self) -> str | None:
        """The status last known, if the room is in one table only."""
        return next(iter(self.entries.values()), None) if self.places == 1 else None

    @property
    def places(self) -> int:
        """In how many tables the room is."""
        return len(self.entries)

    def add(self, event: Event) -> None:
        """Take in an event. A poll that repeats the answer of the one before it breaks no law, so it needs no line."""
        place, previous = (event.node, event.rank), self.steps[-1] if self.steps else None
        known = self.entries.setdefault(place, None)
        if event.op == "poll" and previous and _alike(previous.event, event):
            previous.times += 1
        else:
            self.steps.append(_Step(event, known))
        if event.op == "create" or event.after is not None:
            self.entries[place] = event.after
        self.last = max(self.last, event.line)
        if event.time is not None:
            start, earliest, latest = self.times or [event.time] * 3
            self.times = [start, min(earliest, event.time), max(latest, event.time)]

    @property
    def start(self) -> float:
        """The time that the others count from."""
        return self.times[0] if self.times else 0.0

    def extent(self, unit: str) -> str:
        """How many events, on which lines, in how much time."""
        count, first = sum(step.times for step in self.steps), min(step.event.line for step in self.steps)
        if count == 1:
            return f"1 event, {unit} {first}"
        span = f", {_seconds(self.times[2] - self.times[1])}" if self.times else ""
        return f"{count:,} events, {unit}s {first} to {self.last}{span}"


def _alike(one: Event, other: Event) -> bool:
    """Polls of one thread that show the same."""
    return (one.op, one.status, one.thread, one.node, one.rank) == (
        other.op, other.status, other.thread, other.node, other.rank,
    )  # fmt: skip


def _did(event: Event, before: str | None) -> str:
    """What an event did, in words; only what it did where the log does not say what came of it."""
    did = f"{event.op} {event.incoming}" if event.op in ("write", "tell", "conclude") and event.incoming else event.op
    did += f" of chunk {event.chunk}" if event.chunk is not None else ""
    after = event.after
    if event.op == "poll" or event.op not in TABLE_OPS or before is None or after is None:
        return f"{did}: {event.error}" if event.error else did
    if before == after:
        return f"{did}: {after} stays"
    if event.op == "write" and event.incoming == after:
        return f"{did} over {before}"
    return f"{did}: {before} -> {after}"


def _thread(event: Event, place: str) -> str:
    """The name of a thread as a terminal can show it; with its table where there are several."""
    return _shown(f"{place} {event.thread or UNNAMED}".strip())


def _table(event: Event) -> str:
    """Node and rank, as far as the log names them."""
    return _shown("/".join(part for part in (event.node, event.rank) if part is not None))


def _shown(name: str) -> str:
    return name if name.isprintable() else name.encode("unicode_escape").decode()


def _seconds(time: float, sign: str = "") -> str:
    """A time to the microsecond, as short as it can be."""
    return f"{time:{sign}.6f}".rstrip("0").rstrip(".") + " s"


def _sentence(known: str | None, findings: tuple[Finding, ...], unit: str, fault: str) -> str:
    """What went wrong, how the room ends, and whether that is the end of the log."""
    fatal = next((finding for finding in findings if finding.line), None)
    end = f"the last known status of the room is {known}" if known else "the status of the room in the end is not known"
    pinned = next((finding for finding in findings if finding.law == NO_PIN), None)
    stuck = pinned or next((finding for finding in findings if not finding.line), None)
    if stuck is not None:
        end = stuck.text(unit)
    if fatal is None:
        said = f"No event breaks a law, and {end}."
    else:
        broken = f"{unit.capitalize()} {fatal.line}: {fatal.sentence}"
        said = f"{broken}{'' if broken.endswith('.') else '.'} {end[0].upper()}{end[1:]}."
    said = f"{said[:-1]}" if said.endswith("..") else said
    return f"{said} {fault}; this is about what came before." if fault else said
