"""What ``kvlatch check --design`` adds: of each room, whether the log shows a run of that design."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Final

import attrs

from kvlatch.commands.exits import USAGE, Failure
from kvlatch.proofs.validate import Refused, Run, Unjudged, Validated, validate
from kvlatch.reference.laws import RUN_OF_DESIGN, Broken, Judgement, Kept, NotJudged
from kvlatch.reference.logs.events import Event, LogError, Room, name_of
from kvlatch.reference.logs.files import File
from kvlatch.reference.logs.order import Order
from kvlatch.reference.logs.read import open_log
from kvlatch.reference.logs.report import SHOWN
from kvlatch.spec.designs import Design
from kvlatch.spec.schema import Atomicity

_POSSIBLE: Final = 6
"""What could have come instead is listed up to so many lines, the likeliest first."""


@attrs.define
class _Logs:
    """Logs that are read as one: their lines are numbered through, so that an event is found again."""

    paths: Sequence[Path | str]
    rooms: Collection[Room]
    declared: frozenset[str] = frozenset()
    unit: str = "line"
    _lengths: list[int] = attrs.field(factory=list)

    def events(self) -> Iterator[Event]:
        """The events in the order in which they are judged, up to the first fault of a log."""
        for number, path in enumerate(self.paths):
            log, order, last = open_log(path), Order(number), 0
            self.unit, self.declared = log.unit, self.declared | log.declared
            before = sum(self._lengths)
            try:
                for batch in log.batches():
                    for event in order.of(batch.events):
                        last = max(last, event.line)
                        if not self.rooms or event.room in self.rooms:
                            yield event._replace(line=before + event.line)
            except LogError:
                return  # the laws' report says where and why
            self._lengths.append(last)

    def place(self, event: Event) -> tuple[Path | str, int]:
        """The log of an event, and its line there."""
        ends = list(accumulate(self._lengths))
        number = bisect_right(ends, event.line - 1)
        return self.paths[number], event.line - (ends[number - 1] if number else 0)


@attrs.frozen
class Runs:
    """The answer of every room, for one design."""

    design: str
    logs: _Logs
    rooms: tuple[Validated, ...]
    seconds: float

    @classmethod
    def of(cls, paths: Sequence[Path | str], design: Design, level: Atomicity | None, rooms: Collection[Room]) -> Runs:
        """Hold each room of the logs, read once more, against a design. Memory is all their events."""
        if piped := [path for path in paths if not File.of(path).regular]:
            raise Failure(f"{piped[0]}: --design reads a log twice, which a pipe does not allow: name a file", USAGE)
        if level is not None and level not in design.atomicities:
            raise Failure(f"{design.name} is no design of {level} updates, but of {_or(design.atomicities)}", USAGE)
        start = time.perf_counter()
        logs = _Logs(paths, frozenset(rooms))
        events = list(logs.events())
        found = tuple(validate(events, design, logs.declared, [level] if level else None))
        return cls(design.name, logs, found, time.perf_counter() - start)

    @property
    def refused(self) -> list[tuple[Validated, Refused]]:
        """The rooms that are no runs, each with the event that no run explains."""
        return [(room, room.answer) for room in self.rooms if isinstance(room.answer, Refused)]

    @property
    def unjudged(self) -> Counter[str]:
        """How many rooms cannot be judged, by the reason."""
        return Counter(room.answer.why for room in self.rooms if isinstance(room.answer, Unjudged))

    @property
    def judgement(self) -> Judgement:
        """The answer for all rooms."""
        return Judgement(RUN_OF_DESIGN, self._answer(), seconds=self.seconds)

    @property
    def notes(self) -> tuple[str, ...]:
        """What was not judged."""
        some = [f"{_rooms(count)} not judged: {why}" for why, count in self.unjudged.most_common()]
        return tuple(some) if len(self.rooms) > self.unjudged.total() else ()

    def _answer(self) -> Broken | Kept | NotJudged:
        refused = self.refused
        if refused:
            lines = [self._line(room, answer) for room, answer in refused[:SHOWN]]
            if len(refused) > SHOWN:
                lines.append(f"... and {len(refused) - SHOWN:,} more rooms")
            path, line = self.logs.place(refused[0][1].event)
            one = len(self.logs.paths) == 1
            again = f"kvlatch show {path} --room {refused[0][0].room}" if one else ""
            here = (str(path), line) if self.logs.unit == "line" else (None, None)
            says = f"{_rooms(len(refused))} of {len(self.rooms):,} are no run of {self.design}; {lines[0]}"
            return Broken(says, "\n".join(lines), None, again, *here)
        if runs := sum(isinstance(room.answer, Run) for room in self.rooms):
            return Kept(runs, f"{'room' if runs == 1 else 'rooms'}, each a run of {self.design},")
        return NotJudged("; ".join(why for why, _ in self.unjudged.most_common(3)) or "the log shows no room")

    def _line(self, room: Validated, answer: Refused) -> str:
        """The event that no run explains, and what could have come there."""
        path, line = self.logs.place(answer.event)
        where = f"{path}, " if len(self.logs.paths) > 1 else ""
        before = f"the {answer.explained:,} before it are explained" if answer.explained else "it is the room's first"
        possible = "; ".join(answer.could[:_POSSIBLE])
        more = f"; and {len(answer.could) - _POSSIBLE:,} more" if len(answer.could) > _POSSIBLE else ""
        name = name_of(room.room, room.node, room.rank)
        return (
            f"{name}, {where}{self.logs.unit} {line}: {_said(answer.event)}: no run of {self.design} explains this "
            f"event ({before}); possible there: {possible or 'nothing'}{more}"
        )

    def members(self) -> dict[str, object]:
        """For machines; ids are strings."""
        return {
            "design": self.design,
            "runs": sum(isinstance(room.answer, Run) for room in self.rooms),
            "no_runs": [self._member(room, answer) for room, answer in self.refused],
            "not_judged": dict(self.unjudged.most_common()),
        }

    def _member(self, room: Validated, answer: Refused) -> dict[str, object]:
        path, line = self.logs.place(answer.event)
        members: dict[str, object | None] = {
            "room": str(room.room), "node": room.node, "rank": room.rank, "log": str(path), self.logs.unit: line,
            "event": _said(answer.event), "explained": answer.explained, "possible": list(answer.could),
        }  # fmt: skip
        return {name: value for name, value in members.items() if value is not None}


def _said(event: Event) -> str:
    """An event in words: ``worker 0 write Transferring: Failed``."""
    chunk = f"chunk {event.chunk}" if event.chunk is not None else None
    words = " ".join(filter(None, (event.thread, event.op, chunk, event.incoming)))
    return f"{words}: {event.after}" if event.after else words


def _rooms(count: int) -> str:
    return "1 room" if count == 1 else f"{count:,} rooms"


def _or(levels: Sequence[str]) -> str:
    return " or ".join(levels)
