"""What a protocol consists of: sorts, state, threads, rows, properties, lemmas. A protocol is a value.

``room.py`` has the first one. Another is a file beside it, with its own fields, rows and properties and one
:class:`Protocol` at its end; search, bounded model checking, induction, certificates and Promela take whichever they
are given, and know none by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import ClassVar, Final, Literal, Self, get_args
from typing import Protocol as Interface

import attrs

from kvlatch.spec.clauses import Contract
from kvlatch.spec.terms import TRUE, Field, Term
from kvlatch.spec.timing import Timing

Atomicity = Literal["locked", "split", "cas"]
Network = Literal["orderly", "lossy", "early", "overdue", "doubling", "late", "disorderly"]
"""What messages may do. Each of the five in the middle has one fault: a message is lost, comes before its place, or
after it, or twice, or, *late*, in the life of the next request. The orderly one has none, the disorderly one all."""
NETWORKS: Final[tuple[Network, ...]] = get_args(Network)
Profile = Literal["first terminal wins", "failure overrides"]
"""May a late Failed replace Success? Both readings of "terminal" are legitimate; say which one is yours."""

ANY: Final = 0
"""As many elements of a sort as there may be. Such an instance names one of them, which acts."""


@attrs.frozen
class Sizes:
    """How many elements each sort has in an instance: a protocol's own subclass has a field per sort, in the plural.

    ``crowd`` is the sort of which a proof allows any number.
    """

    crowd: ClassVar[str | None] = None

    def count(self, sort: str) -> int:
        """The elements of a sort, or ``ANY``; one, where the protocol has a single one, like the room."""
        return int(getattr(self, f"{sort}s", 1))

    def crowded(self, count: int) -> Self:
        """The same sizes with ``count`` elements of the crowd; ``ANY`` stands for any number."""
        return attrs.evolve(self, **{f"{self.crowd}s": count}) if self.crowd else self

    def named(self, sort: str) -> range:
        """The elements that can be told apart: all of them, or the one that acts."""
        return range(self.count(sort) or 1)

    def __str__(self) -> str:
        """``2 workers, 1 chunk``."""
        return ", ".join(
            f"1 {name[:-1]}" if count == 1 else f"{count or 'any number of'} {name}"
            for name, count in attrs.asdict(self).items()
        )


@attrs.frozen(eq=False)
class Thread:
    """One kind of thread. Its program counter belongs to the room, or to a sort: then each element is such a thread."""

    pc: Field


@attrs.frozen(eq=False)
class Writer(Thread):
    """A thread that writes statuses: besides, the field for the status it has read, and for the request it acts for."""

    seen: Field
    gen: Field


@attrs.frozen(eq=False)
class Rule:
    """One row: an atomic step of one actor, of any room, worker and chunk it can apply to.

    ``per`` names a sort: the row applies to each of its elements, the others change all of them alike; ``result`` keeps
    in ``seen`` the outcome of the write, to be told to decode. ``requests=2`` rows apply where a second request may use
    the room id, ``requests=3`` where any number may. ``order`` is a part of the guard that nobody has to see to: it
    holds when the time of the row has come, as is proved from lengths of time (``timing.py``). ``where`` says where
    published code does this: by backend, with the versions, ``file: function``; ``ours`` alone, for what only the
    recommended design has.
    """

    name: str
    actor: str
    at: str
    to: str | Term
    when: Term = TRUE
    then: dict[Field, str | Term] = attrs.field(factory=dict)
    write: str | None = None
    fair: bool = True
    per: str | None = None
    result: bool = False
    requests: int = 1
    order: Term = attrs.field(default=TRUE, kw_only=True)
    says: str = attrs.field(default="", kw_only=True)
    where: Mapping[str, str] = attrs.field(factory=dict, kw_only=True)


@attrs.frozen
class Property:
    """One named claim about every run of a design.

    A safety property is broken in a state in which ``bad`` holds; a liveness property in one from which, besides, no
    fair step leads. With fewer than ``requests`` on a room id nothing can break it. ``reports`` are public bug reports
    that the property would have caught; ``broken`` is the sentence about a bad state, with names of fields in braces.
    """

    name: str
    says: str
    bad: Term
    profile: Literal["both"] | Profile = "both"
    kind: Literal["safety", "liveness"] = "safety"
    reports: tuple[str, ...] = ()
    requests: int = attrs.field(default=1, kw_only=True)
    broken: str = attrs.field(kw_only=True)


@attrs.frozen
class Lemma:
    """One claim about every reachable state, about any element of each sort that it leaves open."""

    name: str
    claim: Term


@attrs.frozen
class World:
    """A network and sizes in which a counterexample is looked for; ``suffix`` marks it in the matrix.

    Its ``parts`` are gentler worlds, all of whose runs are its own: what it breaks is looked for in them first.
    """

    name: str
    suffix: str
    network: Network
    sizes: Sizes
    parts: tuple[World, ...] = ()

    def with_parts(self) -> tuple[World, ...]:
        """Its parts, and itself."""
        return *self.parts, self

    def instance(self, count: int) -> Sizes:
        """The instance of this world with ``count`` elements of the crowd; ``ANY`` stands for any number."""
        return self.sizes.crowded(count)


class AnyDesign(Interface):
    """What the engines ask of a design: its name, its protocol's, its atomicities, and a position for every switch.

    ``rows`` take the place of the protocol's rows of the same names, or come besides; rows in ``without`` are gone. So
    it is with ``lemmas`` and ``without_lemmas``, which change what can be proved, and not what the design does.
    """

    @property
    def name(self) -> str: ...

    @property
    def protocol(self) -> str: ...

    @property
    def atomicities(self) -> tuple[Atomicity, ...]: ...

    @property
    def rows(self) -> tuple[Rule, ...]: ...

    @property
    def without(self) -> tuple[str, ...]: ...

    @property
    def lemmas(self) -> tuple[Lemma, ...]: ...

    @property
    def without_lemmas(self) -> tuple[str, ...]: ...

    def positions(self, level: Atomicity, net: Network) -> Mapping[Field, int]: ...


@attrs.frozen
class Choice:
    """A design of a protocol without a status table: a label for each switch, of which one may be ``network``."""

    name: str
    protocol: str
    switches: tuple[Field, ...]
    chosen: Mapping[str, str] = attrs.field(factory=dict)
    atomicities: tuple[Atomicity, ...] = ("locked",)
    rows: tuple[Rule, ...] = attrs.field(default=(), kw_only=True)
    without: tuple[str, ...] = attrs.field(default=(), kw_only=True)
    lemmas: tuple[Lemma, ...] = attrs.field(default=(), kw_only=True)
    without_lemmas: tuple[str, ...] = attrs.field(default=(), kw_only=True)
    says: str = attrs.field(default="", kw_only=True)

    def positions(self, level: Atomicity, net: Network) -> Mapping[Field, int]:
        """The index of each switch's position; what is not chosen is at its first label."""
        chosen: dict[str, str] = {"atomicity": level, "network": net, **self.chosen}
        return {switch: switch.index(chosen.get(switch.name, switch.labels[0])) for switch in self.switches}


@attrs.frozen(eq=False)
class Entry:
    """The entry that a row's ``write`` updates, by the merge of the design.

    ``counts`` says of a thread's request whether its writes reach the entry at all; where ``stamped`` holds, a store
    leaves that request in ``stamp``. ``first_terminal`` is history. ``standing``: a writer passes on what stands.
    """

    status: Field
    stamp: Field
    first_terminal: Field
    counts: Callable[[Field], Term]
    stamped: Term
    atomicity: Field
    standing: Term
    merge: Callable[[AnyDesign], tuple[tuple[int | None, ...], ...]]
    """A design's merge by index of ``status``: a row per label of the entry; None where nothing is stored."""


@attrs.frozen(eq=False)
class Home:
    """For a crowd that serves several rooms: the field that says which one, and the program counter of the unoccupied.

    An element takes up a room where it leaves ``idle``, and belongs to it until another room takes it.
    """

    field: Field
    pc: Field
    idle: str


@attrs.frozen(eq=False)
class Older:
    """What makes two labels, of "this request" and of "any older one", enough for any number of requests on a room id.

    ``lemmas`` are the claims on which that rests where ``when`` holds of a design's switches: without them, what is
    said of an older request could be mistaken for what is said of another older one. Behind a label in ``piles`` there
    may be several things, one of each older request: a step that uses one up has a twin, ``.more``, that leaves others.
    """

    lemmas: tuple[str, ...]
    when: Term
    piles: Mapping[Field, str]


@attrs.frozen(eq=False)
class Protocol:
    """A protocol: everything that an engine has to know of it.

    ``numbers`` are the fields whose labels are numbers of elements of a sort. A row that sets ``lives`` begins the life
    of a new request, and ``potential`` bounds the steps that each label of a field has still to come: together they
    show that every life ends. ``few`` names the lemmas that suffice for a property in designs that keep no others.
    ``worlds`` are searched, gentlest first, each after its parts, with each number of ``counts`` of the crowd. A proof
    is about ``everything``, with any number of the crowd; or with no more requests than in ``bounded``; or about that.
    ``timing`` is for rows that demand an ``order``, ``contract`` for rows that rely on a neighbour.
    """

    name: str
    says: str
    sizes: type[Sizes]
    sorts: tuple[str, ...]
    state: tuple[Field, ...]
    threads: Mapping[str, Thread]
    rows: tuple[Rule, ...]
    switches: tuple[Field, ...]
    designs: Mapping[str, AnyDesign]
    properties: tuple[Property, ...]
    worlds: tuple[World, ...]
    everything: World
    bounded: World = attrs.field(default=attrs.Factory(lambda self: self.everything, takes_self=True))
    counts: tuple[int, ...] = (1,)
    lemmas: tuple[Lemma, ...] = ()
    few: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict)
    potential: Mapping[Field, Mapping[str, int]] = attrs.field(factory=dict)
    lives: Field | None = None
    numbers: Mapping[Field, str] = attrs.field(factory=dict)
    entry: Entry | None = None
    home: Home | None = None
    older: Older | None = None
    timing: Timing | None = None
    contract: Contract | None = None

    @property
    def crowd(self) -> str | None:
        """The sort of which a proof allows any number."""
        return self.sizes.crowd

    @property
    def all_worlds(self) -> tuple[World, ...]:
        """The worlds in which a counterexample may be found, gentlest first: each after its parts."""
        return tuple(each for world in self.worlds for each in world.with_parts())

    @property
    def proved_in(self) -> tuple[World, ...]:
        """The worlds of proofs about any number: with any number of requests, then with as many as are searched."""
        most = self.bounded.sizes.count("request")
        if self.everything.sizes.count("request") == most:
            return (self.everything,) if self.crowd else ()
        fewer = World(f"{most} requests", "", self.everything.network, _with_requests(self.everything.sizes, most))
        return self.everything, fewer

    def with_rows(self, rows: Iterable[Rule]) -> Protocol:
        """The same protocol with other rows: a mutant of it. One value for one choice of rows."""
        return _with_rows(self, tuple(rows))

    def row(self, name: str) -> Rule:
        """A row by its name; KeyError if there is none."""
        return {rule.name: rule for rule in self.rows}[name]

    def begins(self, rule: Rule) -> bool:
        """The row begins a new life: it sets the field ``lives``."""
        return self.lives is not None and self.lives in rule.then

    def prop(self, name: str) -> Property:
        """A property by its name; KeyError if there is none."""
        return {prop.name: prop for prop in self.properties}[name]

    def lemma(self, name: str) -> Lemma:
        """A lemma by its name; KeyError if there is none."""
        return {lemma.name: lemma for lemma in self.lemmas}[name]


def _with_requests(sizes: Sizes, count: int) -> Sizes:
    changes = {"requests": count}
    return attrs.evolve(sizes, **changes)


@cache
def _with_rows(protocol: Protocol, rows: tuple[Rule, ...]) -> Protocol:
    return protocol if rows == protocol.rows else attrs.evolve(protocol, rows=rows)
