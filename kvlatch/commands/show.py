"""``kvlatch show``: a trace, or one room of a log, as a table with a column for each thread or a Mermaid diagram.

Each ends in one sentence that says what went wrong and which step did it. A step's text is derived from the states
before and after it, so a new row of the protocol is shown without anything being added here.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import attrs
import click

from kvlatch.commands.common import (
    ROOM_ID,
    console,
    design_of_trace,
    json_option,
    profile_option,
    progress,
    put,
    refuse,
)
from kvlatch.commands.exits import OK, USAGE, Failure
from kvlatch.reference import played
from kvlatch.reference.logs.events import LogError
from kvlatch.reference.logs.read import is_log
from kvlatch.reference.logs.story import story
from kvlatch.reference.story import Kind, Line, Story, mermaid
from kvlatch.spec import protocol
from kvlatch.spec.model import Action, named
from kvlatch.spec.schema import AnyDesign, Property
from kvlatch.spec.status import ABSENT, KVPoll
from kvlatch.spec.terms import Field, State, fields
from kvlatch.spec.traces import Meaning, Trace, TraceError, read, verify

_EFFECTS: Final = frozenset({protocol.infos, protocol.latch, protocol.pages, protocol.wire})
"""What a step is said to have changed, besides the status; a chunk only if it is lost."""
_WITH_SENDER: Final = ("boot", "running", "inflight", "clearing", "forgetting")
"""The phases of a request in which there is a sender to poll."""


def table(trace: Trace, design: AnyDesign | None = None) -> Story:
    """Verify a trace and put it into words, to be printed with ``rich``; TraceError if the spec forbids it."""
    run = verify(trace, design)
    last, prop = run.states[-1], run.meaning.prop
    kind = _View if run.meaning.machine.protocol.entry else _Plain
    view = kind(run.meaning, run.meaning.broken(last) or 0)
    lines = tuple(view.line(number, *step) for number, step in enumerate(run.steps, 1))
    size = ", ".join(
        _count(number, thing)
        for thing, number in attrs.asdict(trace.instance).items()
        if thing != "rooms" or number > 1
    )
    heading = f"{trace.design}, {trace.atomicity}, {trace.network} network; {size}: {_count(len(lines), 'steps')}"
    if prop is None:
        return Story(heading, lines, None, view.end(last))
    fatal = view.fatal(prop, run.steps)
    cause = f", because {view.cause(fatal, *run.steps[fatal - 1])}" if fatal else ""
    sentence = f"{prop.name} is broken: {prop.broken.format_map(view.words(last))}{cause}."
    return Story(heading, lines, fatal, sentence)


def _count(number: int, things: str) -> str:
    return f"{number} {things.removesuffix('s') if number == 1 else things}"


@attrs.frozen(eq=False)
class _Plain:
    """How a trace of a protocol without a status table looks: each step with what it has changed."""

    meaning: Meaning
    room: int

    def line(self, number: int, action: Action, before: State, after: State) -> Line:
        pc = self.meaning.machine.protocol.threads[action.rule.actor].pc
        own = {var for var in after if var.field is pc and var.owner in action.arguments}
        changes = [
            f"{var.name} {var.labels[after[var]]}" for var in after if after[var] != before[var] and var not in own
        ]
        return Line(number, action.thread, ", ".join([str(action), *changes]), "", "", "else")

    def end(self, state: State) -> str:
        """The sentence about a run that breaks nothing."""
        return f"No property is broken: {', '.join(f'{name} {label}' for name, label in self.words(state).items())}."

    def fatal(self, prop: Property, steps: list[tuple[Action, State, State]]) -> int | None:
        """The decisive step: the last one."""
        return len(steps) or None

    def cause(self, number: int, action: Action, before: State, after: State) -> str:
        """What the decisive step did."""
        return f"in step {number} ({action} of {action.thread}) {_inside(action.rule.says)}"

    def words(self, state: State) -> Mapping[str, str]:
        """Every variable, for the sentence of a property."""
        return named(self.meaning.machine, state)


@attrs.frozen(eq=False)
class _View:
    """How one room of a trace of the room protocol looks."""

    meaning: Meaning
    room: int

    def end(self, state: State) -> str:
        """The sentence about a run that breaks nothing."""
        return f"The status is {self.of(state, protocol.status)} in the end."

    def line(self, number: int, action: Action, before: State, after: State) -> Line:
        kind: Kind = "else"
        if action.part in ("read", "retry"):
            kind = "reads the table"
        elif action.rule.write or self.of(before, protocol.status) != self.of(after, protocol.status):
            kind = "writes the table"
        text = self.text(action, before, after)
        return Line(number, action.thread, text, self.of(after, protocol.status), self.poll(after), kind)

    def of(self, state: State, field: Field) -> str:
        """A field of the room."""
        return self.meaning.label(field, state, self.room)

    def seen(self, action: Action, state: State) -> str:
        """What the acting thread has read."""
        at = action.arguments.get("worker", self.room)
        return self.meaning.label(protocol.THREADS[action.rule.actor].seen, state, at)

    def poll(self, state: State) -> str:
        """What the sender's poll would return; nothing where there is no sender."""
        if self.of(state, protocol.phase) not in _WITH_SENDER:
            return ""
        labels = (status.name for status in KVPoll)
        return next((label for label in labels if self.meaning.holds(protocol.polls(label), state, self.room)), "")

    def text(self, action: Action, before: State, after: State) -> str:
        """What the step did, in words."""
        rule = action.rule.name
        old, new = self.of(before, protocol.status), self.of(after, protocol.status)
        match action.part:
            case "read":
                return f"{rule} reads {self.seen(action, after)}"
            case "retry":
                return f"{rule} retries, reads {self.seen(action, after)}"
            case "store" | "swap":
                text = f"{rule} stores {new} (over {old})" if old != new else f"{rule} leaves {new}"
            case _ if action.rule.write and old == new:
                text = f"{action}: {new} stays"
            case _:
                text = f"{action}: {old} -> {new}" if old != new else str(action)
        return ", ".join([text, *self.effects(before, after)])

    def effects(self, before: State, after: State) -> list[str]:
        """What else the step has changed that matters to a reader."""
        changed = [var for var in after if after[var] != before[var]]
        return [
            f"{var.name} {var.labels[after[var]]}"
            for var in changed
            if var.field in _EFFECTS or (var.field is protocol.chunk and var.labels[after[var]] == "lost")
        ]

    def fatal(self, prop: Property, steps: list[tuple[Action, State, State]]) -> int | None:
        """The decisive step: the last one; or, for a property about the status, the last that changed the status."""
        if protocol.status not in fields(prop.bad) and "{status}" not in prop.broken:
            return len(steps) or None
        changes = (
            number
            for number, (_, before, after) in enumerate(steps, 1)
            if self.of(before, protocol.status) != self.of(after, protocol.status)
        )
        return max(changes, default=None)

    def cause(self, number: int, action: Action, before: State, after: State) -> str:
        """What the decisive step did."""
        old, new = self.of(before, protocol.status), self.of(after, protocol.status)
        if old == new or not action.rule.write:
            return f"in step {number} ({action}) {_inside(action.rule.says)}"
        over = f" over {old}" if old != ABSENT else ""
        if action.part and (read := self.seen(action, before)) != old:
            return f"in step {number} {action.thread} stored {new}, which it had computed from {read},{over or ' anew'}"
        return f"in step {number} {action.thread} wrote {new}{over}"

    def words(self, state: State) -> Mapping[str, str]:
        """The fields of the room for the sentence of a property; ``chunks`` sums them up: "1 done, 1 lost"."""
        names = named(self.meaning.machine, state)
        mine = {name.removesuffix(f"@{self.room}"): label for name, label in names.items()}
        counts = Counter(mine[name] for name in mine if name.startswith("chunk_") and "@" not in name)
        return mine | {"chunks": ", ".join(f"{count} {label}" for label, count in counts.items())}


def _inside(sentence: str) -> str:
    """A sentence as a part of another: a name keeps its capitals."""
    first, space, rest = sentence.rstrip(". ").partition(" ")
    return f"{first.lower() if first[1:] == first[1:].lower() else first}{space}{rest}"


@click.command()
@click.argument("file", metavar="TRACE|LOG", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--room", type=ROOM_ID, metavar="ID", help="The file is an event log: show this room of it.")
@click.option("--mermaid", "as_mermaid", is_flag=True, help="Print a Mermaid sequence diagram instead.")
@click.option("--design", metavar="NAME", help="A trace's design, if it does not ship (MODULE:NAME).")
@profile_option
@json_option("One JSON object: a line of the table is a member of `lines`.")
def show(file: Path, room: int | str | None, as_mermaid: bool, design: str | None, profile: Any, as_json: bool) -> int:
    """Show a trace, or one room of an event log, as a table with one column per thread, and say what went wrong.

    `kvlatch check LOG` lists the rooms that break a law; `kvlatch show LOG --room ID` tells one of them.
    """
    if as_json:
        refuse(("as_mermaid",), "with --json")
    if room is None:
        refuse(("profile",), "on a trace, which says itself what it breaks: it is for a log, with --room")
        shown = _trace(file, design_of_trace(design))
    else:
        refuse(("design",), "on a log: kvlatch check LOG --design NAME says which of its rooms are runs of a design")
        shown = _room(file, room, profile)
    if as_json:
        about = {"room": str(room)} if room is not None else {}
        click.echo(json.dumps({"file": str(file), **about, **shown.as_json()}))
    elif as_mermaid:
        click.echo(mermaid(shown))
    else:
        put(console(), shown)
    return OK


def _room(file: Path, room: int | str, profile: Any) -> Story:
    """The room of the log; Failure for a file that is none."""
    if file.is_file() and not is_log(file):
        raise Failure(f"{file} is not an event log, which --room is about; without it a trace is shown", USAGE)
    try:
        with progress(file.name) as done:
            return story(file, room, profile=profile, progress=done)
    except LogError as error:
        raise Failure(str(error), error.exit_code) from error


def _trace(file: Path, design: AnyDesign | None) -> Story:
    """The trace: a run of the spec, verified; or what ``conform`` has found. Failure for a file that is none."""
    try:
        if is_log(file):
            how = f"name a room with --room ID; kvlatch check {file} lists those that break a law"
            raise Failure(f"{file} is an event log: {how}", USAGE)
        trace = read(file)
        if not played.is_played(trace):
            return table(trace, design)
        refuse(("design",), "on a finding of conform: it is a run of real code")
        return played.story(trace)
    except TraceError as error:
        raise Failure(str(error), USAGE) from error
    except LogError as error:
        raise Failure(str(error), error.exit_code) from error
