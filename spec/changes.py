"""A protocol as a design changes it: with rows and lemmas of the design's own, and without others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import TypeVar

import attrs

from kvlatch.spec.schema import AnyDesign, Lemma, Protocol, Rule
from kvlatch.spec.terms import Field, Label, Term, Where, fields

Named = TypeVar("Named", Rule, Lemma)


def changed(protocol: Protocol, design: AnyDesign) -> Protocol:
    """The protocol of a design (``AnyDesign``); fields that only its rows know join the state.

    ValueError for a row or a lemma that cannot be one of this protocol. One value for one choice of both.
    """
    if not (design.rows or design.without or design.lemmas or design.without_lemmas):
        return protocol
    return _changed(protocol, design.rows, design.without, design.lemmas, design.without_lemmas)


@cache
def _changed(
    protocol: Protocol,
    rows: tuple[Rule, ...],
    without: tuple[str, ...],
    lemmas: tuple[Lemma, ...],
    without_lemmas: tuple[str, ...],
) -> Protocol:
    all_rows = _joined("row", protocol, protocol.rows, rows, without)
    all_lemmas = _joined("lemma", protocol, protocol.lemmas, lemmas, without_lemmas)
    known = {*protocol.state, *protocol.switches, *([protocol.home.field] if protocol.home else [])}
    added: dict[str, Field] = {}
    for rule in rows:
        _fits(rule, protocol)
        for field in sorted(_of_rule(rule) - known, key=lambda field: field.name):
            if added.setdefault(field.name, field) is not field or field.name in {one.name for one in known}:
                raise ValueError(f"row {rule.name}: its field {field.name!r} is another one than that of this name")
            if field.owner not in ("room", *protocol.sorts):
                raise ValueError(f"row {rule.name}: its field {field.name!r} belongs to no sort of the protocol")
    for lemma in lemmas:
        if unknown := sorted(field.name for field in set(fields(lemma.claim)) - known - set(added.values())):
            raise ValueError(f"lemma {lemma.name!r}: no row reads or sets its field {unknown[0]!r}")
    names = {lemma.name for lemma in all_lemmas}
    return attrs.evolve(
        protocol,
        state=(*protocol.state, *added.values()),
        rows=all_rows,
        lemmas=all_lemmas,
        few={prop: tuple(name for name in few if name in names) for prop, few in protocol.few.items()},
    )


def _joined(
    kind: str, protocol: Protocol, shipped: Iterable[Named], own: Sequence[Named], without: Iterable[str]
) -> tuple[Named, ...]:
    """What ships but for what is left out, with a design's own in the places of those of the same names, or after."""
    kept = {one.name: one for one in shipped}
    known = list(kept)
    for name in without:
        if kept.pop(name, None) is None:
            named = ", ".join(known) or "it has none"
            raise ValueError(f"no {kind} of the protocol {protocol.name} is called {name!r}: they are {named}")
    if len({one.name for one in own}) < len(own):
        raise ValueError(f"two {kind}s have one name: {', '.join(one.name for one in own)}")
    return tuple((kept | {one.name: one for one in own}).values())


def _of_rule(rule: Rule) -> set[Field]:
    """Every field that a row reads or sets."""
    terms = [rule.when, rule.order, *(term for term in (rule.to, *rule.then.values()) if isinstance(term, Term))]
    return set(rule.then).union(*map(fields, terms))


def _labels(value: str | Term) -> Iterator[str]:
    """The labels that a value may be, as far as they are written down."""
    match value:
        case str():
            yield value
        case Label(label):
            yield label
        case Where(_, then, other):
            yield from (*_labels(then), *_labels(other))


def _fits(rule: Rule, protocol: Protocol) -> None:
    """ValueError if the protocol has no such thread or place, or nothing that the row could write."""
    if rule.actor not in protocol.threads:
        raise ValueError(f"row {rule.name}: no actor is called {rule.actor!r}: they are {', '.join(protocol.threads)}")
    pc = protocol.threads[rule.actor].pc
    for place in (rule.at, *([rule.to] if isinstance(rule.to, str) else [])):
        if place not in pc.labels:
            raise ValueError(
                f"row {rule.name}: the {rule.actor} is never at {place!r}: its places are {', '.join(pc.labels)}"
            )
    for field, value in rule.then.items():
        for label in _labels(value):
            if label not in field.labels:
                raise ValueError(f"row {rule.name}: {field.name} is never {label!r}: it is {', '.join(field.labels)}")
    if rule.per is not None and rule.per not in protocol.sorts:
        raise ValueError(f"row {rule.name}: {rule.per!r} is no sort of the protocol: {', '.join(protocol.sorts)}")
    if rule.write is not None and (protocol.entry is None or rule.write not in protocol.entry.status.labels):
        raise ValueError(f"row {rule.name}: {rule.write!r} is no status that this protocol could write")
