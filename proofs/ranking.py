"""The rank: three numbers that every step makes smaller, the first that differs deciding, so no run goes on for ever.

The first is the number of requests that may still come on the room id: a second one leaves one less. The second is the
sum of potentials: each label of a field has one, the number of steps that may still come from it; what is not listed
has none. Every other step lowers it but one: a retry lowers the third number, which counts the threads that wait
between their read and their swap while what they have seen is out of date. A store may raise the third number, but
moves its own thread on, and so lowers the second. With finitely many requests and workers all three are finite.
"""

from __future__ import annotations

from typing import Final

import attrs
import z3

from kvlatch.proofs.terms import Symbolic
from kvlatch.spec.model import Model
from kvlatch.spec.protocol import (
    bootstrap,
    chunk,
    latch,
    metadata,
    notice,
    phase,
    scheduler,
    stale,
    straggler,
    worker,
)
from kvlatch.spec.terms import Field, Var

BITS: Final = 8

POTENTIAL: Final[dict[Field, dict[str, int]]] = {
    phase: {"new": 21, "boot": 18, "running": 15, "inflight": 12, "clearing": 9, "forgetting": 6, "releasing": 3},
    latch: {"none": 3},
    scheduler: {"free": 1},
    metadata: {"none": 10, "once": 5},
    notice: {"none": 10, "once": 5},
    straggler: {"due": 5},
    bootstrap: {"registered": 3, "write_w*": 2, "aborting": 4, "write_f*": 3, "popping": 1},
    chunk: {"unsent": 17, "queued": 16},
    stale: {"yes": 16},
    worker: {
        "taken": 14, "checked": 13, "ready": 12, "write_t*": 11, "posting": 10, "transferring": 9, "arrived": 7,
        "concluding": 6, "failing": 6, "write_s*": 5, "fail*": 5, "telling": 4, "popping": 2, "marking": 2,
        "write_t_again*": 1,
    },
}  # fmt: skip


@attrs.frozen(eq=False)
class Part:
    """One summand of the potential, and the variable that it depends on."""

    term: z3.BitVecRef
    var: Var


def parts(model: Model, state: Symbolic) -> list[Part]:
    """The summands of a state's potential, one for each variable that has any."""
    found = []
    for var in model.variables:
        if var.field in POTENTIAL:
            term = z3.BitVecVal(0, BITS)
            for label, potential in POTENTIAL[var.field].items():
                if label in var.labels:
                    term = z3.If(state.is_(var, var.labels.index(label)), z3.BitVecVal(potential, BITS), term)
            found.append(Part(term, var))
    return found


def greatest(model: Model) -> int:
    """A bound for what one step can touch: one worker and one room; it must fit into ``BITS`` bits."""
    workers = [var for var in model.variables if var.field is worker][1:]
    touched = [var for var in model.variables if var not in set(workers)]
    return sum(max(POTENTIAL.get(var.field, {}).values(), default=0) for var in touched)
