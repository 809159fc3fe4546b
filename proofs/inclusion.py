"""Is every play of a published manager a run of its design's rows? Each is followed as the set of states it can mean.

A *play* (``reference/published/sglang/plays.py``) is a script on upstream's own threads, and what was seen after each
of its steps. In a step one thread moves and the others stand still, so the states that can be meant after it are those
to which the same thread of the rows can go, by rows that are about the step's operation, and that look the same: the
status, decode's metadata, what decode was told, each chunk, the inflight queue, the pages, and what a poll returned. If
none is left, the rows lack what the code does: a *difference*, of one of the kinds in ``lacks.py``, or new.

The rows are those of one worker, one chunk and one request in a disorderly network, since what a thread has received
may take effect late. Where a transfer itself tells decode of Success, that word is not compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain, combinations
from typing import Final

import attrs
import numpy as np

from kvlatch.proofs import lacks
from kvlatch.proofs.columns import Columns, Layout
from kvlatch.proofs.lacks import Kind
from kvlatch.proofs.observed import label_of
from kvlatch.proofs.reach import possible
from kvlatch.proofs.search import successors
from kvlatch.reference.published.sglang.plays import Play, Row
from kvlatch.reference.published.sglang.scripts import Observation, Op, Script, Step
from kvlatch.spec import protocol
from kvlatch.spec.designs import Design
from kvlatch.spec.model import Action, Machine
from kvlatch.spec.protocols import protocol_of
from kvlatch.spec.room import Instance
from kvlatch.spec.schema import Network
from kvlatch.spec.status import F, S, W
from kvlatch.spec.terms import Field

_ONE: Final = Instance(workers=1, chunks=1, requests=1)
_TOLD: Final[dict[str, frozenset[str]]] = {
    "none": frozenset(), F: frozenset({F}), S: frozenset({S}), "both": frozenset({F, S}),
}  # fmt: skip
_CHUNKS: Final = {
    "unsent": ((),), "queued": (("queued",),), "taken": (("queued",), ("done",), ("failed",)), "done": (("done",),),
    "lost": (("queued",), ("failed",)),
}  # fmt: skip
"""How the player shows a chunk, by what the rows say of it; one that is dropped stays queued there."""


@attrs.frozen
class _Operation:
    """The actor, the rows that it may take in the operation, and those of which it takes exactly one, if any."""

    actor: str
    rows: frozenset[str]
    once: frozenset[str] = frozenset()


def _of(actor: str, *once: str, rows: Iterable[str] = ()) -> _Operation:
    return _Operation(actor, frozenset((*once, *rows)), frozenset(once))


_CLEARS: Final = ("clear_status", "clear_infos", "release")
_OPERATIONS: Final[dict[Op, _Operation]] = {
    "create": _of("scheduler", "create"),
    "metadata": _of("bootstrap", "hear_metadata", rows=["write_w"]),
    "abort_notice": _of("bootstrap", "hear_abort", rows=["write_f", "abort_pop"]),
    "abort": _of("scheduler", "abort"),
    "send_last": _of("scheduler", "enqueue"),
    "poll": _of("scheduler", rows=["admit", "settle_failed"]),
    "timeout": _of("scheduler", rows=["admit", "settle_failed", "time_out"]),
    "clear": _of("scheduler", rows=_CLEARS),
    "settle": _of("scheduler", rows=["settle_failed", "settle_success", *_CLEARS]),
    "work": _of("worker", rows=[rule.name for rule in protocol.WORKER]),
    "break_transfer": _of(""),
}
_LEADS_TO: Final = {F: {"settle_failed", "time_out"}, W: {"admit"}}
"""The rows that follow a poll of the bootstrap queue, by what it returned; none after any other status."""
_POLLS: Final = ("poll", "timeout")
_THREADS: Final = {
    "scheduler": (protocol.scheduler, "free"), "bootstrap": (protocol.bootstrap, "idle"),
    "worker": (protocol.worker, "idle"),
}  # fmt: skip

Taken = frozenset[tuple[str, str]]
"""Of each actor whose operation goes on: which row it has taken, where it takes only one."""
Meant = tuple[int, Taken]


@attrs.frozen
class Difference:
    """The first step of a play after which no state of the rows looks like what was seen."""

    play: Play
    number: int

    def __str__(self) -> str:
        return "\n".join(
            f"  {row.thread:10} {row.op:42} {row.status:16} {row.remark}"
            for row in Row.of(self.play.until(self.number))
        )


@attrs.define(eq=False)
class Follower:
    """Follows plays on the rows of a design, and on those of some kinds besides.

    ``met`` are the states that some play can mean, ``steps`` the steps of plays, those of equal beginnings once.
    ``hears_success``: a word to decode says so, and not the transfer alone.
    """

    design: Design
    kinds: tuple[Kind, ...] = ()
    hears_success: bool = True
    network: Network = "disorderly"
    layout: Layout = attrs.field(init=False)
    met: set[int] = attrs.field(factory=set)
    steps: set[Script] = attrs.field(factory=set)
    _known: dict[int, list[tuple[Action, int]]] = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        rows = tuple(row for kind in self.kinds for row in kind.rows)
        machine = Machine.of(
            self.design, "split", self.network, _ONE, protocol_of(attrs.evolve(self.design, rows=rows))
        )
        self.layout = Layout.of(machine, possible(machine))

    @property
    def initial(self) -> int:
        """The state in which no request has come."""
        return int(self.layout.pack(self.layout.machine.initial()))

    def follow(self, play: Play) -> Difference | None:
        """The first step that no run explains; None if the play is a run.

        Nothing in the rows raises: an error is a difference, unless a kind expects it, which ends the play.
        """
        at: set[Meant] = {(self.initial, frozenset())}
        for number, step, seen in play.steps:
            if seen.error:
                expected = any(kind.expects(step.op, seen.error) for kind in self.kinds)
                return None if expected else Difference(play, number)
            at = self._after(at, step, seen, play.script[: number + 1])
            if not at:
                return Difference(play, number)
            self.steps.add(tuple(play.script[: number + 1]))
            self.met.update(state for state, _ in at)
        return None

    def reachable(self) -> int:
        """How many states the rows can reach, whoever moves."""
        found = new = {self.initial}
        while new:
            self._explore(new)
            new = {after for state in new for _, after in self._known[state]} - found
            found = found | new
        return len(found)

    # ----------------------------------------------------------------------------------------------------------------
    # One step

    def _after(self, at: set[Meant], step: Step, seen: Observation, script: Script) -> set[Meant]:
        """The states that can be meant after a step."""
        settling, sending = (_goes_on(script, op) for op in ("settle", "send_last"))
        left = set()
        for state, taken in self._moved(at, step.op):
            if not self._looks(state, seen, settling=settling, sending=sending):
                continue
            actor = _OPERATIONS[step.op].actor
            if seen.held:
                left.add((state, taken))
            elif self._ends(state, {row for of, row in taken if of == actor}, step.op, seen):
                left.add((state, frozenset(one for one in taken if one[0] != actor)))
        return left

    def _moved(self, at: set[Meant], op: Op) -> set[Meant]:
        """Wherever the operation's thread can go from these states, while the others stand still."""
        operation = _OPERATIONS[op]
        found = new = set(at)
        while new:
            self._explore({state for state, _ in new})
            new = {after for one in new for after in self._steps_of(operation, *one, only=op in _POLLS)} - found
            found = found | new
        return found

    def _steps_of(self, operation: _Operation, state: int, taken: Taken, *, only: bool) -> Iterator[Meant]:
        """One step of the operation's thread; ``only``: it takes only one row, whichever."""
        for action, after in self._known[state]:
            row = action.rule.name
            if action.rule.actor != operation.actor or not (row in operation.rows or row.startswith(lacks.PREFIX)):
                continue
            if not (row in operation.once or only) or action.part not in ("", "read"):
                yield after, taken
            elif all(of != operation.actor for of, _ in taken):
                yield after, taken | {(operation.actor, row)}

    def _looks(self, state: int, seen: Observation, *, settling: bool, sending: bool) -> bool:
        """The state looks like what was seen; the player takes a request out of its queue when it has settled."""
        told = set(_TOLD[self._label(protocol.wire, state)]) - (set() if self.hears_success else {S})
        chunks = _CHUNKS[self._label(protocol.chunk, state)]
        if self._label(protocol.worker, state) == "transferring":
            chunks = (("flying",),)
        elif sending:
            chunks = (*chunks, ("queued",))
        return (
            self._label(protocol.status, state) == seen.status
            and (self._label(protocol.infos, state) != "none") == seen.infos
            and told == {word for _, word in seen.told}
            and tuple(word for _, word in seen.chunks) in chunks
            and (settling or (self._label(protocol.phase, state) == "inflight") == bool(seen.inflight))
            and (settling or (self._label(protocol.pages, state) == "released") == bool(seen.released))
        )

    def _ends(self, state: int, taken: set[str], op: Op, seen: Observation) -> bool:
        """The operation can be over in this state, having taken these rows."""
        operation, phase = _OPERATIONS[op], self._label(protocol.phase, state)
        if operation.once and not taken:
            return False
        if operation.actor and self._label(_THREADS[operation.actor][0], state) != _THREADS[operation.actor][1]:
            return False
        can = {action.rule.name for action, _ in self._known[state]}
        if op in _POLLS:
            wanted = _LEADS_TO.get(seen.value or "", set())
            return bool(taken & wanted) if wanted else not (taken or can & {"admit", "settle_failed"})
        if op in ("clear", "settle") and phase in ("clearing", "forgetting", "releasing"):
            return False
        if op == "settle":
            stays = phase == "inflight" and not can & {"settle_failed", "settle_success"}
            is_over = phase != "inflight" and (
                not seen.ended or seen.ended[-1][1] == self._label(protocol.latch, state)
            )
            return stays or is_over
        return op != "work" or self._label(protocol.chunk, state) != "queued"

    def _label(self, field: Field, state: int) -> str:
        var = self.layout.machine.model.ground.var(field, {"room": 0, "worker": 0, "chunk": 0})
        return label_of(self.layout, var, state)

    def _explore(self, states: Collection[int]) -> None:
        """Find the steps from these states, all at once."""
        new = np.array([state for state in states if state not in self._known], np.uint64)
        self._known.update((state, []) for state in new.tolist())
        for _, columns in Columns.blocks(self.layout, new):
            for action, rows, after in successors(self.layout.machine, columns):
                for state, then in zip(columns.packed[rows].tolist(), after.tolist(), strict=True):
                    self._known[state].append((action, then))


def _goes_on(script: Sequence[Step], op: Op) -> bool:
    """The operation has begun and not ended."""
    last = next((step for step in reversed(script) if step.op == op), None)
    return last is not None and last.part not in ("whole", "finish")


# --------------------------------------------------------------------------------------------------------------------
# All plays


@attrs.frozen
class Included:
    """What came of the plays: how many were made, which differ, of which kinds, and what was met.

    ``new`` are the shortest differences of no known kind; ``shortest`` is the shortest of each kind.
    """

    design: str
    plays: int
    steps: int
    met: int
    reachable: int
    differ: int
    kinds: Counter[str]
    shortest: dict[str, Difference]
    new: tuple[Difference, ...]

    def __str__(self) -> str:
        kinds = ", ".join(f"{count:,} {name}" for name, count in sorted(self.kinds.items())) or "none"
        return (
            f"{self.design}: {self.plays:,} plays, {self.steps:,} steps, {self.differ:,} plays differ ({kinds}), "
            f"{len(self.new):,} of them in a new way; met {self.met:,} of {self.reachable:,} states"
        )


def include(
    design: Design, plays: Iterable[Play], *, hears_success: bool, known: Sequence[Kind] | None = None
) -> Included:
    """Follow each play on the design's rows, and one that differs on those of as few known kinds as explain it.

    Without ``known``, the kinds are those that the design is known to lack.
    """
    kinds = tuple(lacks.of(design.name) if known is None else known)
    rows, everything = (Follower(design, some, hears_success) for some in ((), kinds))
    few = list(chain.from_iterable(combinations(kinds, size) for size in range(1, len(kinds))))
    followers: dict[tuple[Kind, ...], Follower] = {}
    made, differ, found, new = 0, 0, Counter[str](), list[Difference]()
    shortest: dict[str, Difference] = {}
    for play in plays:
        made += 1
        difference = rows.follow(play)
        if difference is None:
            continue
        differ += 1
        if everything.follow(play) is not None:
            new.append(difference)
            continue
        for some in few:
            if some not in followers:
                followers[some] = Follower(design, some, hears_success)
            if followers[some].follow(play) is None:
                break
        else:
            some = kinds
        for kind in some:
            found[kind.name] += 1
            before = shortest.get(kind.name)
            if before is None or (len(some) == 1 and difference.number < before.number):
                shortest[kind.name] = difference
    new.sort(key=lambda one: one.number)
    return Included(
        design.name, made, len(rows.steps), len(rows.met), rows.reachable(), differ, found, shortest, tuple(new)
    )
