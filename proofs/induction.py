"""Induction: a property holds in every reachable state because the lemmas do, and the lemmas because every step keeps
them.

For one design, the obligations are:

* ``initial``: the initial state satisfies every lemma (checked by running it);
* one for each action: in a state that satisfies every lemma, the action leads to a state that does;
* one for each property: a state that satisfies every lemma is not a bad state; for settlement, it has a fair action
  that is enabled (``stuck``), and each action makes the rank smaller (``ranking.py``).

The pool in ``lemmas.py`` is larger than what a design keeps. :func:`keep` drops what Z3 can break, until nothing more
breaks (Houdini's algorithm); it only ever makes the claim weaker, so it needs no trust. What is left is stated once
more as plain obligations, and those are answered by two solvers of different families.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import attrs
import z3

from kvlatch.proofs.columns import Configuration
from kvlatch.proofs.lemmas import LEMMAS, Lemma
from kvlatch.proofs.ranking import rank
from kvlatch.proofs.terms import Symbolic
from kvlatch.spec.model import Action, Fixed, Machine, Model
from kvlatch.spec.properties import Property
from kvlatch.spec.terms import assign, evaluate

Answer = Literal["sat", "unsat", "unknown"]
_LIMIT = 20_000_000
"""Z3's resource limit for one query; what needs more is unknown."""


@attrs.frozen
class Obligation:
    """One formula that must be unsatisfiable, as SMT-LIB assertions over the declarations of its :class:`Theory`."""

    name: str
    assertions: tuple[z3.BoolRef, ...]


@attrs.frozen(eq=False)
class Theory:
    """A design's model as terms: a state that satisfies the lemmas, and a state after it."""

    configuration: Configuration
    machine: Machine
    fix: Fixed
    before: Symbolic
    after: Symbolic

    @classmethod
    def of(cls, model: Model, configuration: Configuration) -> Theory:
        """The terms of one configuration of a model."""
        machine = Machine.of(model, configuration.design, configuration.atomicity, configuration.network)
        fix = Fixed(configuration.design, configuration.atomicity, configuration.network)
        variables = machine.model.variables
        before = Symbolic.fresh(variables, machine.merge)
        after = Symbolic.fresh(variables, machine.merge, "'")
        return cls(configuration, machine, fix, before, after)

    def instances(self, lemma: Lemma) -> list[z3.BoolRef]:
        """A lemma about the state before, for every worker and chunk."""
        return [evaluate(self.fix(claim), self.before) for claim in self.machine.model.instances(lemma.claim)]

    def step(self, action: Action) -> list[z3.BoolRef]:
        """The action is enabled before, and the state after is the one it leads to."""
        changed = dict(action.updates)
        return [
            evaluate(action.guard, self.before),
            *(
                self.after.values[var]
                == (assign(var, changed[var], self.before) if var in changed else self.before.values[var])
                for var in self.machine.model.variables
            ),
        ]

    def bad(self, prop: Property) -> list[z3.BoolRef]:
        """The state before is bad for the property; for liveness, also nothing fair is enabled in it."""
        bad = [evaluate(self.fix(self.machine.model.claim(prop.bad)), self.before)]
        if prop.kind == "liveness":
            fair = [evaluate(action.guard, self.before) for action in self.machine.model.actions if action.fair]
            bad.append(z3.Not(z3.Or(fair)))
        return bad

    def primed(self, formula: z3.BoolRef) -> z3.BoolRef:
        """A formula about the state before, said of the state after."""
        pairs = [(self.before.values[var], self.after.values[var]) for var in self.machine.model.variables]
        return z3.substitute(formula, pairs)


@attrs.frozen(eq=False)
class Invariant:
    """The lemmas that a design keeps, and its theory."""

    theory: Theory
    lemmas: tuple[Lemma, ...]
    formulas: tuple[z3.BoolRef, ...]

    def keeps(self, action: Action) -> Obligation:
        """The action leads from a state with every lemma to one without some lemma: impossible."""
        broken = z3.Not(z3.And(*(self.theory.primed(formula) for formula in self.formulas)))
        return Obligation(f"step {action} {action.thread}", (*self.theory.step(action), broken))

    def descends(self, action: Action) -> Obligation:
        """The action does not make the rank smaller: impossible."""
        model, changed = self.theory.machine.model, {var for var, _ in action.updates}
        before, after = (rank(model, state, changed) for state in (self.theory.before, self.theory.after))
        return Obligation(f"rank {action} {action.thread}", (*self.theory.step(action), z3.UGE(after, before)))

    def implies(self, prop: Property) -> Obligation:
        """A state with every lemma is bad for the property: impossible."""
        return Obligation(f"property {prop.name}", tuple(self.theory.bad(prop)))


def keep(theory: Theory, pool: Iterable[Lemma] = LEMMAS) -> Invariant:
    """The largest part of the pool that holds initially and that every action keeps."""
    initial = theory.machine.initial()
    machine = theory.machine
    formulas = {
        lemma: z3.And(z3.BoolVal(True), *theory.instances(lemma))
        for lemma in pool
        if all(machine.holds(theory.fix(claim), initial) for claim in machine.model.instances(lemma.claim))
    }
    after = {lemma: theory.primed(formula) for lemma, formula in formulas.items()}
    assumed = {lemma: z3.Bool(f"lemma {lemma.name}") for lemma in formulas}
    solver = solver_for(theory)
    for lemma, formula in formulas.items():
        solver.add(z3.Implies(assumed[lemma], formula))
    steps = [theory.step(action) for action in machine.model.actions]
    while True:
        dropped = set[Lemma]()
        for step in steps:
            solver.push()
            solver.add(*step)
            goals = {lemma: after[lemma] for lemma in formulas if lemma not in dropped}
            dropped |= _broken(solver, [assumed[lemma] for lemma in formulas], goals)
            solver.pop()
        formulas = {lemma: formula for lemma, formula in formulas.items() if lemma not in dropped}
        if not dropped:
            return Invariant(theory, tuple(formulas), tuple(formulas.values()))


def _broken(solver: z3.Solver, assumptions: Sequence[z3.BoolRef], goals: dict[Lemma, z3.BoolRef]) -> set[Lemma]:
    """The lemmas that the asserted step does not keep, or that Z3 cannot decide."""
    broken = set[Lemma]()
    while left := {lemma: goal for lemma, goal in goals.items() if lemma not in broken}:
        solver.push()
        solver.add(z3.Not(z3.And(*left.values())))
        answer = solver.check(*assumptions)
        if answer == z3.unknown:
            broken |= set(left)
        if answer != z3.sat:
            solver.pop()
            break
        model = solver.model()
        solver.pop()
        broken |= {lemma for lemma, goal in left.items() if z3.is_false(model.eval(goal, model_completion=True))}
    return broken


def solver_for(theory: Theory) -> z3.Solver:
    """A Z3 solver for bit-vectors that knows the domains, with a fixed seed and a resource limit."""
    solver = z3.SolverFor("QF_BV")
    solver.set("random_seed", 0)
    solver.set("rlimit", _LIMIT)
    solver.add(theory.before.domain())
    return solver
