"""From rows to steps: every field bound to a room, a worker, a chunk, or whatever sorts a protocol has.

The split and the cas update are derived here, from the row of the locked one:

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
from typing import Final

import attrs

from kvlatch.spec.schema import ANY, Entry, Protocol, Rule, Sizes, Writer
from kvlatch.spec.status import ABSENT, F, KVPoll, S
from kvlatch.spec.terms import (
    FALSE,
    TRUE,
    All,
    AnyRequests,
    Every,
    Field,
    ForAll,
    Label,
    LastChunk,
    Merged,
    Ordered,
    Stores,
    Term,
    ThisChunk,
    Var,
    rewrite,
    value,
    where,
)

EVERY: Final = -1
"""In an instance with any number of a sort, the place of the element that a quantifier speaks of."""
NO, YES = "no", "yes"
MORE: Final = "more"
"""The part of a row's step that uses up one of several alike things, of which others are left."""

Place = Mapping[str, int]
"""Which room, worker, chunk a formula is about: the numbers of those that it may leave open."""


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
    order: Term = TRUE
    """The part of the guard that durations see to (``Rule.order``)."""

    @property
    def label(self) -> str:
        """Its name with every argument, which no other action of the model has."""
        return _label(self.name, self.arguments)

    def label_in(self, sizes: Sizes) -> str:
        """The label of the same step in an instance that has any number of a sort, and so a name for one of them."""
        several = sizes.count("room") > 1
        named = {sort: sizes.count(sort) and index for sort, index in self.arguments.items()}
        return _label(self.name, {sort: index for sort, index in named.items() if sort != "room" or several})

    def __str__(self) -> str:
        chunk = f"({self.arguments['chunk']})" if "chunk" in self.arguments else ""
        return f"{self.name}{chunk}"


def _label(name: str, arguments: Mapping[str, int]) -> str:
    return " ".join([name, *(f"{argument}={index}" for argument, index in arguments.items())])


def between_steps(rule: Rule) -> str:
    """The program counter of a thread that has read the status and has not stored it yet."""
    return f"{rule.name}*"


@attrs.frozen(eq=False)
class Grounding:
    """A protocol in one instance: what each field, and each quantifier, is at a place."""

    protocol: Protocol
    sizes: Sizes
    variables: Mapping[tuple[Field, int, int, int], Var]
    """By room, by element of the field's sort, and by the element that it names, of which there are any number."""
    switches: Mapping[Field, Var]

    @classmethod
    def of(cls, protocol: Protocol, sizes: Sizes) -> Grounding:
        """The variables of an instance: one for each field of each room, worker, chunk."""
        state = [*protocol.state, *([protocol.home.field] if serves_several(protocol, sizes) and protocol.home else [])]
        variables: dict[tuple[Field, int, int, int], Var] = {}
        for field in state:
            labels = _labels(field, protocol, sizes)
            unbounded = field.owner in protocol.sorts and sizes.count(field.owner) == ANY
            for room, element in _indices(field, protocol, sizes):
                place = element if field.owner == protocol.crowd or unbounded else room
                for named in (0, EVERY) if names_any(field, protocol, sizes) else (0,):
                    name = _name(field, room, element, named, protocol, sizes)
                    var = Var(name, field.owner, labels, field=field, place=place, names=named)
                    variables[field, room, element, named] = var
        switches = {s: Var(s.name, "switch", s.labels, field=s, place=0) for s in protocol.switches}
        return cls(protocol, sizes, variables, switches)

    @property
    def any(self) -> bool:
        """Any number of some sort."""
        return any(self.any_of(sort) for sort in self.protocol.sorts)

    def any_of(self, sort: str) -> bool:
        """Any number of a sort."""
        return sort in self.protocol.sorts and self.sizes.count(sort) == ANY

    def var(self, field: Field, place: Place) -> Var:
        """The variable that a field is, at a place; which element it names is part of the place."""
        named = 0
        if names_any(field, self.protocol, self.sizes):
            sort = self.protocol.numbers[field]
            if sort not in place:
                raise TypeError(f"{field.name} is one of any number of {sort}s: only {sort} by {sort} it is known")
            named = place[sort]
        match field.owner:
            case "switch":
                return self.switches[field]
            case "room":
                return self.variables[field, place["room"], 0, named]
            case self.protocol.crowd if field.owner in place:
                return self.variables[field, 0, place[field.owner], named]
            case sort if sort in place:
                return self.variables[field, place["room"], place[sort], named]
        raise TypeError(f"{field.name} needs a {field.owner}: the row must have one, or say per={field.owner!r}")

    def term(self, term: Term, place: Place) -> Term:
        """A term at a place: fields are variables, quantifiers are conjunctions."""

        def change(part: Term) -> Term | None:
            match part:
                case Var():
                    return part
                case Field():
                    return self.var(part, place)
                case AnyRequests():
                    return TRUE if self.sizes.count("request") == ANY else FALSE
                case LastChunk() if self.any_of("chunk"):
                    return Ordered("chunk", "last", place["chunk"])
                case LastChunk():
                    return TRUE if place["chunk"] == self.sizes.count("chunk") - 1 else FALSE
                case ThisChunk(None) if self.any_of("chunk"):
                    return where(Ordered("chunk", "same", place["chunk"]), YES, NO)
                case ThisChunk(None):
                    return Label(str(place["chunk"]))
                case ThisChunk(Field() as named):
                    return self.var(named, place) == (YES if self.any_of("chunk") else str(place["chunk"]))
                case ForAll(over, inner):
                    return rewrite(All(tuple(self._each(over, inner, place))), lambda _: None)
            return None

        return rewrite(term, change)

    def _each(self, over: str, inner: Term, place: Place) -> Iterator[Term]:
        """What a quantified formula says of each chunk, or of each worker that serves the room."""
        kind, _, sort = over.rpartition(" ")
        if sort not in self.protocol.sorts or kind not in ("", "other", "earlier"):
            raise TypeError(f"a formula is about every {over!r}: sorts are {', '.join(self.protocol.sorts)}")
        crowded = sort == self.protocol.crowd
        if self.any_of(sort):
            if place.get(sort) == EVERY:
                raise TypeError(f"a formula about every {sort} must not speak of every one again")
            there = {**place, sort: EVERY}
            said = self._served(inner, there) if crowded else self.term(inner, there)
            if kind == "other" and sort in place:
                said = Ordered(sort, "same", EVERY) | said
            if kind == "earlier":
                said = ~Ordered(sort, "before", EVERY) | said if sort in place else TRUE
            yield Every(said, sort)
            return
        for at in self.places(over, place):
            yield self._served(inner, at) if crowded else self.term(inner, at)

    def _served(self, inner: Term, place: Place) -> Term:
        """What is said of a worker, if it serves the room."""
        said = self.term(inner, place)
        home = self.protocol.home
        if home is None or not serves_several(self.protocol, self.sizes):
            return said
        return (self.var(home.field, place) != str(place["room"])) | said

    def each(self, field: Field, place: Place) -> Iterator[Place]:
        """The place itself; for a field of a sort that a row is not about, the place of every element of the sort."""
        if names_any(field, self.protocol, self.sizes):
            yield {**place, self.protocol.numbers[field]: EVERY}
        elif field.owner not in self.protocol.sorts or field.owner in place:
            yield place
        elif self.any_of(field.owner):
            yield {**place, field.owner: EVERY}
        else:
            yield from self.places(field.owner, place)

    def changed(self, field: Field, term: Term, at: Place, place: Place) -> Term:
        """What a row at a place makes of a field: of every worker, only if it serves the room."""
        new = self.term(term, at)
        home = self.protocol.home
        everyone = field.owner == self.protocol.crowd and field.owner not in place
        if home is None or not everyone or not serves_several(self.protocol, self.sizes):
            return new
        return where(self.var(home.field, at) == str(at["room"]), new, self.var(field, at))

    def places(self, over: str, place: Place) -> Iterator[Place]:
        """The places of the elements that a quantifier ranges over."""
        kind, _, sort = over.rpartition(" ")
        for index in self.sizes.named(sort):
            here = place.get(sort, 0 if kind == "earlier" else EVERY)
            if kind == "" or (kind == "other" and index != here) or (kind == "earlier" and index < here):
                yield {**place, sort: index}


def sort_of(over: str) -> str:
    """The sort that a quantifier ranges over."""
    return over.rpartition(" ")[2]


def names_any(field: Field, protocol: Protocol, sizes: Sizes) -> bool:
    """The field says which element of a sort, and there are any number of these."""
    return field in protocol.numbers and sizes.count(protocol.numbers[field]) == ANY


def serves_several(protocol: Protocol, sizes: Sizes) -> bool:
    """An element of the crowd may serve another room than the one that is looked at."""
    anywhere = protocol.crowd is not None and sizes.count(protocol.crowd) == ANY
    return protocol.home is not None and (sizes.count("room") > 1 or anywhere)


def _labels(field: Field, protocol: Protocol, sizes: Sizes) -> tuple[str, ...]:
    """A field's labels in an instance: numbers of chunks and rooms are cut to size."""
    if names_any(field, protocol, sizes):
        return (NO, YES)
    if field in protocol.numbers:
        return field.labels[: sizes.count(protocol.numbers[field])]
    if protocol.home and field is protocol.home.field:
        return field.labels[: 1 + sizes.count("room")]
    return field.labels


def _indices(field: Field, protocol: Protocol, sizes: Sizes) -> Iterator[tuple[int, int]]:
    """Room and element of each variable that a field is; the crowd is the same for all rooms."""
    elements = [0]
    if field.owner in protocol.sorts:
        elements = [*sizes.named(field.owner), *([EVERY] if sizes.count(field.owner) == ANY else [])]
    rooms = 1 if field.owner == protocol.crowd else sizes.count("room")
    yield from ((room, element) for room in range(rooms) for element in elements)


def _name(field: Field, room: int, element: int, named: int, protocol: Protocol, sizes: Sizes) -> str:
    number = ""
    if field.owner in protocol.sorts:
        number = "_every" if element == EVERY else f"_{element}"
    if names_any(field, protocol, sizes):
        number += f"_is_{'every' if named == EVERY else named}"
    several = sizes.count("room") > 1 and field.owner != protocol.crowd
    return f"{field.name}{number}" + (f"@{room}" if several else "")


# --------------------------------------------------------------------------------------------------------------------
# The steps of a row


def steps_of(rule: Rule, ground: Grounding) -> Iterator[Action]:
    """Every action of a row: at each room, element of its actor's sort, and element of the sort it is ``per``."""
    for place in _applies(rule, ground):
        yield from _actions(rule, place, ground)


def _applies(rule: Rule, ground: Grounding) -> Iterator[Place]:
    actor = ground.protocol.threads[rule.actor].pc.owner
    places: list[Place] = [{"room": room} for room in range(ground.sizes.count("room"))]
    for sort in (actor, rule.per):
        if sort is not None and sort in ground.protocol.sorts:
            places = [at for place in places for at in ground.places(sort, place)]
    yield from places


def _actions(rule: Rule, place: Place, ground: Grounding) -> Iterator[Action]:
    protocol = ground.protocol
    thread = protocol.threads[rule.actor]
    pc = ground.var(thread.pc, place)
    arguments = {sort: index for sort, index in place.items() if sort != "room"}
    if ground.sizes.count("room") > 1:
        arguments["room"] = place["room"]
    effects = {}
    for field, term in rule.then.items():
        for at in ground.each(field, place):
            effects[ground.var(field, at)] = ground.changed(field, value(term), at, place)
    mine = _mine(rule, place, ground, effects)
    order = ground.term(rule.order, place)
    when = ground.term(rule.when & rule.order, place)
    to = ground.term(value(rule.to), place)
    name = f"{rule.actor} {place[thread.pc.owner]}" if thread.pc.owner in protocol.sorts else rule.actor

    def action(part: str, guards: list[Term], updates: dict[Var, Term], fair: bool = rule.fair) -> Action:
        guard = rewrite(All((mine, *guards)), lambda _: None)
        full = rule.name + (f".{part}" if part else "")
        moved = tuple((var, term) for var, term in updates.items() if term is not var)
        return Action(full, name, rule, part, arguments, guard, moved, fair, order)

    if rule.write is None:
        yield action("", [pc == rule.at, when], {**effects, pc: to})
        if spent := _spent(rule, ground):
            left = {var: term for var, term in effects.items() if var.field not in spent}
            yield action(MORE, [pc == rule.at, when], {**left, pc: to})
        return
    if protocol.entry is None or not isinstance(thread, Writer):
        raise TypeError(f"{rule.name} writes a status: that needs a table, and a {rule.actor} that reads it")

    entry = protocol.entry
    seen, status = ground.var(thread.seen, place), ground.var(entry.status, place)
    level = ground.switches[entry.atomicity]
    between = between_steps(rule)
    locked = _store(rule.write, status, thread, entry, place, ground)
    stored = _store(rule.write, seen, thread, entry, place, ground)

    def outcome(what: Term) -> Term:
        """What the write came to, as far as the thread knows: what it meant, or what stands in the table."""
        return where(ground.term(entry.standing, place), what, rule.write or ABSENT)

    forget = {seen: outcome(stored[status]) if rule.result else Label(ABSENT)}
    yield action(
        "", [pc == rule.at, when, level == "locked"],
        {**effects, **locked, pc: to, **({seen: outcome(locked[status])} if rule.result else {})},
    )  # fmt: skip
    if between not in pc.labels:  # a row of a user's own: its design claims locked only
        return
    yield action("read", [pc == rule.at, when, level != "locked"], {pc: Label(between), seen: status})
    finish = {**effects, **stored, pc: to, **forget}
    yield action("store", [pc == between, level == "split"], finish, fair=True)
    yield action("swap", [pc == between, level == "cas", status == seen], finish, fair=True)
    yield action("retry", [pc == between, level == "cas", status != seen], {seen: status}, fair=True)


def _spent(rule: Rule, ground: Grounding) -> set[Field]:
    """With any number of requests, what a row uses up of which there may be more than one (``Older.piles``)."""
    older = ground.protocol.older
    if older is None or ground.sizes.count("request") != ANY:
        return set()
    taken = {field: term for field, term in rule.then.items() if field in older.piles}
    return {field for field, term in taken.items() if isinstance(term, str) and term != older.piles[field]}


def _mine(rule: Rule, place: Place, ground: Grounding, effects: dict[Var, Term]) -> Term:
    """Where there are several rooms, a busy worker moves in the room that it serves; an idle one takes one up."""
    home = ground.protocol.home
    if home is None or not serves_several(ground.protocol, ground.sizes) or home.field.owner not in place:
        return TRUE
    serves = ground.var(home.field, place)
    if rule.at != home.idle:
        return serves == str(place["room"])
    effects[serves] = Label(str(place["room"]))
    return TRUE


def _store(incoming: str, read: Var, thread: Writer, entry: Entry, place: Place, ground: Grounding) -> dict[Var, Term]:
    """What a store of ``merge(read, incoming)`` does to the entry, its stamp and the memory of its first terminal."""
    status, stamp, first = (ground.var(f, place) for f in (entry.status, entry.stamp, entry.first_terminal))
    number = KVPoll[incoming].value
    counts = ground.term(entry.counts(thread.gen), place)
    stores = counts & ~Stores(read, number, None)
    stamped = ground.term(entry.stamped, place)

    def becomes(label: str) -> Term:
        return stores & Stores(read, number, status.index(label))

    return {
        status: where(stores, Merged(read, number), status),
        stamp: where(stores & stamped, ground.var(thread.gen, place), stamp),
        first: where(first == "none", where(becomes(F), F, where(becomes(S), S, "none")), first),
    }
