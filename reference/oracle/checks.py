"""The conformance oracle: hold your own status manager against the laws of ``kvlatch.spec``.

Write an adapter: nine methods that pass on to your manager what happens. Then, in your own tests::

    from kvlatch.reference.oracle.checks import Check, conforms

    @conforms(MyAdapter, known_failures={"success-not-overwritten": "we let a late failure win"})
    def test_manager(check: Check) -> None:
        check()

The oracle plays the life of a room against fresh managers (``harness.py``): every play within small bounds, on real
threads that are held before each access to the status table, shortest first; then random ones beyond (``explore.py``).
A broken law raises :class:`Violation` with the law, what was seen, the play as a table with a column for each thread,
public reports of the same kind, and the command that plays it again. A fault of the adapter is an
:class:`AdapterFault`, never a violation.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, get_args

import attrs

from kvlatch.reference.faults import AdapterFault
from kvlatch.reference.laws import NO_DEADLOCK
from kvlatch.reference.oracle.adapter import Adapter, InProcess, MakeAdapter, Probe
from kvlatch.reference.oracle.explore import STAGES, Play, explore, wander
from kvlatch.reference.oracle.formulas import labels
from kvlatch.reference.oracle.moves import Move, Player, Seen
from kvlatch.reference.story import Kind, Line, Story, text
from kvlatch.spec.model import Instance
from kvlatch.spec.properties import BY_NAME, PROPERTIES
from kvlatch.spec.schema import Profile
from kvlatch.spec.status import ABSENT
from kvlatch.spec.traces import Step as TraceStep
from kvlatch.spec.traces import Trace

if TYPE_CHECKING:
    import pytest

__all__ = [
    "CHECKS", "LAWS", "Adapter", "AdapterFault", "Check", "Finding", "MakeAdapter", "Probe", "Profile", "Report",
    "Violation", "check_manager", "conforms", "examine", "laws_of",
]  # fmt: skip

LAWS: Final[Mapping[str, str]] = MappingProxyType(
    {prop.name: prop.says for prop in PROPERTIES}
    | {NO_DEADLOCK: "The manager's threads never wait for each other's locks in a circle."}
)
"""Every law, by name, in one sentence: the twelve properties of the spec, and one of the oracle's own."""


def laws_of(profile: Profile) -> tuple[str, ...]:
    """The laws that a manager of this profile is held against."""
    other = next(name for name in get_args(Profile) if name != profile)
    return tuple(law for law in LAWS if law not in BY_NAME or BY_NAME[law].profile != other)


# --- What comes out -------------------------------------------------------------------------------


@attrs.frozen
class Finding:
    """One law that a manager breaks, and a shortest play that shows it; ``subject`` is the manager's name.

    ``walk`` is the seed of the random plays if one of those has shown it first; then the play is shrunk.
    """

    law: str
    subject: str
    play: Play
    walk: int | None = None

    @property
    def sentence(self) -> str:
        """The verdict, with what was seen."""
        return f"{self.law} is broken: {self.seen}"

    @property
    def seen(self) -> str:
        """What was seen."""
        life = self.play.life
        if self.law == NO_DEADLOCK:
            return " and ".join(f"{thread} {active.at}" for thread, active in life.active)
        chunks = ", ".join(life.chunks)
        words = {
            "status": life.polled[1] if life.polled else life.status,
            "first_terminal": life.first_terminal,
            "phase": life.phase,
            "pages": life.pages,
            "latch": life.latch,
            "wire": life.wire,
            "chunks": chunks,
        }
        return BY_NAME[self.law].broken.format(**words)

    @property
    def story(self) -> Story:
        """The play as a table."""
        heading = f"{self.subject}; {self.play.bounds}: {len(self.play.moves)} moves"
        lines = tuple(_line(number, self.play) for number in range(1, len(self.play.moves) + 1))
        return Story(heading, lines, len(lines) or None, f"{self.sentence}.")

    @property
    def command(self) -> str:
        """What to paste into a shell to see it again."""
        return f"kvlatch conform {self.subject} --play '{self.play}'"

    @property
    def text(self) -> str:
        """All of it."""
        parts = [f"the law: {self.law}: {LAWS[self.law]}", text(self.story), f"again: {self.command}"]
        if self.walk is not None:
            parts.append(f"found at random with --seed {self.walk}, and shrunk")
        if self.law in BY_NAME and (reports := BY_NAME[self.law].reports):
            parts.append(f"reports of the same kind: {', '.join(reports)}")
        return "\n\n".join(parts)

    @property
    def trace(self) -> Trace:
        """The play as a trace, for a file: the variables are the spec's, the actions are the moves."""
        bounds = self.play.bounds
        first, *lives = self.play.lives
        steps = (
            TraceStep(labels(first)),
            *(
                TraceStep(labels(life), move.event or GOES_ON, {}, move.thread)
                for move, life in zip(self.play.moves, lives, strict=True)
            ),
        )
        instance = Instance(bounds.workers, bounds.chunks, bounds.requests)
        loop = len(steps) - 1 if self.law in BY_NAME and BY_NAME[self.law].kind == "liveness" else None
        return Trace(self.subject, "threads", bounds.network, instance, self.law, steps, loop)

    def as_json(self) -> dict[str, object]:
        """The finding for machines."""
        return {"law": self.law, "sentence": self.sentence, "moves": len(self.play.moves), "play": str(self.play)}


GOES_ON: Final = "goes_on"
"""The action of a move in which a held thread goes on."""


def text_of(trace: Trace) -> str:
    """The play that a finding's trace tells, as text; ValueError if it is not such a trace."""
    moves = [
        Move(step.thread or "", None) if step.action == GOES_ON else Move.parse(_event(step))
        for step in trace.steps[1:]
    ]
    sizes = "-".join(str(trace.instance.count(sort)) for sort in ("chunk", "worker", "request"))
    return " ".join([f"{trace.network}-{sizes}", *map(str, moves)])


def _event(step: TraceStep) -> str:
    thread = step.thread or ""
    return f"{step.action}/{thread.removeprefix('worker ')}" if thread.startswith("worker ") else str(step.action)


def _line(number: int, play: Play) -> Line:
    """One move of a play, as it is shown."""
    move, seen = play.moves[number - 1], play.seen[number - 1]
    before, after = play.lives[number - 1], play.lives[number]
    call = before.call(move) if move.event is not None else dict(before.active)[move.thread].call
    what = call.event.replace("_", " ")
    if call.event in ("start", "finish", "break"):
        what += f" chunk {call.chunk}"
    if play.bounds.requests > 1 and call.event != "reuse":
        what += f" (request {call.request})"
    words = [what if move.event is not None else f"{what} goes on"]
    words += _reads(seen, 0 if move.event is not None else len(dict(before.active)[move.thread].trail))
    if before.status != after.status:
        words.append(f"{before.status} -> {after.status}")
    if seen.held is not None:
        words.append(f"... {seen.held} next")
    elif call.event == "start":
        words.append("transfers" if seen.answer else "skips")
    words += [f"releases the pages of request {request}" for request in seen.released]
    words += [f"tells decode {status.name}" for _, status in seen.told]
    kind: Kind = "writes the table" if before.status != after.status else "else"
    return Line(number, move.thread, ", ".join(words), after.status, after.polled[1] if after.polled else "", kind)


def _reads(seen: Seen, known: int) -> list[str]:
    """What the thread has read in this move, of which an onlooker has to know if it is held afterwards."""
    if seen.held is None:
        return []
    found = [value for access, value in seen.trail[known:] if access.startswith("read")]
    return [f"reads {getattr(value, 'name', value) if value is not None else ABSENT}" for value in found]


@attrs.frozen
class Report:
    """What the oracle has found out about one manager.

    ``plays`` is how many plays were made, ``complete`` that none within the stages' bounds was left out; ``walk`` is
    the seed of the random ones, None if there were none.
    """

    subject: str
    laws: tuple[str, ...]
    findings: Mapping[str, Finding]
    plays: int
    complete: bool
    walk: int | None

    @property
    def kept(self) -> tuple[str, ...]:
        """The laws of which no play broke any."""
        return tuple(law for law in self.laws if law not in self.findings)

    @property
    def summary(self) -> str:
        """One sentence."""
        how = "every play within the bounds" if self.complete else "as many plays within the bounds as the limit allows"
        beyond = "" if self.walk is None else f", and random ones beyond (seed {self.walk})"
        return f"{self.subject}: {len(self.kept)} of {len(self.laws)} laws kept; {self.plays} plays: {how}{beyond}"

    def as_json(self) -> dict[str, object]:
        """The report for machines."""
        return {
            "subject": self.subject,
            "kept": list(self.kept),
            "broken": [finding.as_json() for finding in self.findings.values()],
            "plays": self.plays,
            "complete": self.complete,
            "seed": self.walk,
        }


class Violation(AssertionError):
    """A law is broken; the text is the whole finding."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.text)
        self.finding = finding


# --- Checking -------------------------------------------------------------------------------------

LIMIT: Final = 3_000
"""How many plays are made in one stage, unless it is done before."""


def examine(
    player: Player, subject: str, laws: Collection[str], *, limit: int = LIMIT, walk: int = 0, examples: int = 40
) -> Report:
    """Hold whatever can be played against some laws; AdapterFault if it cannot be played.

    ``limit`` bounds the plays of each stage, ``examples`` the random ones for each law; 0 leaves those out.
    """
    findings: dict[str, Finding] = {}
    plays, complete = 0, True
    for bounds in STAGES:
        left = [law for law in laws if law not in findings]
        explored = explore(player, bounds, left, limit=limit)
        plays += explored.plays
        complete &= explored.complete
        findings |= {law: Finding(law, subject, play) for law, play in explored.found.items()}
    left = [law for law in laws if law not in findings]
    wandered = wander(player, left, walk=walk, examples=examples) if examples else {}
    findings |= {law: Finding(law, subject, play, walk) for law, play in wandered.items()}
    in_order = {law: findings[law] for law in laws if law in findings}
    return Report(subject, tuple(laws), in_order, plays, complete, walk if examples else None)


def check_manager(
    make_adapter: MakeAdapter, *, only: Collection[str] = (), profile: Profile = "first terminal wins", walk: int = 0
) -> Report:
    """Hold a manager against the laws of its profile, or only some; ValueError for a law that does not exist.

    ``make_adapter`` takes a :class:`Probe` and makes an adapter with a fresh manager; ``walk`` is the seed of the
    random plays. Raises :class:`AdapterFault` where the adapter cannot be driven.
    """
    _known(only)
    return _examined(make_adapter, tuple(law for law in laws_of(profile) if law in only or not only), walk)


@functools.lru_cache(maxsize=64)
def _examined(make_adapter: MakeAdapter, laws: tuple[str, ...], walk: int) -> Report:
    player = InProcess(make_adapter)
    try:
        return examine(player, name_of(make_adapter), laws, walk=walk)
    finally:
        player.close()


def name_of(make_adapter: MakeAdapter) -> str:
    """``module:name``, as the command line takes it."""
    return f"{make_adapter.__module__}:{getattr(make_adapter, '__qualname__', type(make_adapter).__qualname__)}"


def _known(laws: Collection[str]) -> None:
    for law in laws:
        if law not in LAWS:
            raise ValueError(f"no law is called {law!r}: they are {', '.join(LAWS)}")


def _check(law: str, make_adapter: MakeAdapter, profile: Profile = "first terminal wins") -> None:
    report = check_manager(make_adapter, profile=profile)
    if law in report.findings:
        raise Violation(report.findings[law])


CHECKS: Final[Mapping[str, Callable[[MakeAdapter], None]]] = MappingProxyType(
    {law: functools.partial(_check, law) for law in LAWS}
)
"""One check for each law: it takes ``make_adapter`` and raises :class:`Violation`. All share one examination."""

Check = Callable[[], None]


def conforms(
    make_adapter: MakeAdapter,
    known_failures: Mapping[str, str] | None = None,
    *,
    profile: Profile = "first terminal wins",
) -> pytest.MarkDecorator:
    """Parametrize a test with ``check``, once for each law of the profile.

    ``known_failures`` says why a law is broken, by its name. It is strict: such a check has to fail, and by a
    Violation, so that an entry goes when the manager is mended.
    """
    import pytest

    known = known_failures or {}
    _known(known)
    laws = laws_of(profile)
    if outside := [law for law in known if law not in laws]:
        raise ValueError(f"{outside[0]} is not a law of the profile {profile!r}")
    return pytest.mark.parametrize(
        "check",
        [
            pytest.param(
                functools.partial(_check, law, make_adapter, profile),
                id=law,
                marks=[pytest.mark.xfail(reason=known[law], raises=Violation, strict=True)] if law in known else [],
            )
            for law in laws
        ],
    )
