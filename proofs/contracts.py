"""That a neighbour keeps its side of a contract: no step of it does what a clause excludes.

A protocol with clauses (``spec/contract.py``) takes steps only where something holds of a neighbour that it has no rows
of. Here are that neighbour's rows. For each clause and each step of theirs one obligation: where every lemma of the
neighbour holds, the step brings the clause's event about only if its demand holds. That the lemmas hold is shown again.
Both solvers are asked, for any number of whatever the neighbour has.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import z3

from kvlatch.proofs.induction import Invariant
from kvlatch.proofs.obligations import Obligation
from kvlatch.proofs.parametric import AnyNumber
from kvlatch.proofs.solvers import discharge
from kvlatch.spec.clauses import Contract
from kvlatch.spec.model import ANY, Machine


@cache
def unkept(contract: Contract) -> tuple[str, ...]:
    """The obligations that are not discharged: the design in its atomicity, the clause's row, the neighbour's step."""
    found = []
    for invariant in neighbours(contract):
        lemmas, clauses = [invariant.starts, *invariant.inductive], list(obligations(contract, invariant))
        answers = [*discharge(invariant, lemmas), *discharge(invariant, clauses)]
        wrong = [said.name for said in answers if not said.discharged]
        fix = invariant.theory.machine.model.fix
        found += [f"{fix.title if fix else ''}: {name}" for name in wrong]
    return tuple(found)


def neighbours(contract: Contract) -> Iterator[Invariant]:
    """The neighbour, in each of its atomicities, with all of its lemmas."""
    protocol, world = contract.neighbour, contract.neighbour.everything
    design = protocol.designs[contract.design]
    for level in design.atomicities:
        theory = AnyNumber.of(Machine.of(design, level, world.network, world.instance(ANY), protocol))
        yield Invariant(theory, tuple(map(theory.claim, protocol.lemmas)))


def obligations(contract: Contract, invariant: Invariant) -> Iterator[Obligation]:
    """One for each clause and each step that could bring its event about."""
    theory = invariant.theory
    model = theory.machine.model
    for clause in contract.clauses:
        event, demand = (theory.says([model.claim(formula)]) for formula in (clause.event, clause.demand))
        for step in theory.steps:
            after = theory.after(step, event)
            if not after.eq(event):
                brought = (step.enabled, *step.defined, z3.Not(event), after, z3.Not(demand))
                yield Obligation(f"property {clause.row}, by {step.name}", brought)
