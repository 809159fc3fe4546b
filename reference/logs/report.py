"""What a check of logs answers. Reports of parts of the rooms add up to that of all of them (``parts.py``)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Final

import attrs

from kvlatch.reference.laws import LAWS, Broken, Judgement, Kept, NotJudged, exit_code
from kvlatch.reference.logs.ending import Ending, reasons
from kvlatch.reference.logs.events import Room
from kvlatch.reference.logs.finding import Finding
from kvlatch.reference.logs.judge import NAMED, NO_PIN
from kvlatch.reference.logs.parts import Stop
from kvlatch.spec.schema import Profile

SHOWN: Final = 10
"""Rooms that are listed under a broken law."""


@attrs.frozen(kw_only=True, slots=False)
class Report:
    """What the logs show. ``stop`` says where they could not be read any further: all else is about what came before.

    ``ending`` has all findings and counts. ``silent`` events observe nothing. ``moved`` events came late, the first of
    them ``first_moved``, and ``contradictions`` say where the order is not known; both with log and line. ``seconds``
    is the time for reading and judging. ``paths`` are the logs as they were named, ``only`` the laws that were asked
    for. ``unfinished`` says where a log ends in the middle of a line.
    """

    paths: tuple[str, ...]
    only: tuple[str, ...]
    unit: str
    version: int
    profile: Profile
    engine: str
    quiet: float
    seconds: float = attrs.field(eq=False)
    events: int
    silent: int
    tables: int
    ending: Ending
    moved: int
    first_moved: tuple[int, int, str] | None
    contradictions: tuple[tuple[int, int, str], ...]
    stop: Stop | None
    unfinished: tuple[str, ...] = ()

    @property
    def path(self) -> str:
        """The logs, in one line."""
        return ", ".join(self.paths)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The first of each law in each room, in the order of the log."""
        return self.ending.findings

    @property
    def final(self) -> dict[str, int]:
        """Entries by the status last observed; ``unobserved``: in none, or not since their last create."""
        return dict(self.ending.final)

    @property
    def running(self) -> int:
        """Entries that are on their way at the end."""
        return self.ending.running

    @property
    def left(self) -> int:
        """Entries that are in a table at the end."""
        return self.ending.left

    @property
    def rooms(self) -> int:
        """Entries of all tables."""
        return sum(self.ending.final.values())

    @property
    def error(self) -> str | None:
        """Why the logs could not be read to their end."""
        return self.stop.fault if self.stop else None

    @property
    def laws(self) -> dict[str, int]:
        """In how many rooms each broken law is broken."""
        return dict(Counter(finding.law for finding in self.findings))

    @property
    def violations(self) -> tuple[Finding, ...]:
        """What an event broke: the first finding of each room."""
        first: dict[tuple[str | None, str | None, Room], Finding] = {}
        for finding in self.findings:
            if finding.line:
                first.setdefault((finding.node, finding.rank, finding.room), finding)
        return tuple(first.values())

    @property
    def pinned(self) -> tuple[Finding, ...]:
        """The rooms that are pinned at the end."""
        return tuple(finding for finding in self.findings if finding.law == NO_PIN)

    @property
    def cautions(self) -> tuple[str, ...]:
        """What is to be known before the answers, and is no fault of the log: where it was cut off, and its order."""
        return self.unfinished + self.disorder

    @property
    def disorder(self) -> tuple[str, ...]:
        """How the order of the log and its times disagree."""
        lines = [says for _, _, says in self.contradictions]
        if self.first_moved:
            came = f"{self.moved:,} events came later in the log than in the time of their thread"
            lines.insert(0, f"{came}, and were judged in the order of time; the first: {self.first_moved[2]}")
        return tuple(line.format(unit=self.unit) for line in lines)

    @cached_property
    def judgements(self) -> tuple[Judgement, ...]:
        """An answer for each law that was asked for."""
        return tuple(self._answers())

    @property
    def exit_code(self) -> int:
        """As for every judge; 2 if the log could not be read to its end."""
        if self.stop:
            return 2
        return exit_code(self.judgements)

    def merge(self, other: Report) -> Report:
        """The report of two parts of the rooms of the same logs; any order of merging gives the same.

        ValueError for reports of other logs, other questions, or parts that ended in different places: a fault in an
        event is found only by the part that it is in, and the others have to be checked ``until`` there.
        """
        shared = ("paths", "only", "unit", "version", "profile", "engine", "quiet", "tables", "stop")
        for name in (*shared, "unfinished"):
            one, another = getattr(self, name), getattr(other, name)
            if one != another:
                raise ValueError(f"reports of one check have the same {name}, not {one} and {another}")
        return attrs.evolve(
            self,
            seconds=max(self.seconds, other.seconds),
            events=self.events + other.events,
            silent=self.silent + other.silent,
            ending=self.ending.merge(other.ending),
            moved=self.moved + other.moved,
            first_moved=min(filter(None, (self.first_moved, other.first_moved)), default=None),
            contradictions=tuple(sorted((*self.contradictions, *other.contradictions))[:NAMED]),
        )

    def _answers(self) -> Iterator[Judgement]:
        ended, why = self.ending, reasons(self.ending)
        by_law: dict[tuple[str, str], list[Finding]] = {}
        for finding in ended.findings:
            by_law.setdefault((finding.law, finding.scenario), []).append(finding)
        for law in LAWS:
            scenarios = [scenario for of, scenario in by_law if of == law]
            for scenario in scenarios or [""]:
                if self.only and law not in self.only and f"{law}/{scenario}" not in self.only:
                    continue
                found, looks = by_law.get((law, scenario), []), ended.looks.get(law, 0)
                answer: Broken | Kept | NotJudged
                if found:
                    answer = _broken(found, self.unit, self.paths)
                elif law in ended.unsaid:
                    answer = NotJudged(ended.unsaid[law].says)
                elif looks:
                    answer = Kept(looks, "room" if looks == 1 else "rooms")
                else:
                    answer = NotJudged(why.get(law, "nothing was looked at"))
                yield Judgement(law, answer, scenario, self.seconds)


def _broken(found: Sequence[Finding], unit: str, paths: Sequence[str]) -> Broken:
    """The first finding in a sentence, the first ten in the text, and how to see its room."""
    first, count = found[0], len(found)
    lines = [finding.text(unit) for finding in found[:SHOWN]]
    if count > SHOWN:
        lines.append(f"... and {count - SHOWN:,} more rooms")
    rooms = "1 room" if count == 1 else f"{count:,} rooms"
    where = paths[0] if len(paths) == 1 else None
    again = f"kvlatch show {paths[0]} --room {first.room}" if len(paths) == 1 else ""
    line = first.line if unit == "line" and first.line else None
    return Broken(f"in {rooms}; {lines[0]}", "\n".join(lines), None, again, where, line)
