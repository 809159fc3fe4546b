"""Which labels a variable can have at all, by abstract interpretation: a set of labels for each variable.

The sets start with the initial labels and grow until no step adds any. A formula is the set of truths that it can have,
each variable taken by itself, so the sets are too large rather than too small: what they exclude is never reached.
Search uses them for narrower states. Nothing that is proved rests on them; a step out of them raises.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from kvlatch.spec.model import Machine
from kvlatch.spec.terms import Enumerated, Var, assign, evaluate

Truths = frozenset[bool]
Labels = frozenset[int]
_BOTH: Truths = frozenset({True, False})


@attrs.frozen
class Possible(Enumerated):
    """The algebra of sets: the truths that a formula can have, and the labels that a value can have."""

    labels: Mapping[Var, Labels]
    merge: tuple[tuple[int | None, ...], ...]

    def is_(self, var: Var, index: int) -> Truths:
        return frozenset(label == index for label in self.labels[var])

    def same(self, left: Var, right: Var) -> Truths:
        return frozenset(one == other for one in self.labels[left] for other in self.labels[right])

    def not_(self, part: Truths) -> Truths:
        return frozenset(not truth for truth in part)

    def all_(self, parts: list[Truths]) -> Truths:
        if any(True not in part for part in parts):
            return frozenset({False})
        return _BOTH if any(False in part for part in parts) else frozenset({True})

    def any_(self, parts: list[Truths]) -> Truths:
        return self.not_(self.all_([self.not_(part) for part in parts]))

    def where(self, when: Truths, then: Labels, other: Labels) -> Labels:
        return (then if True in when else frozenset()) | (other if False in when else frozenset())

    def label(self, target: Var, index: int) -> Labels:
        return frozenset({index})

    def read(self, var: Var) -> Labels:
        return self.labels[var]

    def merged(self, current: Var, incoming: int) -> Labels:
        entries = ((entry, self.merge[entry][incoming]) for entry in self.labels[current])
        return frozenset(entry if stored is None else stored for entry, stored in entries)

    def stores(self, current: Var, incoming: int, stored: int | None) -> Truths:
        return frozenset(self.merge[entry][incoming] == stored for entry in self.labels[current])


def possible(machine: Machine) -> dict[Var, Labels]:
    """The labels that each variable of a machine can have in a reachable state, and perhaps a few more."""
    labels: dict[Var, Labels] = {var: frozenset({index}) for var, index in machine.initial().items()}
    while True:
        before = dict(labels)
        for action in machine.model.actions:
            algebra = Possible(labels, machine.merge)
            if True in evaluate(action.guard, algebra):
                after = {var: assign(var, term, algebra) for var, term in action.updates}
                labels |= {var: labels[var] | found for var, found in after.items()}
        if labels == before:
            return labels
