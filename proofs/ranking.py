"""The rank: two numbers that every step makes smaller, the first that differs deciding, so no life goes on for ever.

A life is the time of one request on the room id. The next one begins with a step of its own (which sets the protocol's
field ``lives``), and the obligation of that step is that the last request has settled: so a request that does not
settle has all the rest of the run to itself, however many requests there might be.

The first number is the sum of potentials: each label of a field has one, the number of steps that may still come from
it (``potential``); what is not listed has none. Where one label stands for several alike things, of several older
requests, each of them has that potential, and a step that uses one up and leaves others takes it away
(:func:`spent`). Every step lowers this number but one: a retry lowers the second, which counts the threads that wait
between their read and their swap while what they have seen is out of date. A store may raise the second number, but
moves its own thread on, and so lowers the first. Elements and messages are finitely many, so both are finite.
"""

from __future__ import annotations

from typing import Final

import attrs
import z3

from kvlatch.proofs.terms import Symbolic
from kvlatch.spec.model import EVERY, Action, Model
from kvlatch.spec.schema import Protocol
from kvlatch.spec.steps import MORE
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


def spent(action: Action | None, protocol: Protocol) -> int:
    """The potential of what a step uses up although its label stays, since there is more of it."""
    if action is None or action.part != MORE or protocol.older is None:
        return 0
    piles = {field: label for field, label in protocol.older.piles.items() if field in action.rule.then}
    return sum(protocol.potential.get(field, {}).get(label, 0) for field, label in piles.items())


def greatest(model: Model) -> int:
    """A bound for what one step can touch: one of the crowd and one room; it must fit into ``BITS`` bits."""
    protocol = model.protocol
    others = {var for var in model.variables if var.owner == protocol.crowd and var.place != 0}
    touched = [var for var in model.variables if var not in others and var.place != EVERY]
    most = max((spent(action, protocol) for action in model.actions), default=0)
    return most + sum(max(protocol.potential.get(var.field, {}).values(), default=0) for var in touched)
