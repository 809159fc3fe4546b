"""Sorts of which there is any number: the elements that formulas name, their order, and what keeps them decidable."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from itertools import product

import attrs
import z3

from kvlatch.spec.steps import NO, YES
from kvlatch.spec.terms import Var


@attrs.frozen(eq=False)
class Elements:
    """A sort of which there is any number, and the elements that formulas name."""

    name: str
    sort: z3.SortRef
    this: z3.ExprRef
    """The one that acts, or that a step is about."""
    some: z3.ExprRef
    """The one that a lemma speaks of."""
    witness: z3.ExprRef
    """The one of which a lemma is said not to hold."""
    each: z3.ExprRef
    """The one that a quantifier within a lemma or a guard speaks of."""
    last: z3.ExprRef
    before: z3.FuncDeclRef


@cache
def elements(name: str) -> Elements:
    """The elements of a sort, by its name."""
    sort = z3.DeclareSort(name.capitalize())
    named = {which: z3.Const(f"{which} {name}", sort) for which in ("this", "some", "witness", "each", "last")}
    return Elements(name, sort, **named, before=z3.Function(f"{name} before", sort, sort, z3.BoolSort()))


@attrs.frozen(eq=False)
class Conditions:
    """Quantified conditions with names: Boolean constants, defined where they are used."""

    named: dict[z3.BoolRef, z3.BoolRef] = attrs.field(factory=dict)
    """Each condition by its name."""

    def name(self, condition: z3.BoolRef) -> z3.BoolRef:
        """The name of a condition."""
        for name, known in self.named.items():
            if known.eq(condition):
                return name
        name = z3.Bool(f"condition {len(self.named) + 1}")
        self.named[name] = condition
        return name

    def defined(self, terms: Iterable[z3.ExprRef]) -> list[z3.BoolRef]:
        """The definitions of the names in some terms."""
        found = list(terms)
        return [name == condition for name, condition in self.named.items() if any(mentions(t, [name]) for t in found)]


@attrs.frozen(eq=False)
class Sorts:
    """The sort graph: an edge where a formula says that for each element of one sort there is one of another."""

    edges: set[tuple[str, str]] = attrs.field(factory=set)

    def admit(self, formula: z3.BoolRef) -> None:
        """Add the edges of a formula; ValueError if there is a circle now: nothing would be decidable any more."""
        found = self.edges | set(_alternations(formula, True, ()))
        reach = found
        while (longer := reach | {(a, d) for a, b in reach for c, d in found if b == c}) != reach:
            reach = longer
        if circle := sorted(a for a, b in reach if a == b):
            said = ", ".join(f"for each {a} there is another {b}" for a, b in sorted(found) if {a, b} <= set(circle))
            raise ValueError(f"{said}: this is not effectively propositional")
        self.edges.update(found)


def _alternations(formula: z3.ExprRef, positive: bool, within: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """For every quantifier that says that there is an element: each sort of those of which it is said that there is."""
    if z3.is_quantifier(formula):
        sorts = tuple(str(formula.var_sort(index)).lower() for index in range(formula.num_vars()))
        if formula.is_forall() is positive:
            within = (*within, *sorts)
        else:
            yield from product(within, sorts)
        yield from _alternations(formula.body(), positive, within)
    elif z3.is_not(formula) or z3.is_implies(formula):
        *premises, last = formula.children()
        for premise in premises or [last]:
            yield from _alternations(premise, not positive, within)
        if premises:
            yield from _alternations(last, positive, within)
    elif z3.is_and(formula) or z3.is_or(formula):
        for part in formula.children():
            yield from _alternations(part, positive, within)
    elif quantified(formula):
        for part in formula.children():
            yield from _alternations(part, True, within)
            yield from _alternations(part, False, within)


def quantified(term: z3.ExprRef) -> bool:
    return z3.is_quantifier(term) or any(map(quantified, term.children()))


def mentions(term: z3.ExprRef, constants: Iterable[z3.ExprRef]) -> bool:
    """One of the constants is free in the term."""
    wanted, seen, left = {one.get_id() for one in constants}, set(), [term]
    while left:
        part = left.pop()
        if part.get_id() in wanted:
            return True
        if part.get_id() not in seen:
            seen.add(part.get_id())
            left += [part.body()] if z3.is_quantifier(part) else part.children()
    return False


def order_of(sort: Elements) -> list[z3.BoolRef]:
    """The elements have a strict total order, with a last one."""
    one, two, three = z3.Consts("one two three", sort.sort)
    return [
        z3.ForAll([one], z3.Not(sort.before(one, one))),
        z3.ForAll(
            [one, two, three],
            z3.Implies(z3.And(sort.before(one, two), sort.before(two, three)), sort.before(one, three)),
        ),
        z3.ForAll([one, two], z3.Or(one == two, sort.before(one, two), sort.before(two, one))),
        z3.ForAll([one], z3.Or(one == sort.last, sort.before(one, sort.last))),
    ]


def relation(var: Var) -> bool:
    """The variable says of an element whether it is the one that another names."""
    return var.labels == (NO, YES) and var.labels != var.field.labels
