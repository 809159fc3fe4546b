"""The laws that somebody's code is held to, and what a judge may answer.

One catalogue for everything that is judged: an adapter, a program, a published package, a log, a live system. It is the
properties of the spec, and beside them a few laws that no formula over the spec's state can say. A *scenario* is one
way to look for a broken law on one kind of subject; ``--only terminal-sticky`` selects all scenarios of that law.

There are three answers. :class:`Kept` says how often the law could have been broken and was not, so it cannot be given
without a look; :class:`Broken` comes with a run of the subject; everything else is :class:`NotJudged`, with the reason.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, Literal

import attrs

from kvlatch.spec.properties import PROPERTIES
from kvlatch.spec.traces import Trace

NO_CRASH: Final = "no-crash"
NO_DEADLOCK: Final = "no-deadlock"
TOLD_ONCE: Final = "told-once"

LAWS: Final[Mapping[str, str]] = MappingProxyType(
    {prop.name: prop.says for prop in PROPERTIES}
    | {
        NO_CRASH: "No handler of the manager raises, and none of its threads dies.",
        NO_DEADLOCK: "The manager's threads never wait for each other in a circle, or for what never happens.",
        TOLD_ONCE: "Decode is told how a request ended exactly once, in that request's own life.",
    }
)
"""Every law, by name, in one sentence."""
RUN_OF_DESIGN: Final = "run-of-design"
ASKED_FOR: Final[Mapping[str, str]] = MappingProxyType(
    {RUN_OF_DESIGN: "What the log shows of a room is a run of the design that was named."}
)
"""What is judged only where somebody asks for it: it is about one design, and no law of every manager."""
SAYS: Final[Mapping[str, str]] = MappingProxyType({**LAWS, **ASKED_FOR})
"""Whatever a judge may answer, in one sentence."""


@attrs.frozen
class Kept:
    """Each of ``looks`` plays, rooms or calls (``unit``) could have broken the law, and none did."""

    looks: int = attrs.field(validator=attrs.validators.gt(0))
    unit: str

    def __str__(self) -> str:
        return f"{self.looks:,} {self.unit} could have broken it"


@attrs.frozen
class Broken:
    """What was seen, in one sentence, and the run that shows it: as text, as a trace, and as a command.

    ``file`` and ``line`` are the place to blame in the subject's code, where it is known.
    """

    sentence: str
    text: str = ""
    trace: Trace | None = None
    again: str = ""
    file: str | None = None
    line: int | None = None

    def __str__(self) -> str:
        return self.sentence


@attrs.frozen
class NotJudged:
    """Why nothing can be said: nothing was seen that could have broken the law."""

    why: str

    def __str__(self) -> str:
        return self.why


Verdict = Literal["kept", "broken", "not judged"]


@attrs.frozen
class Judgement:
    """The answer for one law, or for one scenario of it."""

    law: str = attrs.field(validator=attrs.validators.in_(SAYS))
    answer: Kept | Broken | NotJudged
    scenario: str = ""
    seconds: float = 0.0

    @property
    def name(self) -> str:
        """``terminal-sticky``, or ``terminal-sticky/plain``."""
        return f"{self.law}/{self.scenario}" if self.scenario else self.law

    @property
    def verdict(self) -> Verdict:
        """The answer in one word."""
        match self.answer:
            case Kept():
                return "kept"
            case Broken():
                return "broken"
            case NotJudged():
                return "not judged"

    def as_json(self) -> dict[str, object]:
        """The judgement for machines; members that would be empty are left out."""
        members: dict[str, object] = {"law": self.law, "scenario": self.scenario, "verdict": self.verdict}
        members["says"] = str(self.answer)
        match self.answer:
            case Kept(looks, unit):
                members |= {"looks": looks, "unit": unit}
            case Broken():
                members |= {"file": self.answer.file, "line": self.answer.line, "again": self.answer.again}
        return {name: value for name, value in members.items() if value not in ("", None)}


class UnknownLaw(ValueError):
    """No law, and no scenario of one, has that name."""


def select(names: Sequence[str], only: Collection[str]) -> list[str]:
    """The names of laws and scenarios that ``only`` asks for: all if it is empty, all scenarios for a law's name.

    Raises UnknownLaw for a name that selects nothing, so that a slip of the pen is never a green line.
    """
    for wanted in only:
        if not any(name == wanted or name.startswith(f"{wanted}/") for name in names):
            raise UnknownLaw(f"no law is called {wanted!r}: they are {', '.join(names)}")
    return [name for name in names if not only or name in only or name.partition("/")[0] in only]


def exit_code(judgements: Iterable[Judgement], only: Collection[str] = ()) -> int:
    """1 if a law is broken; 3 if nothing, or nothing of something named, was judged; else 0."""
    verdicts: dict[str, set[Verdict]] = {}
    for one in judgements:
        verdicts.setdefault(one.law, set()).add(one.verdict)
        verdicts.setdefault(one.name, set()).add(one.verdict)
    if any("broken" in found for found in verdicts.values()):
        return 1
    unjudged = [name for name in only if "kept" not in verdicts.get(name, set())]
    return 3 if unjudged or not any("kept" in found for found in verdicts.values()) else 0
