"""``kvlatch replay``: a trace, played again: on the spec, and on the real status managers of published sglang wheels.

On sglang only what touches the tables is played: the trace's steps become a script (``_OPS`` says which step is what),
in the same order and the same threads, and a split update is held between its read and its store. What the workers do
inside themselves has no place in the script. So the question is exactly this: had the threads come in this order, what
would upstream's table say?

* ``write_f`` is the write of Failed, by the bootstrap thread. The real abort notice would do ``hear_abort`` and
  ``write_f`` in one go, and could not be held between its look at the table and its write.
* ``time_out`` is a write too: the trace says when the time is up, not the clock.
* ``clear_status`` is the sender's ``clear``, which pops the transfer infos in the same call. So ``clear_infos`` is
  nothing.

The verdict is by substitution. In every state of the trace the table's real status takes the place of the spec's, and
the memory of the first terminal status (``first_terminal``) is computed anew from the real ones. Then the formula of
the trace's property is asked about the last state. All else in that state is the spec's.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar, Final

import attrs
import click

from kvlatch.commands import show
from kvlatch.commands.common import Number, chosen_design, design_of_trace, refuse
from kvlatch.commands.exits import OK, USAGE, VIOLATED, Failure
from kvlatch.reference.faults import AdapterFault
from kvlatch.reference.played import is_played
from kvlatch.reference.published.sglang import scripts as sglang
from kvlatch.reference.published.sglang.scripts import Observation, Op, Part
from kvlatch.reference.published.wheels import PublishedError
from kvlatch.spec import protocol
from kvlatch.spec.designs import Design
from kvlatch.spec.model import Action
from kvlatch.spec.schema import AnyDesign, Property
from kvlatch.spec.status import ABSENT, F, S
from kvlatch.spec.terms import fields
from kvlatch.spec.traces import Run, Trace, TraceError, read, verify

_OPS: Final[dict[str, Op]] = {
    "create": "create",
    "abort": "abort",
    "admit": "poll",
    "settle_failed": "poll",
    "settle_success": "poll",
    "clear_status": "clear",
    "hear_metadata": "register",
    "hear_stale_metadata": "register",
    "abort_pop": "pop_infos",
    "conclude_pop": "pop_infos",
}
"""The rows that are something other than a write of their status; the rest of those that write nothing are nothing."""
_PARTS: Final[dict[str, Part]] = {"": "whole", "read": "begin", "store": "finish"}
_SEEN: Final = frozenset({protocol.status, protocol.first_terminal, protocol.infos})
"""What the adapter sees of a room."""


class CannotReplay(ValueError):
    """A trace that this adapter cannot play, or whose property it cannot judge; one line."""

    exit_code: ClassVar[int] = 2


@attrs.frozen
class SpecReplay:
    """What the spec says about its own trace, which has been verified."""

    steps: int
    violated: bool
    sentence: str

    def as_json(self) -> dict[str, object]:
        """The result for ``--json``."""
        return attrs.asdict(self)


@attrs.frozen
class Play:
    """One repetition: the table's status and what it had said first, and whether the last state is bad.

    ``differs`` is the first step at which the real table is not the spec's, ``error`` the first that upstream raised.
    """

    statuses: tuple[str, ...]
    first_terminal: str
    violated: bool
    differs: int | None
    error: str | None

    @property
    def ends(self) -> str:
        """The last status."""
        return self.statuses[-1]


@attrs.frozen
class Replay:
    """What a published version makes of a trace."""

    version: str
    backend: str
    prop: str
    expected: tuple[str, ...]
    plays: tuple[Play, ...]

    @property
    def violations(self) -> int:
        """In how many repetitions the property is broken."""
        return sum(play.violated for play in self.plays)

    @property
    def violated(self) -> bool:
        """The property is broken in at least one repetition."""
        return self.violations > 0

    @property
    def sentence(self) -> str:
        """The verdict, in one sentence."""
        ends = _either(
            f"was {p.first_terminal} and {_end(p)}" if p.first_terminal != "none" else f"ends {p.ends}"
            for p in self.plays
        )
        if self.violated:
            verdict = f"{self.prop} is broken, {self.violations} of {len(self.plays)}"
        else:
            verdict = f"{self.prop} holds on this trace, {len(self.plays)} of {len(self.plays)}"
        return f"sglang {self.version} {self.backend}: the room {ends}: {verdict}"

    @property
    def remarks(self) -> list[str]:
        """Where upstream leaves the trace, and what it raised; one line each."""
        lines = []
        for play, times in Counter(self.plays).items():
            what = []
            if play.differs is not None:
                step = play.differs
                what += [f"from step {step} on: {play.statuses[step]} where the trace has {self.expected[step]}"]
            if play.error is not None:
                what += [play.error]
            lines += [f"{line} ({times} of {len(self.plays)})" for line in what]
        return lines or [f"the table is the trace's in every step ({len(self.plays)} of {len(self.plays)})"]

    def as_json(self) -> dict[str, object]:
        """The result for ``--json``."""
        plays = [attrs.asdict(play) | {"times": times} for play, times in Counter(self.plays).items()]
        verdict = {"violations": self.violations, "repeat": len(self.plays), "sentence": self.sentence}
        return {"version": self.version, "backend": self.backend, "property": self.prop, **verdict, "plays": plays}


def _end(play: Play) -> str:
    return f"stays {play.ends}" if play.ends == play.first_terminal else f"ends {play.ends}"


def _either(phrases: Iterable[str]) -> str:
    """The one phrase, or each with how often it came."""
    counts = Counter(phrases)
    if len(counts) == 1:
        return str(*counts)
    return " or ".join(f"{phrase} ({times})" for phrase, times in counts.items())


def on_spec(trace: Trace, design: AnyDesign | None = None) -> SpecReplay:
    """Re-execute a trace on the spec; TraceError if the spec forbids it."""
    story = show.table(trace, design)
    steps = f"{trace.design}, {trace.atomicity}: all {len(story.lines)} steps are as the spec says"
    return SpecReplay(len(story.lines), trace.prop is not None, f"{steps}; {story.sentence}")


def on_sglang(
    trace: Trace,
    version: str,
    backend: str = "nixl",
    repeat: int = 1,
    timeout: float = 60.0,
    design: Design | None = None,
) -> Replay:
    """Play a trace on a published version, each time on a fresh manager.

    Raises CannotReplay, TraceError, or what `sglang.run` raises.
    """
    run = verify(trace, design)
    prop = _judged(run)
    if trace.atomicity == "cas":
        raise CannotReplay("the trace compares and swaps, which no published version does: take a locked or split one")
    if (rooms := trace.instance.count("room")) > 1:
        raise CannotReplay(f"the trace has {rooms} rooms, and this adapter drives one")
    played = [(number, step) for number, action in enumerate(run.actions, 1) if (step := _step(action))]
    if not played:
        raise CannotReplay("no step of the trace touches the status table")
    script = [step for _, step in played]
    runs = sglang.run(version, backend, script, repeat=repeat, timeout=timeout)
    if waited := [who for seen in runs for one in seen for who in one.waited]:
        met = "the real code does not let them meet as in the trace"
        raise AdapterFault(f"sglang {version} {backend}: {waited[0]}, which has a lock: {met}")
    expected = tuple(run.meaning.label(protocol.status, state) for state in run.states)
    plays = (_play(run, prop, expected, dict(zip((n for n, _ in played), seen, strict=True))) for seen in runs)
    return Replay(version, backend, prop.name, expected, tuple(plays))


def _judged(run: Run) -> Property:
    """The property of the trace, if it is one that the adapter sees enough for."""
    prop = run.meaning.prop
    if prop is None:
        raise CannotReplay("the trace names no property, so there is nothing to judge")
    about = {field.name for field in fields(prop.bad) if field.owner != "switch"}
    if not about & {field.name for field in _SEEN}:
        raise CannotReplay(f"{prop.name} is about {', '.join(sorted(about))}, which this adapter cannot see")
    return prop


def _step(action: Action) -> sglang.Step | None:
    """What a step of the trace is in the script; None if it does not touch the tables."""
    part = _PARTS[action.part]
    if op := _OPS.get(action.rule.name):
        return sglang.Step(action.thread, op, part)
    if action.rule.write is None:
        return None
    return sglang.Step(action.thread, "write", part, action.rule.write if part != "finish" else None)


def _play(run: Run, prop: Property, expected: tuple[str, ...], seen: dict[int, Observation]) -> Play:
    """One repetition, judged; ``seen`` by the step of the trace."""
    statuses, first = [ABSENT], "none"
    for number, action in enumerate(run.actions, 1):
        statuses.append(seen[number].status if number in seen else statuses[-1])
        if action.rule.name == "clear_status":
            first = "none"
        elif first == "none" and statuses[-1] in (F, S):
            first = statuses[-1]
    status_var, first_var = run.meaning.var(protocol.status), run.meaning.var(protocol.first_terminal)
    last = {**run.states[-1], status_var: status_var.index(statuses[-1]), first_var: first_var.index(first)}
    pairs = enumerate(zip(statuses, expected, strict=True))
    differs = next((number for number, (real, spec) in pairs if real != spec), None)
    errors = (f"step {number}: {o.error}" for number, o in seen.items() if o.error is not None)
    return Play(tuple(statuses), first, run.meaning.holds(prop.bad, last), differs, next(errors, None))


@click.command()
@click.argument("trace", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--on", "target", metavar="sglang==VERSION", help="Published code to run it on; by default, the spec.")
@click.option("--backend", default="nixl", show_default=True, help="Which manager of that code.")
@click.option("--repeat", type=click.IntRange(1, 100_000), default=1, show_default=True, help="How many times.")
@click.option("--timeout", type=Number(1), default=60.0, show_default=True, help="Seconds for all of it.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.option("--design", metavar="MODULE:NAME", help="The trace's design, if it is not one that ships.")
def replay(
    trace: Path, target: str | None, backend: str, repeat: int, timeout: float, as_json: bool, design: str | None
) -> int:
    """Execute a trace again: on the spec, or step by step on the unmodified code of a published sglang wheel.

    Exit 0 if the property holds on what was observed, 1 if it is violated.
    """
    if target is None:
        refuse(("backend", "repeat", "timeout"), "without --on: it is about published code")
    try:
        run = read(trace)
        if is_played(run):
            again = f"kvlatch conform {run.design} --play {trace}"
            raise Failure(f"{trace} is a finding of conform, which is played on its own code: {again}", USAGE)
        if target is None:
            result: SpecReplay | Replay = on_spec(run, design_of_trace(design))
        else:
            project, equal, version = target.partition("==")
            if project != "sglang" or not equal:
                raise Failure(f"--on takes sglang==VERSION, not {target!r}", USAGE)
            result = on_sglang(run, version, backend, repeat, timeout, chosen_design(design))
    except (TraceError, CannotReplay) as error:
        raise Failure(str(error), USAGE) from error
    except (AdapterFault, PublishedError) as error:
        raise Failure(str(error), error.exit_code) from error
    if as_json:
        click.echo(json.dumps(result.as_json()))
    else:
        click.echo(result.sentence)
        for remark in getattr(result, "remarks", []):
            click.echo(f"   {remark}")
    return VIOLATED if result.violated else OK
