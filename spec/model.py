"""From rows to steps: the protocol of one instance, with every field bound to a room, a worker and a chunk.

An :class:`Instance` says how many rooms, workers and chunks there are. :func:`build` grounds the rows for it: each
field becomes one variable per room, worker or chunk, each row one :class:`Action` per room, worker and chunk it can
apply to, and "for every worker" becomes a conjunction. The split and the cas update are derived here, from the row of
the locked one:

========  =======================  =========================================================================
update    step                     meaning
========  =======================  =========================================================================
locked    ``write_t``              entry := merge(entry, T), and the row's other effects
split     ``write_t.read``         seen := entry; the thread now stands between its read and its store
          ``write_t.store``        entry := merge(seen, T), if the merge stores at all; the other effects
cas       ``write_t.read``         as above
          ``write_t.swap``         the entry is still what was seen: as ``store``
          ``write_t.retry``        it is not: seen := entry, and try again
========  =======================  =========================================================================
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Final

import attrs

from kvlatch.spec import designs, protocol
from kvlatch.spec.designs import SWITCHES, Atomicity, Design, Network
from kvlatch.spec.merges import KEEP, Table, table
from kvlatch.spec.properties import Property
from kvlatch.spec.protocol import RULES, STATE, THREADS, Rule, Thread
from kvlatch.spec.status import ABSENT, STATUS, TOMBSTONE, F, KVPoll, S
from kvlatch.spec.terms import (
    FALSE,
    TRUE,
    All,
    Every,
    Field,
    ForAll,
    Is,
    Label,
    LastChunk,
    Merged,
    State,
    Stores,
    Term,
    ThisChunk,
    Var,
    assign,
    evaluate,
    free,
    rewrite,
    value,
    where,
)

MAX_CHUNKS: Final = len(protocol.job.labels)
ANY: Final = 0
"""As many workers as there may be. The instance looks at one room of any number, and names one worker, which acts."""
HERE: Final = "0"
job_room = Field("job_room", "worker", ("elsewhere", HERE, "1", "2", "3"))
"""The room of the worker's chunk; only instances with several rooms, or any number, have it."""


@attrs.frozen
class Instance:
    """How many transfer workers (or ``ANY``), chunks per request, requests (one by one) per room id, and rooms."""

    workers: int = 1
    chunks: int = 2
    requests: int = 1
    rooms: int = 1

    def __attrs_post_init__(self) -> None:
        sizes = self.workers or 1, self.chunks, self.requests, self.rooms
        if not all(1 <= size <= most for size, most in zip(sizes, (8, MAX_CHUNKS, 2, MAX_CHUNKS), strict=True)):
            raise ValueError(
                f"an instance has 1 to 8 workers, 1 to {MAX_CHUNKS} chunks and rooms, 1 or 2 requests: {self}"
            )

    @property
    def any(self) -> bool:
        """Any number of workers, and of rooms."""
        return self.workers == ANY

    @property
    def named_workers(self) -> range:
        """The workers that can be told apart: all of them, or the one that acts."""
        return range(1 if self.any else self.workers)

    @property
    def several_rooms(self) -> bool:
        """A worker may serve another room than the one that is looked at."""
        return self.rooms > 1 or self.any


@attrs.frozen(eq=False)
class Action:
    """One step of one thread: enabled where ``guard`` holds, sets each variable to its term, all at once."""

    name: str
    thread: str
    rule: Rule
    part: str
    arguments: Mapping[str, int]
    guard: Term
    updates: tuple[tuple[Var, Term], ...]
    fair: bool

    @property
    def label(self) -> str:
        """Its name with every argument, which no other action of the model has."""
        return " ".join([self.name, *(f"{name}={index}" for name, index in self.arguments.items())])

    @property
    def label_of_any(self) -> str:
        """The label that it has in an instance where only one worker is named."""
        return " ".join([self.name, *(f"{name}={0 if name == 'worker' else i}" for name, i in self.arguments.items())])

    def __str__(self) -> str:
        chunk = f"({self.arguments['chunk']})" if "chunk" in self.arguments else ""
        return f"{self.name}{chunk}"


@attrs.frozen(eq=False)
class Model:
    """The steps of one instance. Switches are variables of their own until :meth:`of` fixes them."""

    instance: Instance
    variables: tuple[Var, ...]
    switches: Mapping[Field, Var]
    actions: tuple[Action, ...]
    ground: _Grounding
    fix: Fixed | None = None

    def claim(self, formula: Term, room: int = 0) -> Term:
        """A formula about one room, bound to this instance."""
        return self._bound(formula, _Place(room=room))

    def instances(self, formula: Term) -> list[Term]:
        """A formula about any worker or any chunk, bound to each of them in turn."""
        open_ = free(formula)
        places = [_Place()]
        for owner in ("worker", "chunk"):
            if owner in open_:
                places = [at for place in places for at in self.ground.places(owner, place)]
        if "worker" in open_ and self.instance.several_rooms:
            formula = (job_room != HERE) | formula
        return [self._bound(formula, place) for place in places]

    def _bound(self, formula: Term, place: _Place) -> Term:
        term = self.ground.term(formula, place)
        return self.fix(term) if self.fix else term

    def of(self, design: Design, atomicity: Atomicity, network: Network) -> Model:
        """The model of one design: switches gone, and with them every step that the design cannot take."""
        fix = Fixed.of(design, atomicity, network)
        actions = []
        for action in self.actions:
            guard = fix(action.guard)
            if guard is not FALSE:
                updates = tuple((var, fix(term)) for var, term in action.updates)
                actions.append(attrs.evolve(action, guard=guard, updates=updates))
        return attrs.evolve(self, switches={}, actions=tuple(actions), fix=fix)

    def action(self, name: str, arguments: Mapping[str, int]) -> Action | None:
        """The action with this name and these arguments."""
        for action in self.actions:
            if action.name == name and action.arguments == arguments:
                return action
        return None


@attrs.frozen(eq=False)
class Fixed:
    """Fixes the switches in a term to the positions of one design."""

    title: str
    positions: Mapping[Field, int]

    @classmethod
    def of(cls, design: Design, atomicity: Atomicity, network: Network) -> Fixed:
        """The positions of a design in one atomicity and one network."""
        return cls(f"{design.name}, {atomicity}, {network} network", design.positions(atomicity, network))

    def __call__(self, term: Term) -> Term:
        return rewrite(term, self._change)

    def _change(self, part: Term) -> Term | None:
        if isinstance(part, Is) and isinstance(part.field, Var) and part.field.owner == "switch":
            return TRUE if self.positions[part.field.field] == part.index else FALSE
        return None


EVERY: Final = -1
"""In an instance with any number of workers, the place of the worker that a quantifier speaks of."""


@attrs.frozen
class _Place:
    room: int = 0
    worker: int | None = None
    chunk: int | None = None


@attrs.frozen
class _Grounding:
    instance: Instance
    variables: Mapping[tuple[Field, int, int], Var]
    switches: Mapping[Field, Var]

    def var(self, field: Field, place: _Place) -> Var:
        """The variable that a field is, at a place."""
        match field.owner:
            case "switch":
                return self.switches[field]
            case "room":
                return self.variables[field, place.room, 0]
            case "chunk" if place.chunk is not None:
                return self.variables[field, place.room, place.chunk]
            case "worker" if place.worker is not None:
                return self.variables[field, place.worker, 0]
        raise TypeError(f"{field.name} needs a {field.owner}: the row must say per_chunk, or belong to a worker")

    def term(self, term: Term, place: _Place) -> Term:
        """A term at a place: fields are variables, quantifiers are conjunctions."""

        def change(part: Term) -> Term | None:
            match part:
                case Var():
                    return part
                case Field():
                    return self.var(part, place)
                case LastChunk():
                    return TRUE if place.chunk == self.instance.chunks - 1 else FALSE
                case ThisChunk(None):
                    return Label(str(place.chunk))
                case ThisChunk(Field() as named):
                    return self.var(named, place) == str(place.chunk)
                case ForAll(over, inner):
                    return rewrite(All(tuple(self._each(over, inner, place))), lambda _: None)
            return None

        return rewrite(term, change)

    def _each(self, over: str, inner: Term, place: _Place) -> Iterator[Term]:
        """What a quantified formula says of each chunk, or of each worker that serves the room."""
        if over.endswith("worker") and self.instance.any:
            if place.worker == EVERY:
                raise TypeError("a formula about every worker must not speak of every worker again")
            yield Every(self._served(inner, attrs.evolve(place, worker=EVERY)), own=over == "worker")
            return
        for at in self.places(over, place):
            yield self._served(inner, at) if over.endswith("worker") else self.term(inner, at)

    def _served(self, inner: Term, place: _Place) -> Term:
        """What is said of a worker, if it serves the room."""
        said = self.term(inner, place)
        return (self.var(job_room, place) != str(place.room)) | said if self.instance.several_rooms else said

    def each(self, field: Field, place: _Place) -> Iterator[_Place]:
        """The place itself; for a chunk's field in a row that is not about one chunk, the place of every chunk."""
        return self.places("chunk", place) if field.owner == "chunk" and place.chunk is None else iter([place])

    def places(self, over: str, place: _Place) -> Iterator[_Place]:
        if over in ("worker", "other worker"):
            for worker in self.instance.named_workers:
                if over == "worker" or worker != place.worker:
                    yield attrs.evolve(place, worker=worker)
        for chunk in range(self.instance.chunks):
            wanted = {"chunk": True, "earlier chunk": chunk < (place.chunk or 0), "other chunk": chunk != place.chunk}
            if wanted.get(over, False):
                yield attrs.evolve(place, chunk=chunk)


@cache
def build(instance: Instance, rules: tuple[Rule, ...] = RULES) -> Model:
    """The model of an instance; ValueError if two rows have one name, since a proof is complete by names."""
    if len({rule.name for rule in rules}) != len(rules):
        raise ValueError("two rows of the protocol have the same name")
    variables: dict[tuple[Field, int, int], Var] = {}
    for field in (*STATE, *([job_room] if instance.several_rooms else [])):
        labels = _labels(field, instance)
        for index in _indices(field, instance):
            name = _name(field, index, instance)
            variables[field, *index] = Var(name, field.owner, labels, field=field, place=index[0])
    switches = {switch: Var(switch.name, "switch", switch.labels, field=switch, place=0) for switch in SWITCHES}
    ground = _Grounding(instance, variables, switches)
    actions: list[Action] = []
    for rule in (rule for rule in rules if rule.requests <= instance.requests):
        for place in _applies(rule, instance):
            actions += _actions(rule, place, ground)
    return Model(instance, tuple(variables.values()), switches, tuple(actions), ground)


def _labels(field: Field, instance: Instance) -> tuple[str, ...]:
    """A field's labels in an instance: numbers of chunks and rooms are cut to size."""
    if field is protocol.job:
        return field.labels[: instance.chunks]
    if field is job_room:
        return field.labels[: 1 + instance.rooms]
    return field.labels


def between_steps(rule: Rule) -> str:
    """The program counter of a thread that has read the status and has not stored it yet."""
    return f"{rule.name}*"


def _indices(field: Field, instance: Instance) -> Iterator[tuple[int, int]]:
    if field.owner == "worker":
        yield from ((worker, 0) for worker in ((0, EVERY) if instance.any else instance.named_workers))
    else:
        chunks = instance.chunks if field.owner == "chunk" else 1
        yield from ((room, chunk) for room in range(instance.rooms) for chunk in range(chunks))


def _name(field: Field, index: tuple[int, int], instance: Instance) -> str:
    if field.owner == "worker":
        return f"{field.name}_{'every' if index[0] == EVERY else index[0]}"
    chunk = f"_{index[1]}" if field.owner == "chunk" else ""
    return f"{field.name}{chunk}" + (f"@{index[0]}" if instance.rooms > 1 else "")


def _applies(rule: Rule, instance: Instance) -> Iterator[_Place]:
    for room in range(instance.rooms):
        for worker in instance.named_workers if rule.actor == "worker" else [None]:
            for chunk in range(instance.chunks) if rule.per_chunk else [None]:
                yield _Place(room, worker, chunk)


def _actions(rule: Rule, place: _Place, ground: _Grounding) -> Iterator[Action]:
    """The steps of one row at one place."""
    several = ground.instance.several_rooms
    thread = THREADS[rule.actor]
    pc = ground.var(thread.pc, place)
    seen = ground.var(thread.seen, place)
    arguments = {name: index for name in ("worker", "chunk") if (index := getattr(place, name)) is not None}
    if ground.instance.rooms > 1:
        arguments["room"] = place.room
    mine: Term = TRUE
    effects = {}
    for field, term in rule.then.items():
        for at in ground.each(field, place):
            effects[ground.var(field, at)] = ground.term(value(term), at)
    if several and rule.actor == "worker":
        if rule.at == "idle":
            effects[ground.var(job_room, place)] = Label(str(place.room))
        else:
            mine = ground.var(job_room, place) == str(place.room)
    when = ground.term(rule.when, place)
    to = ground.term(value(rule.to), place)
    name = f"worker {place.worker}" if rule.actor == "worker" else rule.actor

    def action(part: str, guards: list[Term], updates: dict[Var, Term], fair: bool = rule.fair) -> Action:
        guard = rewrite(All((mine, *guards)), lambda _: None)
        full = rule.name + (f".{part}" if part else "")
        moved = tuple((var, term) for var, term in updates.items() if term is not var)
        return Action(full, name, rule, part, arguments, guard, moved, fair)

    if rule.write is None:
        yield action("", [_at(pc, rule.at), when], {**effects, pc: to})
        return

    level = ground.switches[designs.atomicity]
    between = between_steps(rule)
    status = ground.var(protocol.status, place)
    locked = _store(rule.write, status, thread, place, ground)
    stored = _store(rule.write, seen, thread, place, ground)
    forget = {seen: _result(rule, stored[status], ground) if rule.result else Label(ABSENT)}
    yield action(
        "", [_at(pc, rule.at), when, level == "locked"],
        {**effects, **locked, pc: to, **({seen: _result(rule, locked[status], ground)} if rule.result else {})},
    )  # fmt: skip
    yield action("read", [_at(pc, rule.at), when, level != "locked"], {pc: Label(between), seen: status})
    finish = {**effects, **stored, pc: to, **forget}
    yield action("store", [_at(pc, between), level == "split"], finish, fair=True)
    yield action("swap", [_at(pc, between), level == "cas", status == seen], finish, fair=True)
    yield action("retry", [_at(pc, between), level == "cas", status != seen], {seen: status}, fair=True)


def _at(pc: Var, label: str) -> Term:
    return pc == label


def _store(incoming: str, read: Var, thread: Thread, place: _Place, ground: _Grounding) -> dict[Var, Term]:
    """What a store of ``merge(read, incoming)`` does to the entry, its stamp and the memory of its first terminal."""
    status, stamp, first = (ground.var(f, place) for f in (protocol.status, protocol.stamp, protocol.first_terminal))
    number = KVPoll[incoming].value
    counts = ground.term(protocol.fresh(thread.gen), place)
    stores = counts & ~Stores(read, number, None)
    tombstones = ground.term(protocol.tombstones, place)

    def becomes(label: str) -> Term:
        return stores & Stores(read, number, status.index(label))

    return {
        status: where(stores, Merged(read, number), status),
        stamp: where(stores & tombstones, ground.var(thread.gen, place), stamp),
        first: where(first == "none", where(becomes(F), F, where(becomes(S), S, "none")), first),
    }


def _result(rule: Rule, entry: Term, ground: _Grounding) -> Term:
    """What the write came to, as far as the worker knows: what it meant, or what stands in the table."""
    return where(ground.switches[designs.tell] == "standing", entry, rule.write or ABSENT)


# --------------------------------------------------------------------------------------------------------------------
# Concrete semantics: one state, one step


def merge_rows(merge: Table) -> tuple[tuple[int | None, ...], ...]:
    """A merge table by index of ``status``: one row per label of the entry; None where nothing is stored.

    A tombstone is to the merge what no entry is; whether a write reaches it at all is the protocol's business.
    """
    labels = protocol.status.labels
    rows: dict[str, tuple[int | None, ...]] = {}
    for name, cells in zip((*STATUS[:5], ABSENT), merge, strict=True):
        rows[name] = tuple(None if cell == KEEP else labels.index(KVPoll(cell).name) for cell in cells)
    rows[TOMBSTONE] = rows[ABSENT]
    return tuple(rows[label] for label in labels)


@attrs.frozen
class Concrete:
    """The algebra of one concrete state: truth is bool, a value is the index of its label."""

    state: State
    merge: tuple[tuple[int | None, ...], ...]

    def is_(self, var: Var, index: int) -> int:
        return self.state[var] == index

    def same(self, left: Var, right: Var) -> int:
        return self.state[left] == self.state[right]

    def not_(self, part: int) -> int:
        return not part

    def all_(self, parts: list[int]) -> int:
        return all(parts)

    def any_(self, parts: list[int]) -> int:
        return any(parts)

    def where(self, when: int, then: int, other: int) -> int:
        return then if when else other

    def label(self, target: Var, index: int) -> int:
        return index

    def read(self, var: Var) -> int:
        return self.state[var]

    def merged(self, current: Var, incoming: int) -> int:
        stored = self.merge[self.state[current]][incoming]
        return self.state[current] if stored is None else stored

    def stores(self, current: Var, incoming: int, stored: int | None) -> int:
        return self.merge[self.state[current]][incoming] == stored

    def every(self, part: int, own: bool) -> int:
        raise TypeError("an instance with any number of workers has no concrete states")


@attrs.frozen(eq=False)
class Machine:
    """A model of one design that runs: ``initial()``, ``enabled(state)``, ``step(state, action)``, ``holds(…)``."""

    model: Model
    merge: tuple[tuple[int | None, ...], ...]

    @classmethod
    def of(
        cls, design: Design, atomicity: Atomicity, network: Network, instance: Instance, rules: tuple[Rule, ...] = RULES
    ) -> Machine:
        """The machine of one design in one instance; ``rules`` other than the protocol's make a mutant of it."""
        return cls(build(instance, rules).of(design, atomicity, network), merge_rows(table(design.merge)))

    def initial(self) -> State:
        """Every variable at its first label."""
        return dict.fromkeys(self.model.variables, 0)

    def holds(self, formula: Term, state: State) -> bool:
        """A ground formula in a state."""
        return bool(evaluate(formula, Concrete(state, self.merge)))

    def enabled(self, state: State) -> list[Action]:
        """The actions that can happen now, in the order of the rows."""
        return [action for action in self.model.actions if self.holds(action.guard, state)]

    def broken(self, prop: Property, state: State, room: int = 0) -> bool:
        """The state is bad for a property; for liveness, it is one in which no fair action is enabled."""
        bad = self.holds(self.model.claim(prop.bad, room), state)
        return bad and (prop.kind == "safety" or not any(action.fair for action in self.enabled(state)))

    def step(self, state: State, action: Action) -> State:
        """The state after an action; ValueError if it is not enabled."""
        if not self.holds(action.guard, state):
            raise ValueError(f"{action} is not enabled")
        algebra = Concrete(state, self.merge)
        return {**state, **{var: assign(var, term, algebra) for var, term in action.updates}}


def named(machine: Machine, state: State) -> dict[str, str]:
    """A state as text: label by variable name."""
    return {var.name: var.labels[state[var]] for var in machine.model.variables}
