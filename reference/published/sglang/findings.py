"""A broken law of published code, as it is told: the play as a table and as a trace, and the command to repeat it."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import Final

import attrs

from kvlatch.reference import played
from kvlatch.reference.laws import Broken
from kvlatch.reference.published.sglang.observers import OBSERVERS, Found, Observer
from kvlatch.reference.published.sglang.plays import Play, Row
from kvlatch.reference.published.sglang.script_text import grouped, text_of
from kvlatch.reference.published.sglang.scripts import ABSENT, Observation
from kvlatch.reference.published.sglang.subjects import Subject
from kvlatch.reference.story import Line, Story, text
from kvlatch.spec.model import Instance
from kvlatch.spec.properties import BY_NAME
from kvlatch.spec.status import F, S
from kvlatch.spec.traces import Step, Trace

_TYPED: Final = 100
"""Words of a script that fit on a command line."""


@attrs.frozen
class Finding:
    """A play that breaks a law: in which step, and how that is said. ``scenario`` is empty for a play of the user's."""

    subject: Subject
    backend: str
    law: str
    scenario: str
    play: Play
    found: Found

    @classmethod
    def of(
        cls, subject: Subject, backend: str, law: str, scenario: str, observer: Observer, play: Play
    ) -> Finding | None:
        """The finding of an observer, cut where it is seen if that much breaks the law too; None if it is kept."""
        found = observer.broken(play)
        if found is None:
            return None
        cut = play.until(found[0])
        shown = cut if observer.broken(cut) == found else play
        return cls(subject, backend, law, scenario, shown, found)

    @property
    def steps(self) -> int:
        """The length of what is shown, not counting the room's creation at its start."""
        rows = Row.of(self.play)
        return len(rows[1:] if rows and rows[0].op == "create" else rows)

    @property
    def answer(self) -> Broken:
        """The verdict."""
        return Broken(self.found[1], self.text, self.trace, self.again)

    @property
    def text(self) -> str:
        """The real run as a table."""
        rows = enumerate(Row.of(self.play), 1)
        lines = tuple(Line(number, row.thread, row.op, row.status, row.remark, "else") for number, row in rows)
        heading = f"{self.subject.name} {self.backend}; {'/'.join(filter(None, (self.law, self.scenario)))}"
        return text(Story(heading, lines, len(lines) or None, f"{self.found[1]}."))

    @property
    def only(self) -> str:
        """The law that the play breaks when judged alone; with the scenario if that has a sense of its own."""
        special = self.scenario and OBSERVERS[self.law].broken(self.play) != self.found
        return f"{self.law}/{self.scenario}" if special else self.law

    @property
    def again(self) -> str:
        """What to paste into a shell, in the folder in which this runs, to see it again."""
        words = ["kvlatch", "conform", self.subject.target, "--backend", self.backend, "--only", self.only]
        script = text_of(self.play.script)
        if len(script.split()) <= _TYPED:
            words += ["--play", script]
        return shlex.join(words)

    @property
    def trace(self) -> Trace:
        """The play as a trace, for a file: its actions are the words of the script."""
        steps = [Step(labels(self.play, None))]
        for word, number in grouped(self.play.script):
            thread = self.play.script[number].thread
            steps.append(Step(labels(self.play, number), word, {}, thread))
        requests = min(max(self.play.last.created, 1), 2)
        chunks = max([1, *(sum(owner == one for owner, _ in self.play.last.chunks) for one in (1, 2))])
        workers = len({step.thread for step in self.play.script if step.thread.startswith("worker ")}) or 1
        loop = len(steps) - 1 if self.law in BY_NAME and BY_NAME[self.law].kind == "liveness" else None
        return Trace(
            self.subject.target,
            played.atomicity(f"{self.backend} {self.only}"),
            "orderly",
            Instance(workers, chunks, requests),
            self.law,
            tuple(steps),
            loop,
        )


def known_of(trace: Trace) -> tuple[str, str]:
    """The backend that a finding's trace is of, and the law that it breaks. Raises ValueError for any other trace."""
    match played.code_of(trace).split():
        case [backend, only] if only.partition("/")[0] == trace.prop:
            return backend, only
    raise ValueError("this trace is no finding on published code")


_BEFORE: Final = Observation(ABSENT, infos=False, value=None, held=False, error=None)


def labels(play: Play, number: int | None) -> dict[str, str]:
    """What was seen after a step, or before the first (None), by the names that the spec has for such things."""
    seen = _BEFORE if number is None else play.seen[number]
    first = None
    for at, _, after, before in play.lives:
        if number is None or at > number:
            break
        first = before or (after.status if after.status in (F, S) else None)
    mine = [status for request, status in seen.told if request == seen.created and status in (F, S)]
    return {
        "status": seen.status,
        "first_terminal": first or "none",
        "infos": "present" if seen.infos else "none",
        "poll": seen.value or "",
        "request": str(seen.created),
        "chunks": _listed(f"{state} (request {owner})" for owner, state in seen.chunks),
        "inflight": str(seen.inflight),
        "ended": _listed(f"request {owner} as {status}" for owner, status in seen.ended),
        "released": _listed(f"request {owner}" for owner in seen.released),
        "wire": _listed(mine),
        "error": seen.error or "none",
        "dead": _listed(seen.dead),
    }


def _listed(words: Iterable[str]) -> str:
    return ", ".join(words) or "none"
