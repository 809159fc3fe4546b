"""Is a log a run of a design? Each room is followed as the set of states that can be meant.

A log shows some of what happened, never all: a read, a step of a worker that logs nothing, a message that was lost. So
a room is followed as a set: every state in which a run of the design can be after these lines. Silent steps are closed
over; a line keeps the states that it can be said of. If none is left, no run of the design writes this log, and the
line is the first that none explains. Nothing is refused for what a log does not say: operations that it does not have
are silent, and every network is allowed, with messages lost, early, late and, where the design allows it, doubled.

**When a line is written.** A change of the status table and its line are one step. Any other line is written by its
thread after what it says and before the next thing that the thread does: in between it is *owed*, and other threads may
go on. A write that leaves the table as it is may be logged either way.

**How it stays cheap.** Sets are numbered, and what a line makes of a set is remembered: a deterministic automaton, as
far as the logs ask for it. Rooms of one shape share it, and most rooms of a log go the same few ways.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cache
from typing import Final, NamedTuple

import attrs

from kvlatch.proofs.columns import Layout, TooLarge
from kvlatch.proofs.observed import ANYBODY, Entered, Mark, Observed, Step
from kvlatch.proofs.reach import possible
from kvlatch.reference.logs.events import EXPECTS, Event, Room
from kvlatch.spec.designs import Design
from kvlatch.spec.model import Machine
from kvlatch.spec.protocols import protocol_of
from kvlatch.spec.room import MAX_CHUNKS, Instance
from kvlatch.spec.schema import ANY, Atomicity
from kvlatch.spec.status import F

NEEDED: Final = ("create", "write", "clear", "infos", "enqueue", "take", "tell")
"""Operations without which logs of different designs look alike."""
LIMIT: Final = 50_000
"""States in a set beyond which a room is not judged."""
_UNBORN: Final = ("infos", "forget", "poll", "end", "abort")
"""What can happen to a room before its request comes: decode's messages arrive early."""
_TOLD_APART: Final = 2
"""Requests on a room id that the spec tells one by one; of more it knows "this one" and "any older one"."""
_WORKER: Final = "worker "
_UNKNOWN: Final = "?"

Key = tuple[str | None, str | None, Room]


@attrs.frozen
class Run:
    """The room is a run of the design, in that atomicity."""

    level: Atomicity
    events: int


@attrs.frozen
class Refused:
    """No run of the design explains the event, though one explains those before it; what could have come instead."""

    event: Event
    could: tuple[str, ...]
    explained: int
    """How many events of the room one run explains."""


@attrs.frozen
class Unjudged:
    """Whether the room is a run of the design cannot be said."""

    why: str


Answer = Run | Refused | Unjudged


@attrs.frozen
class Validated:
    """The answer about one room of one table."""

    node: str | None
    rank: str | None
    room: Room
    answer: Answer


def validate(
    events: Iterable[Event],
    design: Design,
    declared: Collection[str] = (),
    levels: Sequence[Atomicity] | None = None,
) -> Iterator[Validated]:
    """Hold every room of a log, in its order, against a design of the room protocol.

    ``declared`` are the operations that the log says it has; where it does not say, those that occur. A room is a run
    if it is one in some of ``levels``; without any, in some atomicity that the design claims.
    """
    rooms: dict[Key, list[Event]] = {}
    ops: dict[tuple[str | None, str | None], set[str]] = {}
    ends: set[tuple[str | None, str | None]] = set()
    for event in events:
        table = event.node, event.rank
        rooms.setdefault((*table, event.room), []).append(event)
        ops.setdefault(table, set()).add(event.op)
        if event.last:
            ends.add(table)
    for (node, rank, room), of_room in rooms.items():
        logged = frozenset(declared or ops[node, rank])
        answer = _answer(of_room, design, levels or design.atomicities, logged, (node, rank) in ends)
        yield Validated(node, rank, room, answer)


def _answer(
    events: Sequence[Event], design: Design, levels: Sequence[Atomicity], logged: frozenset[str], says_last: bool
) -> Answer:
    if lacks := [op for op in NEEDED if op not in logged]:
        return Unjudged(f"the log has no {', '.join(lacks)}, and without them logs of different designs look alike")
    shape = _shape(events, says_last)
    if isinstance(shape, Unjudged):
        return shape
    words = list(_words(events, shape))
    answers: list[Answer] = []
    for level in levels:
        for instance in shape.instances:
            try:
                answers.append(_automaton(design, level, instance, logged).follow(events, words, level))
            except TooLarge as error:
                answers.append(Unjudged(str(error)))
            if isinstance(answers[-1], Run):
                return answers[-1]
            if isinstance(answers[-1], Refused) and not _all_cleared(events[: answers[-1].explained]):
                break  # no further request can have come
            if instance is not shape.instances[-1]:
                answers.pop()
    unjudged = [answer for answer in answers if isinstance(answer, Unjudged)]
    if unjudged:
        return unjudged[0]
    furthest = max((answer for answer in answers if isinstance(answer, Refused)), key=lambda answer: answer.explained)
    return attrs.evolve(furthest, could=tuple(map(shape.as_logged, furthest.could)))


def _all_cleared(events: Sequence[Event]) -> bool:
    """Every request that has come has been cleared."""
    ops = Counter(event.op for event in events)
    return ops["clear"] >= ops["create"]


# --------------------------------------------------------------------------------------------------------------------
# The shape of a room: how many workers, chunks and requests


@attrs.frozen
class _Shape:
    """``instances``: with as many requests as were created, and with one more, whose metadata may come before it."""

    instances: tuple[Instance, ...]
    workers: dict[str, int]
    chunks: dict[int, int]

    def as_logged(self, line: str) -> str:
        """A line of the spec with the log's own names of workers, and its numbers of chunks."""
        words = line.split(" ")
        workers, chunks = ({number: name for name, number in some.items()} for some in (self.workers, self.chunks))
        if f"{words[0]} " == _WORKER:
            words[:2] = [str(workers.get(int(words[1]), f"{_WORKER}{words[1]}"))]
        if "chunk" in words:
            at = words.index("chunk") + 1
            words[at] = str(chunks.get(int(words[at]), words[at]))
        return " ".join(words)


def _shape(events: Sequence[Event], says_last: bool) -> _Shape | Unjudged:
    """What an instance of the room needs; Unjudged where the log does not say it, or the spec has no such instance."""
    creates = sum(event.op == "create" for event in events)
    first = next((i for i, event in enumerate(events) if event.op == "create"), len(events))
    early = [event for event in events[:first] if not _unborn(event)]
    if not creates or early:
        return Unjudged("the log begins, or goes on, where the room's request was under way")
    if any(event.op in EXPECTS["chunk"] and event.thread is None for event in events if event.op != "enqueue"):
        return Unjudged("its events do not say which thread did what")
    workers: dict[str, int] = {}
    for event in events:
        if event.op == "take" and event.thread is not None:
            workers.setdefault(event.thread, len(workers))
    numbers = sorted({event.chunk for event in events if event.chunk is not None})
    chunks = {number: index for index, number in enumerate(numbers)}
    if chunks and not says_last:
        return Unjudged("no chunk is said to be the last one")
    lasts = {chunks[event.chunk] for event in events if event.last and event.chunk is not None}
    if len(lasts) > 1 or any(last != len(chunks) - 1 for last in lasts):
        return Unjudged("its requests have different numbers of chunks, which no instance of the spec has")
    count = len(chunks) if lasts else len(chunks) + 1
    if count > MAX_CHUNKS:
        return Unjudged(f"it has {count} chunks or more, and instances of the spec have at most {MAX_CHUNKS}")
    try:
        sizes = dict.fromkeys(requests if requests <= _TOLD_APART else ANY for requests in (creates, creates + 1))
        instances = tuple(Instance(max(1, len(workers)), count, requests) for requests in sizes)
    except ValueError as error:
        return Unjudged(str(error))
    return _Shape(instances, workers, chunks)


def _unborn(event: Event) -> bool:
    return event.op in _UNBORN or (event.op == "write" and event.incoming in ("WaitingForInput", F))


# --------------------------------------------------------------------------------------------------------------------
# Following


class Word(NamedTuple):
    """An event as a design sees it: threads and chunks by their number in the room."""

    op: str
    incoming: str | None
    status: str | None
    thread: str
    chunk: int | None


def _words(events: Sequence[Event], shape: _Shape) -> Iterator[Word]:
    for event in events:
        thread = _UNKNOWN if event.thread is None else ""
        if event.thread in shape.workers:
            thread = f"{_WORKER}{shape.workers[event.thread]}"
        op, incoming = ("write", F) if event.op == "abort" else (event.op, event.incoming)
        chunk = None if event.chunk is None or op not in EXPECTS["chunk"] else shape.chunks[event.chunk]
        yield Word(op, incoming, event.after, thread, chunk)


Owed = tuple[Mark, ...]
Meant = tuple[int, Owed]
"""A state, and the lines that its threads still have to write, in a fixed order."""


@cache
def _automaton(design: Design, level: Atomicity, instance: Instance, ops: frozenset[str]) -> Automaton:
    machine = Machine.of(design, level, "disorderly", instance, protocol_of(design))
    return Automaton(Observed.of(Layout.of(machine, possible(machine)), ops))


@attrs.define(eq=False)
class Automaton:
    """Sets of states of one machine, and what each line makes of them, as far as they have been asked for.

    ``largest`` is the size of the largest set; a set beyond ``LIMIT`` is not kept.
    """

    observed: Observed
    sets: list[frozenset[Meant]] = attrs.field(factory=list)
    largest: int = 0
    _number: dict[frozenset[Meant], int] = attrs.field(factory=dict)
    _next: dict[tuple[int, Word], int | None] = attrs.field(factory=dict)

    def follow(self, events: Sequence[Event], words: Sequence[Word], level: Atomicity) -> Answer:
        """Follow the events of one room, each with its word."""
        at = self._add({(self.observed.initial(), ())})
        for explained, (event, word) in enumerate(zip(events, words, strict=True)):
            if at is None:
                return Unjudged(f"more than {LIMIT:,} states of the design can be meant")
            after = self._after(at, word)
            if after == _NOTHING:
                return Refused(event, self._could(at), explained)
            at = after
        return Run(level, len(events)) if at is not None else Unjudged("more states than are followed can be meant")

    def _add(self, meant: set[Meant]) -> int | None:
        """The number of the set with everything that silent steps lead to; None if it is too large."""
        closed = self._closed(meant)
        if closed is None:
            return None
        self.largest = max(self.largest, len(closed))
        number = self._number.setdefault(closed, len(self.sets))
        if number == len(self.sets):
            self.sets.append(closed)
        return number

    def _closed(self, meant: set[Meant]) -> frozenset[Meant] | None:
        closed, new = set(meant), list(meant)
        while new:
            self.observed.explore({state for state, _ in new})
            found: set[Meant] = set()
            for state, owed in new:
                for step in self._free(state, owed):
                    found.update(_silently(step, owed))
            new = [one for one in found if one not in closed]
            closed.update(new)
            if len(closed) > LIMIT:
                return None
        return frozenset(closed)

    def _after(self, at: int, word: Word) -> int | None:
        """The number of the set after a line; None if it is too large, _NOTHING if it is empty."""
        key = at, word
        if key not in self._next:
            left = set(self._left(self.sets[at], word))
            self._next[key] = self._add(left) if left else _NOTHING
        return self._next[key]

    def _left(self, meant: frozenset[Meant], word: Word) -> Iterator[Meant]:
        """The states of which the line can be said, after it."""
        if word.op in ("settle", "end") or (word.op not in ("poll", "create", "write", "clear") and _is_unheard(word)):
            yield from meant
            return
        for state, owed in meant:
            if word.op == "poll":
                if word.status in (None, self.observed.status(state)):
                    yield state, owed
                continue
            for mark in dict.fromkeys(owed):
                if _says(word, mark) and (mark.op not in _ENTERS or word.status in (None, self.observed.status(state))):
                    rest = list(owed)
                    rest.remove(mark)
                    yield state, tuple(rest)
            for step in self._free(state, owed) if word.op in (*_ENTERS, "conclude") else ():
                if step.entered is not None and _enters(word, step.thread, step.entered):
                    yield from _marked(step, owed)
                for mark in step.early:
                    if _says(word, mark):
                        yield state, _ordered((*owed, mark._replace(op=_SAID)))

    def _free(self, state: int, owed: Owed) -> Iterator[Step]:
        """The steps of threads that have written their lines."""
        busy = {mark.thread for mark in owed if mark.op != _SAID}
        yield from (step for step in self.observed.steps(state) if step.thread not in busy)

    def _could(self, at: int) -> tuple[str, ...]:
        """What lines there could have been: the likeliest first, those that most of the states allow."""
        found: Counter[str] = Counter()
        for state, owed in self.sets[at]:
            could = {str(mark) for mark in owed if mark.op != _SAID}
            could.update(f"{step.thread} {step.entered}" for step in self._free(state, owed) if step.entered)
            found.update(could)
        return tuple(line for line, _ in sorted(found.items(), key=lambda one: (-one[1], one[0])))


_NOTHING: Final = -1
_SAID: Final = "said"
"""The operation of a mark that its thread has written early: its next step that shows anything must be that step."""
_ENTERS: Final = ("create", "write", "clear")


def _is_unheard(word: Word) -> bool:
    """The log has the operation, and no row of the protocol does it."""
    return word.op not in {
        "infos", "forget", "hold", "release", "enqueue", "drop", "take", "post", "arrive", "fail", "tell", "conclude",
    }  # fmt: skip


def _silently(step: Step, owed: Owed) -> Iterator[Meant]:
    """The step without a line now; a change of the table must have its line at once, unless it changes nothing."""
    if step.entered is None:
        yield from _marked(step, owed)
    elif step.entered.status == step.entered.before:
        kept = Mark(step.thread, step.entered.op, None, step.entered.incoming)
        yield from _marked(step, (*owed, kept))


def _marked(step: Step, owed: Owed) -> Iterator[Meant]:
    """The state after a step, with the lines that it owes, and with those that it may owe."""
    marks = list(step.marks)
    said = [mark for mark in owed if mark.op == _SAID and mark.thread == step.thread]
    if said and (marks or step.entered):
        concluded = said[0]._replace(op="conclude")
        if concluded not in marks:
            return
        marks.remove(concluded)
        owed = tuple(mark for mark in owed if mark not in said)
    yield step.after, _ordered((*owed, *marks))
    if step.may:
        yield step.after, _ordered((*owed, *marks, *step.may))


def _ordered(owed: Owed) -> Owed:
    return tuple(sorted(owed, key=lambda mark: (mark.thread, mark.op, mark.chunk or 0, mark.incoming or "")))


def _by(word: Word, thread: str) -> bool:
    """The line can be that thread's."""
    if _UNKNOWN in (word.thread, thread) or thread == ANYBODY:
        return True
    return word.thread == (thread if thread.startswith(_WORKER) else "")


def _says(word: Word, mark: Mark) -> bool:
    """The line is one that a thread owes."""
    about = word.op == mark.op and word.chunk == mark.chunk and _by(word, mark.thread)
    return about and (mark.incoming is None or word.incoming in (None, mark.incoming))


def _enters(word: Word, thread: str, entered: Entered) -> bool:
    """The line says what a step does to the table."""
    about = word.op == entered.op and word.incoming in (None, entered.incoming) and _by(word, thread)
    return about and word.status in (None, entered.status)
