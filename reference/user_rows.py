"""Rows and lemmas of a user's own design as data: so they leave the process in which the user's module was imported.

A formula is a tree: ``{"is": "All", "parts": […]}``, with a member for each attribute of the term. A field is its name,
if it is the protocol's; else what it is made of.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs

from kvlatch.spec import terms
from kvlatch.spec.schema import Lemma, Protocol, Rule
from kvlatch.spec.terms import FALSE, TRUE, Field, Term

_TERMS: Final = {
    kind.__name__: kind
    for kind in (
        terms.Is, terms.Same, terms.Not, terms.All, terms.Any, terms.Label, terms.Where, terms.Merged, terms.Stores,
        terms.ForAll, terms.LastChunk, terms.ThisChunk, terms.AnyRequests,
    )
}  # fmt: skip
_TEXTS: Final = ("name", "actor", "at", "write", "fair", "per", "result", "requests", "says")
"""The members of a row that are plain data."""


def dumped(rows: object, protocol: Protocol) -> list[dict[str, Any]]:
    """The rows as JSON values. ValueError for what is no row, or a field that only looks like one of the protocol."""
    if not isinstance(rows, tuple | list) or not all(isinstance(rule, Rule) for rule in rows):
        raise ValueError("its rows are no tuple of kvlatch.spec.schema.Rule")
    known = _fields(protocol)
    return [_row(rule, known) for rule in rows]


def dumped_lemmas(lemmas: object, protocol: Protocol) -> list[dict[str, Any]]:
    """The lemmas as JSON values; ValueError as for rows."""
    if not isinstance(lemmas, tuple | list) or not all(isinstance(lemma, Lemma) for lemma in lemmas):
        raise ValueError("its lemmas are no tuple of kvlatch.spec.schema.Lemma")
    known = _fields(protocol)
    found = []
    for lemma in lemmas:
        if not isinstance(lemma.claim, Term) or isinstance(lemma.claim, Field):
            raise ValueError(f"lemma {lemma.name}: what it claims is no formula")
        found.append({"name": lemma.name, "claim": _dump(lemma.claim, known, f"lemma {lemma.name}")})
    return found


def _row(rule: Rule, known: Mapping[str, Field]) -> dict[str, Any]:
    def dump(part: object) -> Any:
        return _dump(part, known, f"row {rule.name}")

    members = {name: getattr(rule, name) for name in _TEXTS}
    then = [[dump(field), dump(value)] for field, value in rule.then.items()]
    return members | {"to": dump(rule.to), "when": dump(rule.when), "then": then, "where": dict(rule.where)}


def _dump(part: object, known: Mapping[str, Field], of: str) -> Any:
    if isinstance(part, Field):
        if known.get(part.name) is part:
            return {"called": part.name}
        if part.name in known:
            raise ValueError(f"{of}: {part.name!r} is a field of the protocol, and this is another one of that name")
        return {"called": part.name, "owner": part.owner, "labels": list(part.labels)}
    if isinstance(part, Term):
        if type(part).__name__ not in _TERMS:
            raise ValueError(f"{of}: {type(part).__name__} is not something that a formula is made of")
        names: Any = type(part)
        members = {one.name: _dump(getattr(part, one.name), known, of) for one in attrs.fields(names)}
        return {"is": type(part).__name__, **members}
    if isinstance(part, tuple | list):
        return [_dump(one, known, of) for one in part]
    if part is None or isinstance(part, str | int):
        return part
    raise ValueError(f"{of}: {part!r} is not something that a formula is made of")


def loaded(
    rows: list[dict[str, Any]], lemmas: list[dict[str, Any]], protocol: Protocol
) -> tuple[tuple[Rule, ...], tuple[Lemma, ...]]:
    """The rows and lemmas that were dumped; TypeError for a label that its field does not have."""
    load = _loader(dict(_fields(protocol)))
    own = tuple(
        Rule(
            **{name: row[name] for name in _TEXTS},
            to=load(row["to"]),
            when=load(row["when"]),
            then={load(field): load(value) for field, value in row["then"]},
            where=row["where"],
        )
        for row in rows
    )
    return own, tuple(Lemma(lemma["name"], load(lemma["claim"])) for lemma in lemmas)


def _loader(known: dict[str, Field]) -> Callable[[Any], Any]:
    def load(part: Any) -> Any:
        if isinstance(part, list):
            return tuple(load(one) for one in part)
        if not isinstance(part, dict):
            return part
        if "called" in part:
            name = part["called"]
            if name not in known:
                known[name] = Field(name, part["owner"], tuple(part["labels"]))
            return known[name]
        kind = _TERMS[part["is"]]
        members = {name: load(value) for name, value in part.items() if name != "is"}
        if members.get("parts") == ():  # engines know true and false by identity
            return TRUE if kind is terms.All else FALSE
        return kind(**members)

    return load


def _fields(protocol: Protocol) -> dict[str, Field]:
    home = [protocol.home.field] if protocol.home else []
    return {field.name: field for field in (*protocol.state, *protocol.switches, *home)}
