"""The small language in which the protocol is written: fields, their values, and formulas over them.

A *field* has a name, a finite set of labels (plain strings) and an owner: each room has a ``status``, each worker a
``pc``, each room one ``chunk`` state per chunk, each design one value per ``switch``. Room and switch are owners in
every protocol; what other sorts there are, a protocol says. ``status == "Failed"`` is not a
Python bool but a formula; ``&``, ``|`` and ``~`` combine formulas. A label that the field does not have raises when
the module is imported, so a typo in the protocol cannot become a guard that is never true.

A formula is data. :func:`evaluate` gives it a meaning in an :class:`Algebra`: whole columns of states, solver terms,
or one concrete state. There is one evaluator, hence one semantics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Literal, NoReturn, Protocol, TypeVar

import attrs

B = TypeVar("B")
V = TypeVar("V")


class Term:
    """A value or a formula. Compare, and combine with ``&``, ``|``, ``~``; never use as a Python bool."""

    def __and__(self, other: Term) -> Term:
        return All((self, other))

    def __or__(self, other: Term) -> Term:
        return Any((self, other))

    def __invert__(self) -> Term:
        return Not(self)

    def __bool__(self) -> bool:
        raise TypeError("a formula has no truth value of its own: combine with &, | and ~, then evaluate it")


@attrs.frozen(eq=False)
class Field(Term):
    """One variable of the model: ``Field("phase", "room", ("new", "boot", …))``. The first label is where it starts."""

    name: str
    owner: str
    labels: tuple[str, ...]

    def __eq__(self, other: object) -> Term:  # type: ignore[override]  # a formula, as in every symbolic library
        if isinstance(other, Field):
            if other.labels != self.labels:
                raise TypeError(f"{self.name} and {other.name} have different labels")
            return Same(self, other)
        return Is(self, self.index(other))

    def __ne__(self, other: object) -> Term:  # type: ignore[override]  # a formula too
        return Not(self == other)

    __hash__ = object.__hash__

    def in_(self, *labels: str) -> Term:
        """The field has one of the labels."""
        return Any(tuple(self == label for label in labels))

    def index(self, label: object) -> int:
        """Position of a label; TypeError if the field has no such label."""
        if label not in self.labels:
            raise TypeError(f"{self.name} is never {label!r}: it is one of {', '.join(self.labels)}")
        return self.labels.index(str(label))


@attrs.frozen(eq=False)
class Var(Field):
    """A field of one particular room, chunk or worker: what is left of fields once an instance is fixed.

    ``place`` is the number of its element of a sort of which there may be any number, or of the crowd (its worker), or
    else of its room. Where a field names one of any number of elements, there is a variable for each that it could
    name, which says yes or no; ``names`` is that element.
    """

    field: Field = attrs.field(kw_only=True)
    place: int = attrs.field(kw_only=True)
    names: int = attrs.field(default=0, kw_only=True)


@attrs.frozen(eq=False)
class Is(Term):
    """``field == label``."""

    field: Field
    index: int


@attrs.frozen(eq=False)
class Same(Term):
    """``field == field``: two fields with the same labels have the same one."""

    left: Field
    right: Field


@attrs.frozen(eq=False)
class Not(Term):
    """``~formula``."""

    part: Term


@attrs.frozen(eq=False)
class All(Term):
    """``formula & formula``; with no parts, true."""

    parts: tuple[Term, ...]


@attrs.frozen(eq=False)
class Any(Term):
    """``formula | formula``; with no parts, false."""

    parts: tuple[Term, ...]


@attrs.frozen(eq=False)
class Label(Term):
    """A label as a value, to be stored in a field that has it."""

    label: str


@attrs.frozen(eq=False)
class Where(Term):
    """``then`` if the formula holds, ``other`` if not."""

    when: Term
    then: Term
    other: Term


@attrs.frozen(eq=False)
class Merged(Term):
    """What the design's merge stores for an incoming status, over a status that was read."""

    current: Field
    incoming: int


@attrs.frozen(eq=False)
class Stores(Term):
    """Over a status that was read, the merge stores this one (by index); with None, it returns without a store."""

    current: Field
    incoming: int
    stored: int | None


@attrs.frozen(eq=False)
class ForAll(Term):
    """The formula holds for every element of a sort, ``"worker"``; or every ``"other worker"``, ``"earlier chunk"``."""

    over: str
    part: Term


@attrs.frozen(eq=False)
class Every(Term):
    """Of ``ForAll``, once bound to an instance with any number of a sort: the part holds for every one of them."""

    part: Term
    sort: str


@attrs.frozen(eq=False)
class Ordered(Term):
    """In an instance with any number of a sort: of two elements, left is right, or comes before it; left is the last.

    Elements are given as the places of variables are: the one at hand, or the one that a quantifier speaks of.
    """

    sort: str
    relation: Literal["same", "before", "last"]
    left: int
    right: int = 0


@attrs.frozen(eq=False)
class LastChunk(Term):
    """The chunk at hand is the last one of the request."""


@attrs.frozen(eq=False)
class ThisChunk(Term):
    """As a value, the number of the chunk at hand; with a field, the formula that the field has that number."""

    field: Field | None = None


@attrs.frozen(eq=False)
class AnyRequests(Term):
    """Any number of requests may use a room id: what is said of the first one is said of any older one."""


TRUE = All(())
FALSE = Any(())


def where(when: Term, then: Term | str, other: Term | str) -> Term:
    """``then`` if the formula holds, ``other`` if not; strings are labels."""
    return Where(when, value(then), value(other))


def value(term: Term | str) -> Term:
    """A label or a term, as a term."""
    return Label(term) if isinstance(term, str) else term


def implies(premise: Term, conclusion: Term) -> Term:
    """If the premise holds, so does the conclusion."""
    return ~premise | conclusion


def some(sort: str, claim: Term) -> Term:
    """The claim holds of at least one element of a sort."""
    return ~ForAll(sort, ~claim)


class Algebra(Protocol[B, V]):
    """What an engine must know: what a truth is (B) and what a value is (V): columns, solver terms, ints."""

    def is_(self, var: Var, index: int) -> B: ...
    def same(self, left: Var, right: Var) -> B: ...
    def not_(self, part: B) -> B: ...
    def all_(self, parts: list[B]) -> B: ...
    def any_(self, parts: list[B]) -> B: ...
    def where(self, when: B, then: V, other: V) -> V: ...
    def label(self, target: Var, index: int) -> V: ...
    def read(self, var: Var) -> V: ...
    def merged(self, current: Var, incoming: int) -> V: ...
    def stores(self, current: Var, incoming: int, stored: int | None) -> B: ...
    def every(self, part: B, sort: str) -> B: ...
    def ordered(self, order: Ordered) -> B: ...


class Enumerated:
    """The part shared by the algebras of finite instances, in which no quantifier is left."""

    __slots__ = ()

    def every(self, part: object, sort: str) -> NoReturn:
        """TypeError: a quantifier became a conjunction when the instance was fixed."""
        raise TypeError(f"any number of {sort}s: this has no concrete states")

    def ordered(self, order: Ordered) -> NoReturn:
        """TypeError: which chunk comes first was settled when the instance was fixed."""
        raise TypeError(f"any number of {order.sort}s: this has no concrete states")


def evaluate(term: Term, algebra: Algebra[B, V]) -> B:
    """The meaning of a ground formula (no quantifier left, every field a :class:`Var`)."""
    match term:
        case Is(Var() as var, index):
            return algebra.is_(var, index)
        case Same(Var() as left, Var() as right):
            return algebra.same(left, right)
        case Not(part):
            return algebra.not_(evaluate(part, algebra))
        case All(parts):
            return algebra.all_([evaluate(part, algebra) for part in parts])
        case Any(parts):
            return algebra.any_([evaluate(part, algebra) for part in parts])
        case Stores(Var() as current, incoming, stored):
            return algebra.stores(current, incoming, stored)
        case Every(part, sort):
            return algebra.every(evaluate(part, algebra), sort)
        case Ordered():
            return algebra.ordered(term)
    raise TypeError(f"not a ground formula: {term}")


def assign(target: Var, term: Term, algebra: Algebra[B, V]) -> V:
    """The value that a ground term gives to a variable."""
    match term:
        case Label(label):
            return algebra.label(target, target.index(label))
        case Where(when, then, other):
            return algebra.where(evaluate(when, algebra), assign(target, then, algebra), assign(target, other, algebra))
        case Var():
            if term.labels != target.labels:
                raise TypeError(f"{term.name} cannot be stored in {target.name}: different labels")
            return algebra.read(term)
        case Merged(Var() as current, incoming):
            return algebra.merged(current, incoming)
    raise TypeError(f"not a value for {target.name}: {term}")


def rewrite(term: Term, change: Callable[[Term], Term | None]) -> Term:
    """The term with every part that ``change`` answers replaced by its answer; None leaves a part as it is."""
    new = change(term)
    if new is not None:
        return new
    match term:
        case Same(left, right):
            return Same(_field(left, change), _field(right, change))
        case Is(field, index):
            return Is(_field(field, change), index)
        case Not(part):
            inner = rewrite(part, change)
            return FALSE if inner is TRUE else TRUE if inner is FALSE else Not(inner)
        case All(parts):
            return _combine(All, (rewrite(part, change) for part in parts), neutral=TRUE, absorbing=FALSE)
        case Any(parts):
            return _combine(Any, (rewrite(part, change) for part in parts), neutral=FALSE, absorbing=TRUE)
        case Every(part, sort):
            inner = rewrite(part, change)
            return inner if inner is TRUE or inner is FALSE else Every(inner, sort)
        case Where(when, then, other):
            when = rewrite(when, change)
            if when is TRUE or when is FALSE:
                return rewrite(then if when is TRUE else other, change)
            return Where(when, rewrite(then, change), rewrite(other, change))
        case Merged(current, incoming):
            return Merged(_field(current, change), incoming)
        case Stores(current, incoming, stored):
            return Stores(_field(current, change), incoming, stored)
    return term


def _field(field: Field, change: Callable[[Term], Term | None]) -> Field:
    new = change(field)
    return new if isinstance(new, Field) else field


def _combine(kind: type[All | Any], parts: Iterable[Term], *, neutral: Term, absorbing: Term) -> Term:
    kept = [part for part in parts if part is not neutral]
    if any(part is absorbing for part in kept):
        return absorbing
    if not kept:
        return neutral
    return kept[0] if len(kept) == 1 else kind(tuple(kept))


def fields(term: Term) -> set[Field]:
    """Every field that a term reads: its footprint."""
    found: set[Field] = set()

    def change(part: Term) -> Term | None:
        match part:
            case Field():
                found.add(part)
            case ThisChunk(Field() as named):
                found.add(named)
            case ForAll(_, inner):
                found.update(fields(inner))
                return part
        return None

    rewrite(term, change)
    return found


def free(term: Term) -> set[str]:
    """What a term leaves open, and must be told where it is used: its room, its worker, its chunk."""
    found: set[str] = set()

    def change(part: Term) -> Term | None:
        match part:
            case Field():
                found.add(part.owner)
            case ThisChunk():
                found.add("chunk")
                if part.field is not None:
                    found.add(part.field.owner)
            case ForAll(over, inner):
                found.update(free(inner) - {over})
                if " " in over:
                    found.add(over.split()[1])
                return part
        return None

    rewrite(term, change)
    return found


State = Mapping[Var, int]
"""One concrete state: the index of each variable's label."""
