"""A manager that is made of nothing but the rows of the protocol: what a design does, call by call.

:class:`SpecManager` is a :class:`~kvlatch.reference.oracle.explore.Player`. It answers a call with the rows of the
thread that makes it, taken until that thread rests; each status update is one step (the *locked* atomicity). So the
oracle can be held against the proofs: whatever it finds in the manager of a design must be refuted of that design. And
the test vectors have an answer to every call that nobody had to write by hand.

A manager is not told of all that is a row. ``enqueue`` and ``reuse`` are taken once a call shows that they must have
happened, ``release`` as soon as it is enabled. Nor is it told how many chunks and workers there are: as many as a
script speaks of, which makes no difference to the calls before. The network is the disorderly one, in which
everything may arrive: what does is for the caller to say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Final

import attrs

from kvlatch.reference.oracle.moves import BOOTSTRAP, SCHEDULER, Bounds, Call, Script, Seen, Step
from kvlatch.spec import protocol
from kvlatch.spec.designs import Design
from kvlatch.spec.model import Action, Instance, Machine
from kvlatch.spec.protocol import GENERATION, RULES
from kvlatch.spec.room import ROOM
from kvlatch.spec.schema import Rule
from kvlatch.spec.status import KVPoll
from kvlatch.spec.terms import Field, State, Term, Var

RESTS: Final = ("idle", "transferring")
"""Where a thread waits for its next call."""


@attrs.frozen(eq=False)
class SpecManager:
    """Plays scripts on the rows of one design, or on a change of them; ValueError for a call that no run of them has.

    The outcome of a call is computed once for each state in which it is made.
    """

    widest: ClassVar = Bounds("disorderly", chunks=3, workers=3, requests=2)
    """As far as the spec goes: one room, two requests, one after the other."""
    splits: ClassVar = False
    design: Design
    rules: tuple[Rule, ...] = RULES
    _rows: dict[Instance, _Rows] = attrs.field(factory=dict, init=False)
    _known: dict[tuple[Instance, tuple[int, ...], Step], tuple[tuple[int, ...], Seen]] = attrs.field(
        factory=dict, init=False
    )

    def play(self, scripts: Sequence[Script]) -> list[Seen]:
        """What is seen after the last step of each script."""
        return [self._play(script) for script in scripts]

    def _play(self, script: Script) -> Seen:
        instance = _instance(script)
        if instance not in self._rows:
            protocol = ROOM.with_rows(self.rules)
            design = attrs.evolve(self.design, queues="shared", transport="any")  # the oracle sees to both
            self._rows[instance] = _Rows.of(Machine.of(design, "locked", "disorderly", instance, protocol))
        rows = self._rows[instance]
        place, seen = tuple(rows.machine.initial().values()), Seen(None)
        for step in script:
            key = instance, place, step
            if key not in self._known:
                self._known[key] = _after(rows, place, step)
            place, seen = self._known[key]
        return seen


def _instance(script: Script) -> Instance:
    """The workers and chunks that a script speaks of: one more chunk than it names, until it names the last."""
    starts = [step.call for step in script if step.call is not None and step.call.event == "start"]
    workers = [_number(step.thread) for step in script if step.thread not in (SCHEDULER, BOOTSTRAP)]
    chunks = [call.chunk + (1 if call.last else 2) for call in starts]
    return Instance(workers=1 + max(workers, default=0), chunks=max(chunks, default=1), requests=2)


@attrs.frozen(eq=False)
class _Rows:
    """The rows of one instance, with what is looked up in them again and again."""

    machine: Machine
    variables: Mapping[tuple[Field, int], Var]
    polls: Mapping[KVPoll, Term]

    @classmethod
    def of(cls, machine: Machine) -> _Rows:
        """The rows of a machine."""
        variables = {(var.field, var.place): var for var in machine.model.variables}
        return cls(machine, variables, {said: machine.model.claim(protocol.polls(said.name)) for said in KVPoll})


def _after(rows: _Rows, place: tuple[int, ...], step: Step) -> tuple[tuple[int, ...], Seen]:
    """The state after one call, and what is seen of it."""
    if step.call is None:
        raise ValueError(f"{step.thread} is not held anywhere: in the locked atomicity a call is one step")
    turn = _Turn(rows, dict(zip(rows.machine.model.variables, place, strict=True)))
    answer = turn.perform(step.thread, step.call)
    turn.take("release", SCHEDULER)
    status = turn.label(protocol.status)
    seen = Seen(
        KVPoll[status] if status in KVPoll.__members__ else None,
        answer=answer,
        released=tuple(turn.released),
        told=tuple(turn.told),
    )
    return tuple(turn.state.values()), seen


class _Turn:
    """The rows that one call takes, and what they do that can be seen outside."""

    def __init__(self, rows: _Rows, state: State) -> None:
        self.rows = rows
        self.machine = rows.machine
        self.state = state
        self.released: list[int] = []
        self.told: list[tuple[int, KVPoll]] = []

    def perform(self, thread: str, call: Call) -> KVPoll | bool | None:
        """Take the rows of a call; its answer, if it has one."""
        if call.request == 2 and self.label(protocol.gen) == "first":
            self.must("reuse", SCHEDULER)
        match call.event:
            case "create":
                self.must("create", SCHEDULER)
            case "metadata":
                self.hear("metadata", call.request)
            case "abort_notice":
                self.hear("abort", call.request)
            case "abort":
                self.send_rest()
                self.must("abort", SCHEDULER)
            case "poll":
                self.send_rest()
                return self.poll()
            case "clear":
                self.must("clear_status", SCHEDULER)
                self.must("clear_infos", SCHEDULER)
            case "start":
                return self.start(thread, call)
            case "finish" | "break":
                self.must("complete" if call.event == "finish" else "break", thread, call.chunk)
                self.go_on(thread, self.var(protocol.worker, _number(thread)))
        return None

    def hear(self, what: str, request: int) -> None:
        """A message arrives: in the life of its own request, if it can, or in that of the second."""
        if self.label(protocol.gen) != GENERATION[request - 1] or not self.take(f"hear_{what}", BOOTSTRAP):
            self.take("reuse", SCHEDULER)
            self.must(f"hear_stale_{what}", BOOTSTRAP)
        self.go_on(BOOTSTRAP, self.var(protocol.bootstrap))

    def poll(self) -> KVPoll:
        """The scheduler asks, and acts on the answer."""
        answer = next(said for said, claim in self.rows.polls.items() if self.machine.holds(claim, self.state))
        for row in ("admit", "settle_failed", "settle_success"):
            if self.take(row, SCHEDULER):
                break
        return answer

    def start(self, thread: str, call: Call) -> bool:
        """A worker has a chunk in hand; what was dropped before it was queued is not transferred."""
        if self.label(protocol.gen) == GENERATION[call.request - 1]:
            for chunk in range(call.chunk + 1):
                self.take("enqueue", SCHEDULER, chunk)
            taken = self.take("take", thread, call.chunk)
        else:
            taken = self.take("take_stale", thread, call.chunk)
        worker = self.var(protocol.worker, _number(thread))
        if taken:
            self.go_on(thread, worker)
        return taken and worker.labels[self.state[worker]] == "transferring"

    def send_rest(self) -> None:
        """The scheduler polls or aborts no request that is still running: its chunks have all been sent."""
        for chunk in range(self.machine.model.instance.count("chunk")):
            self.take("enqueue", SCHEDULER, chunk)

    def go_on(self, thread: str, pc: Var) -> None:
        """Let a thread go on until it rests."""
        mine = [act for act in self.machine.model.actions if act.thread == thread]
        while (at := pc.labels[self.state[pc]]) not in RESTS:
            self.step(next(act for act in mine if act.rule.at == at and self.enabled(act)))

    def must(self, row: str, thread: str, chunk: int | None = None) -> None:
        """Take a row; ValueError if it is not enabled."""
        if not self.take(row, thread, chunk):
            raise ValueError(f"{row} is not enabled, and so no run of the design has this call")

    def take(self, row: str, thread: str, chunk: int | None = None) -> bool:
        """Take a row if it is enabled, and say whether it was."""
        for act in self.machine.model.actions:
            named = act.rule.name == row and act.thread == thread and act.arguments.get("chunk") == chunk
            if named and self.enabled(act):
                self.step(act)
                return True
        return False

    def enabled(self, action: Action) -> bool:
        return self.machine.holds(action.guard, self.state)

    def step(self, action: Action) -> None:
        """Take a step, and note what it releases and what it tells decode."""
        before, self.state = self.state, self.machine.step(self.state, action)
        pages, gen = self.var(protocol.pages), self.var(protocol.gen)
        if action.rule.name == "release" or self.state[pages] > max(before[pages], 1):
            self.released.append(1 + self.state[gen])
        if action.rule.actor == "worker" and protocol.wire in action.rule.then:
            number = _number(action.thread)
            seen, job_gen = self.var(protocol.worker_seen, number), self.var(protocol.job_gen, number)
            wire = self.var(protocol.wire)
            if self.state[wire] != before[wire]:  # the spec does not count words: to say one again changes nothing
                self.told.append((1 + before[job_gen], KVPoll[seen.labels[before[seen]]]))

    def label(self, field: Field, place: int = 0) -> str:
        var = self.var(field, place)
        return var.labels[self.state[var]]

    def var(self, field: Field, place: int = 0) -> Var:
        return self.rows.variables[field, place]


def _number(thread: str) -> int:
    return int(thread.removeprefix("worker "))
