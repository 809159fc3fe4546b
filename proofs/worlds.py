"""The scope of a proof, in words; and the worlds in which a counterexample is looked for, gentlest first.

A maintainer rightly asks what a counterexample needs. So the search tries an orderly network and a single request
first, and only what holds there is tried with lost, doubled, early and late messages, then with a room id that is used
again, then with both. The suffix says in the matrix which world it took.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import attrs

from kvlatch.spec.model import Machine
from kvlatch.spec.room import ROOM
from kvlatch.spec.schema import ANY, Network, Property, Protocol, Sizes

WORLDS: Final = ROOM.worlds
EVERYTHING: Final = ROOM.everything
"""The world of proofs: every run of every world above is one of its runs."""

WORKERS: Final = ROOM.counts
"""The numbers of transfer workers of the matrix."""


def scope_of(protocol: Protocol, sizes: Sizes, network: Network) -> str:
    """What a proof about an instance is about, in words."""
    return "; ".join([_crowd(protocol, sizes), ", ".join([*_bounds(protocol, sizes), f"{network} network"])])


def scope_of_machine(machine: Machine) -> str:
    """What a proof about a machine is about; TypeError if its switches are open."""
    if machine.model.fix is None:
        raise TypeError("a model whose switches are open is about no network")
    return scope_of(machine.protocol, machine.model.instance, machine.model.fix.network)


def bounds_of(machine: Machine, prop: Property) -> dict[str, int | str | None]:
    """The scope of a proof of a property as fields; ``any`` is any number, ``fairness`` None where none was needed."""
    protocol, sizes, fix = machine.protocol, machine.model.instance, machine.model.fix
    counts: dict[str, int | str | None] = {name: count or "any" for name, count in attrs.asdict(sizes).items()}
    if machine.model.any and protocol.home:
        counts["rooms"] = "any"
    fairness = "weak: a step of the server that stays enabled is taken" if prop.kind == "liveness" else None
    return {**counts, "network": fix.network if fix else None, "fairness": fairness}


def _crowd(protocol: Protocol, sizes: Sizes) -> str:
    if protocol.crowd is None:
        return f"one {protocol.name}"
    if sizes.count(protocol.crowd) == ANY:
        return f"any number of {'rooms and ' if protocol.home else ''}{protocol.crowd}s"
    one = "one room" if protocol.home else f"one {protocol.name}"
    count = sizes.count(protocol.crowd)
    return f"{one}, one {protocol.crowd}" if count == 1 else f"{one}, up to {count} {protocol.crowd}s"


def _bounds(protocol: Protocol, sizes: Sizes) -> Iterator[str]:
    for sort, suffix in (*((sort, "") for sort in protocol.sorts), ("request", " on a room id")):
        if sort != protocol.crowd and hasattr(sizes, f"{sort}s"):
            yield f"{sizes.count(sort)} {sort}s{suffix}"
