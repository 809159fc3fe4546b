"""What one protocol relies on in another: each clause an assumption here, and an obligation there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from kvlatch.spec.terms import Term

if TYPE_CHECKING:
    from kvlatch.spec.schema import Protocol


@attrs.frozen(eq=False)
class Clause:
    """A row waits for something in a neighbour: its *assumption*, in terms of its own protocol.

    The obligation is in the neighbour's terms: no step there brings ``event`` about, unless ``demand`` holds before.
    """

    row: str
    says: str
    assumption: Term
    event: Term
    demand: Term


@attrs.frozen(eq=False)
class Contract:
    """The clauses that a protocol rests on, and the neighbour that keeps them, in its design of that name."""

    clauses: tuple[Clause, ...]
    neighbour: Protocol
    design: str
