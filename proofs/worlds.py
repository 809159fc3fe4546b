"""The scope of a proof, in words; and the worlds in which a counterexample is looked for, gentlest first.

A maintainer rightly asks what a counterexample needs. So the search tries an orderly network and a single request
first, and only what holds there is tried with lost, doubled, early and late messages, then with a room id that is used
again, then with both. The suffix says in the matrix which world it took.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    counts = _counts(protocol, sizes)
    unbounded = [f"{sort}s{suffix}" for (sort, suffix), count in counts.items() if count == ANY]
    bounded = [f"{n} {sort}{'s' * (n > 1)}{suffix}" for (sort, suffix), n in counts.items() if n != ANY]
    crowd = [f"any number of {_listed(unbounded)}"] if unbounded else []
    if protocol.crowd is None or sizes.count(protocol.crowd) != ANY:
        crowd = [*_few(protocol, sizes), *crowd]
    return "; ".join([", ".join(crowd), ", ".join([*bounded, f"{network} network"])])


def scope_of_machine(machine: Machine) -> str:
    """What a proof about a machine is about; TypeError if its switches are open."""
    if machine.model.fix is None:
        raise TypeError("a model whose switches are open is about no network")
    return scope_of(machine.protocol, machine.model.instance, machine.model.fix.network)


def bounds_of(machine: Machine, prop: Property) -> dict[str, int | str | None]:
    """The scope of a proof of a property as fields; ``any`` is any number, ``fairness`` None where none was needed."""
    protocol, sizes, fix = machine.protocol, machine.model.instance, machine.model.fix
    counts: dict[str, int | str | None] = {name: count or "any" for name, count in attrs.asdict(sizes).items()}
    if protocol.home and protocol.crowd and sizes.count(protocol.crowd) == ANY:
        counts["rooms"] = "any"
    return {**counts, "network": fix.network if fix else None, "fairness": fairness_of(machine, prop)}


def fairness_of(machine: Machine, prop: Property) -> str | None:
    """The fairness that a proof of a property assumes of the steps of the server; None of a safety property's.

    Weak: a step that stays enabled is taken. Strong: one that is enabled again and again is.
    """
    if prop.kind == "safety":
        return None
    protocol, sizes = machine.protocol, machine.model.instance
    weak = "weak fairness"
    if protocol.home is None or protocol.crowd is None or sizes.count(protocol.crowd) != ANY:
        return weak
    idle = [action.rule for action in machine.model.actions if action.fair and protocol.crowd in action.arguments]
    starts = dict.fromkeys(rule.name for rule in idle if rule.at == protocol.home.idle)
    return f"{weak}, and strong fairness of {_listed(list(starts))}"


def _counts(protocol: Protocol, sizes: Sizes) -> dict[tuple[str, str], int]:
    """How many there are of what a proof counts, by sort and where that is; rooms and the crowd if any number."""
    counts: dict[tuple[str, str], int] = {}
    if protocol.crowd and sizes.count(protocol.crowd) == ANY:
        counts |= {("room", ""): ANY} if protocol.home else {}
        counts[protocol.crowd, ""] = ANY
    counts |= {(sort, ""): sizes.count(sort) for sort in protocol.sorts if sort != protocol.crowd}
    return counts | ({("request", " on a room id"): sizes.count("request")} if hasattr(sizes, "requests") else {})


def _few(protocol: Protocol, sizes: Sizes) -> list[str]:
    """The crowd, where it is counted."""
    if protocol.crowd is None:
        return ["one room"]
    room = ["one room"] if protocol.home else []
    count = sizes.count(protocol.crowd)
    return [*room, f"one {protocol.crowd}" if count == 1 else f"up to {count} {protocol.crowd}s"]


def _listed(words: Sequence[str]) -> str:
    *some, last = words
    return f"{', '.join(some)} and {last}" if some else last
