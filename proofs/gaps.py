"""Why an induction fails: the step that breaks a lemma, with the states before and after it.

A gap is no counterexample: the state before may not be reachable. It says what the lemmas still allow, and so which
lemma is missing; or, if the state is reachable after all, where to look for the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs
import z3

from kvlatch.proofs.induction import Claim, Invariant, Step, Theory, new_solver
from kvlatch.proofs.obligations import Obligation
from kvlatch.spec.model import EVERY
from kvlatch.spec.terms import Var, fields


@attrs.frozen
class Gap:
    """An obligation that is not discharged; ``lemma`` is what the step breaks, if it is a lemma that is broken.

    ``before`` and ``after`` are labels by name of variable, of those that the step or the lemma is about; ``after`` has
    what differs, and is empty where the obligation is about one state. Where Z3 cannot decide, both are empty.
    """

    obligation: str
    lemma: str | None
    before: Mapping[str, str]
    after: Mapping[str, str]

    def __str__(self) -> str:
        return "\n".join(self.lines)

    @property
    def lines(self) -> list[str]:
        """The gap for a person: what fails, and the states as lines of their own."""
        kept = f" does not keep the lemma {self.lemma!r}" if self.lemma else " is not discharged"
        if not self.before:
            return [f"{self.obligation}{kept}: the solvers cannot decide it"]
        found = [f"{self.obligation}{kept}", f"  before: {_text(self.before)}"]
        return [*found, f"  after:  {_text(self.after)}"] if self.after else found


def _text(state: Mapping[str, str]) -> str:
    return ", ".join(f"{name} = {label}" for name, label in state.items())


def gap(invariant: Invariant, obligation: Obligation) -> Gap:
    """What Z3 answers to an obligation that it does not discharge, in the spec's terms."""
    theory = invariant.theory
    solver = new_solver(theory.logic)
    solver.add(*obligation.assertions, *(theory.domain if obligation.bare else invariant.axioms))
    if solver.check() != z3.sat:
        return Gap(obligation.name, None, {}, {})
    model = solver.model()
    kind, _, name = obligation.name.partition(" ")
    step = next((step for step in theory.steps if kind in ("step", "rank") and step.name == name), None)
    broken = _broken(invariant.claims, theory, step, model) if kind in ("step", "initial") else None
    shown = [
        var
        for var in theory.state.values
        if EVERY not in (var.place, var.names) and var in _about(step, broken, theory)
    ]
    before = {var.name: _label(var, theory.state.values[var], model) for var in shown}
    after = {var.name: _label(var, step.sets[var], model) for var in shown if step and var in step.sets}
    differs = {name: label for name, label in after.items() if before[name] != label}
    return Gap(obligation.name, broken.lemma.name if broken else None, before, differs)


def _broken(claims: Iterable[Claim], theory: Theory, step: Step | None, model: z3.ModelRef) -> Claim | None:
    """The first lemma that is false in the state after the step, or in the state itself."""
    for claim in claims:
        goal = theory.goal(claim)
        if step is not None and theory.touched(step, claim):
            goal = theory.after(step, goal)
        if _false(goal, model):
            return claim
    return None


def _false(goal: z3.BoolRef, model: z3.ModelRef) -> bool:
    """A goal is false in a model: by evaluation, or, where it has quantifiers, because nothing satisfies both."""
    said = model.eval(goal, model_completion=True)
    if z3.is_true(said) or z3.is_false(said):
        return bool(z3.is_false(said))
    solver = z3.Solver()
    solver.add(said)
    return bool(solver.check() == z3.unsat)


def _about(step: Step | None, claim: Claim | None, theory: Theory) -> set[Var]:
    """The variables that a step or a lemma reads or sets; all of them where there is neither."""
    found = set(claim.reads) if claim else set[Var]()
    if step is None or step.action is None:
        return found if claim else set(theory.state.values)
    terms = [step.action.guard, *(term for _, term in step.action.updates)]
    return found | set(step.sets) | {var for term in terms for var in fields(term) if isinstance(var, Var)}


def _label(var: Var, value: z3.BitVecRef, model: z3.ModelRef) -> str:
    index = model.eval(value, model_completion=True).as_long()
    return var.labels[index] if index < len(var.labels) else f"no label ({index})"
