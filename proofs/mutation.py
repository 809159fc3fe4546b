"""What a mutant is: one change of a protocol or of a design, and how a part of a protocol is changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import attrs

from kvlatch.proofs.search import Search, explore
from kvlatch.spec.designs import DESIGNS
from kvlatch.spec.model import Instance, Machine
from kvlatch.spec.protocol import RULES
from kvlatch.spec.room import ROOM
from kvlatch.spec.schema import AnyDesign, Atomicity, Network, Protocol, Rule, Sizes
from kvlatch.spec.terms import Field, Term

LATCH: Final = DESIGNS["latch"]
SMALLEST: Final = Instance(workers=1, chunks=1)
ROWS: Final = {rule.name: rule for rule in RULES}


@attrs.frozen(eq=False)
class Mutant:
    """One change of a protocol or of a design, the property that it must break, and what else it breaks."""

    name: str
    prop: str
    says: str
    rules: tuple[Rule, ...] = RULES
    design: AnyDesign = LATCH
    atomicity: Atomicity = "locked"
    network: Network = "orderly"
    instance: Sizes = SMALLEST
    also: tuple[str, ...] = ()
    of: Protocol = ROOM

    @property
    def machine(self) -> Machine:
        """The mutant, running."""
        return Machine.of(self.design, self.atomicity, self.network, self.instance, self.of.with_rows(self.rules))


def search(mutant: Mutant) -> Search:
    """Every state that the mutant reaches, and every property that it breaks."""
    return explore(mutant.machine, mutant.of.properties)


def refute(mutant: Mutant) -> int:
    """The length of the shortest run in which the mutant breaks its property; ValueError if there is none."""
    length = search(mutant).length(mutant.prop)
    if length is None:
        raise ValueError(f"the mutant {mutant.name!r} does not break {mutant.prop}")
    return length


def changed(
    name: str, then: Mapping[Field, str | Term] | None = None, *, of: Protocol = ROOM, **parts: Any
) -> tuple[Rule, ...]:
    """The protocol with parts of one row replaced, and of its effects those in ``then``."""
    rows = {rule.name: rule for rule in of.rows}
    row = rows[name]
    return tuple((rows | {name: attrs.evolve(row, then={**row.then, **(then or {})}, **parts)}).values())


def without(name: str) -> tuple[Rule, ...]:
    """The protocol without one row."""
    return tuple(rule for rule in RULES if rule is not ROWS[name])
