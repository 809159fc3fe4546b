"""What each step of the room protocol shows in an event log: the words of ``docs/log-format.md``, row by row.

A step shows at most one thing about the table, which is logged as part of the step, since a log's line is written in
the critical section of the store. The rest are *marks*: lines that a thread writes after it has done something and
before it does the next thing. Pages and metadata are given back by whoever finds out, so these marks hold up nobody.

What no row of these names does shows nothing: a design's own row that writes a status is a ``write``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Final, NamedTuple

import attrs
import numpy as np

from kvlatch.proofs.columns import Columns, Layout
from kvlatch.proofs.search import successors
from kvlatch.spec import protocol
from kvlatch.spec.model import Action
from kvlatch.spec.status import ABSENT, TOMBSTONE, F, S
from kvlatch.spec.terms import Field, Var

ANYBODY: Final = ""
"""The thread of a mark that whoever finds out may write."""
STATUS_OPS: Final = ("create", "write", "clear")
"""Operations that are one step with their line; an ``abort`` is a write of Failed."""
_FINISHED: Final = ("", "store", "swap")
_CHUNK_OPS: Final = {"take": "take", "take_stale": "take", "post": "post", "complete": "arrive", "break": "fail"}
_CHECKS: Final = ("check_status", "check_infos")
_HEARS: Final = ("hear_metadata", "hear_stale_metadata")
_GIVES_UP: Final = ("time_out", "abort")
_TELLS: Final = {"tell_success": S, "tell_failed": F}


class Mark(NamedTuple):
    """A line that is still to be written: by which thread, which operation, about which chunk, with which status."""

    thread: str
    op: str
    chunk: int | None = None
    incoming: str | None = None

    def __str__(self) -> str:
        about = [f"chunk {self.chunk}" if self.chunk is not None else "", self.incoming or ""]
        return " ".join([*([self.thread] if self.thread else []), self.op, *filter(None, about)])


class Entered(NamedTuple):
    """What a step does to the table, as a line says it: the operation, what was written, and what then stands there."""

    op: str
    incoming: str | None
    status: str
    before: str

    def __str__(self) -> str:
        return f"{self.op}{f' {self.incoming}' if self.incoming else ''}: {self.status}"


@attrs.frozen
class Step:
    """One step from a state: its thread, the state after it, and what it shows.

    ``may`` are marks that the step may show or not: there the format leaves it to the manager. ``early`` are those that
    its thread may write before the step: a sender that gives up may set its latch and then write Failed.
    """

    thread: str
    after: int
    entered: Entered | None
    marks: tuple[Mark, ...]
    may: tuple[Mark, ...]
    early: tuple[Mark, ...] = ()


@attrs.define(eq=False)
class Observed:
    """The steps of one machine, state by state as they are asked for; ``ops`` are the operations that its log has."""

    layout: Layout
    ops: frozenset[str]
    _steps: dict[int, tuple[Step, ...]] = attrs.field(factory=dict)

    @classmethod
    def of(cls, layout: Layout, ops: Collection[str]) -> Observed:
        """The steps of the layout's machine, none of them found yet."""
        return cls(layout, frozenset(ops))

    def initial(self) -> int:
        """The state in which no request has come."""
        return int(self.layout.pack(self.layout.machine.initial()))

    def status(self, state: int) -> str:
        """What the table shows in a state."""
        var = self.layout.machine.model.ground.var(protocol.status, {"room": 0})
        return _shown(label_of(self.layout, var, state))

    def explore(self, states: Collection[int]) -> None:
        """Find the steps of these states, all at once."""
        new = np.array([state for state in states if state not in self._steps], np.uint64)
        found: dict[int, list[Step]] = {int(state): [] for state in new}
        for _, columns in Columns.blocks(self.layout, new):
            for action, rows, after in successors(self.layout.machine, columns):
                for before, then in zip(columns.packed[rows].tolist(), after.tolist(), strict=True):
                    found[before].append(self._step(action, before, then))
        self._steps.update((state, tuple(dict.fromkeys(steps))) for state, steps in found.items())

    def steps(self, state: int) -> tuple[Step, ...]:
        """The steps of a state that has been explored."""
        return self._steps[state]

    @property
    def known(self) -> int:
        """How many states have been explored."""
        return len(self._steps)

    # ----------------------------------------------------------------------------------------------------------------
    # Row by row

    def _step(self, action: Action, before: int, after: int) -> Step:
        """A step with what it shows, of the operations that the log has."""
        change = _Change(self.layout, {"room": 0, **action.arguments}, before, after)
        thread, name = action.thread, action.rule.name
        may = name == "release" and change.of(protocol.pages)[0] == "none"
        may |= name in _TELLS and not change.changes(protocol.wire)
        marks = [*self._of_chunks(action, change), *self._of_requests(action, change)]
        early = [Mark(thread, "conclude", None, word) for word in (F, S) if name in _GIVES_UP]
        sets = ([] if may else marks, marks if may else [], early)
        logged = (tuple(mark for mark in some if mark.op in self.ops) for some in sets)
        return Step(thread, after, _entered(action, change), *logged)

    def _of_chunks(self, action: Action, change: _Change) -> Iterator[Mark]:
        thread, name = action.thread, action.rule.name
        own = action.arguments.get("chunk")
        if own is None and action.rule.actor == "worker":
            own = int(change.of(protocol.job)[0])
        if name in _CHUNK_OPS:
            yield Mark(thread, _CHUNK_OPS[name], own)
        if name == "enqueue":
            yield Mark(thread, "enqueue" if change.of(protocol.chunk)[1] == "queued" else "drop", own)
        if name in _CHECKS and change.of(protocol.worker)[1] in ("idle", "failing"):
            yield Mark(thread, "drop", own)

    def _of_requests(self, action: Action, change: _Change) -> Iterator[Mark]:
        thread, name = action.thread, action.rule.name
        was, now = change.of(protocol.infos)
        if name in _TELLS:
            yield Mark(thread, "tell", None, _TELLS[name])
        if name == "admit":
            yield Mark(thread, "hold")
        if change.of(protocol.latch)[0] == "none" and change.changes(protocol.latch):
            yield Mark(thread, "conclude", None, change.of(protocol.latch)[1])
        if name in _HEARS and (was != now or change.of(protocol.bootstrap)[1] == "registered"):
            yield Mark(thread, "infos")
        if was != now == "none":
            yield Mark(ANYBODY, "forget")
        if name == "release":
            yield Mark(ANYBODY, "release")


@attrs.frozen
class _Change:
    """Two states with a step between them, as a row sees them that is about this place."""

    layout: Layout
    place: Mapping[str, int]
    before: int
    after: int

    def of(self, field: Field) -> tuple[str, str]:
        """The labels of a field before and after."""
        var = self.layout.machine.model.ground.var(field, self.place)
        return label_of(self.layout, var, self.before), label_of(self.layout, var, self.after)

    def changes(self, field: Field) -> bool:
        """The step changes the field."""
        was, now = self.of(field)
        return was != now


def _entered(action: Action, change: _Change) -> Entered | None:
    """What a step does to the table; None if it does nothing to it. A read is nothing."""
    was, now = map(_shown, change.of(protocol.status))
    if action.rule.name == "clear_status":
        return Entered("clear", None, now, was)
    if action.rule.write is None or action.part not in _FINISHED:
        return None
    return Entered("create" if action.rule.name == "create" else "write", action.rule.write, now, was)


def label_of(layout: Layout, var: Var, state: int) -> str:
    """The label of a variable in one packed state."""
    labels = layout.labels[var]
    return var.labels[int(labels[state // layout.weights[var] % len(labels)])]


def _shown(label: str) -> str:
    return ABSENT if label == TOMBSTONE else label
