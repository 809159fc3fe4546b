"""The rank: three numbers that every step makes smaller, the first that differs deciding, so no run goes on for ever.

The first is the number of requests that may still come on the room id (a protocol's field ``lives``): a second one
leaves one less. The second is the sum of potentials: each label of a field has one, the number of steps that may still
come from it (``potential``); what is not listed has none. Every other step lowers it but one: a retry lowers the third
number, which counts the threads that wait between their read and their swap while what they have seen is out of date. A
store may raise the third number, but moves its own thread on, and so lowers the second. With finitely many requests and
workers all three are finite.
"""

from __future__ import annotations

from typing import Final

import attrs
import z3

from kvlatch.proofs.terms import Symbolic
from kvlatch.spec.model import Model
from kvlatch.spec.terms import Var

BITS: Final = 8


@attrs.frozen(eq=False)
class Part:
    """One summand of the potential, and the variable that it depends on."""

    term: z3.BitVecRef
    var: Var


def parts(model: Model, state: Symbolic) -> list[Part]:
    """The summands of a state's potential, one for each variable that has any."""
    found = []
    potential = model.protocol.potential
    for var in model.variables:
        if var.field in potential:
            term = z3.BitVecVal(0, BITS)
            for label, steps in potential[var.field].items():
                if label in var.labels:
                    term = z3.If(state.is_(var, var.labels.index(label)), z3.BitVecVal(steps, BITS), term)
            found.append(Part(term, var))
    return found


def greatest(model: Model) -> int:
    """A bound for what one step can touch: one of the crowd and one room; it must fit into ``BITS`` bits."""
    protocol = model.protocol
    others = {var for var in model.variables if var.owner == protocol.crowd and var.place != 0}
    touched = [var for var in model.variables if var not in others]
    return sum(max(protocol.potential.get(var.field, {}).values(), default=0) for var in touched)
