"""Induction: a property holds in every reachable state because the lemmas do, and they because every step keeps them.

For one design, the obligations are:

* ``initial``: no lemma is broken in the initial state;
* one for each action: where it is enabled and every lemma holds, no lemma is broken after it (``step``);
* one for each property: where every lemma holds, the state is not bad for it (``property``); for settlement, not with
  every fair action disabled;
* for settlement, one for each action: it makes the rank of ``ranking.py`` smaller, or begins a new life (``rank``);
* where rows demand an order of instants, those of ``durations.py`` (``order``, ``time``).

There are no primed variables: "after it" is a lemma with the action's terms in the place of what the action sets. This
file is for a fixed number of workers; ``parametric.py`` says the same for any number of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TypeVar

import attrs
import z3

from kvlatch.proofs import durations
from kvlatch.proofs.obligations import Obligation, conjunction
from kvlatch.proofs.ranking import BITS, Part, parts, spent
from kvlatch.proofs.terms import Symbolic, width
from kvlatch.spec.model import EVERY, Action, Machine
from kvlatch.spec.schema import Lemma, Property, Writer
from kvlatch.spec.steps import MORE
from kvlatch.spec.terms import Term, Var, assign, evaluate, fields

Expression = TypeVar("Expression", z3.BoolRef, z3.BitVecRef)

_LIMIT = 20_000_000
"""Z3's resource limit for one query; what needs more is unknown."""


@attrs.frozen(eq=False)
class Step:
    """One action as terms: where it is enabled, and what it sets each variable to."""

    name: str
    enabled: z3.BoolRef
    sets: dict[Var, z3.BitVecRef]
    action: Action | None = None
    defined: tuple[z3.BoolRef, ...] = ()
    """What the names of conditions in what it sets mean."""


@attrs.frozen(eq=False)
class Claim:
    """A lemma in a theory, for every worker and chunk: one formula, the terms that it says, what they read."""

    lemma: Lemma
    formula: z3.BoolRef
    terms: tuple[Term, ...]
    reads: frozenset[Var]


@attrs.frozen(eq=False, slots=False)  # cached_property needs a __dict__
class Theory:
    """A machine as terms over one arbitrary state."""

    machine: Machine
    state: Symbolic

    @classmethod
    def of(cls, machine: Machine) -> Theory:
        """The terms of a machine."""
        return cls(machine, Symbolic.fresh(machine.model.variables, machine.merge))

    labels_in = "QF_BV"
    """The logic of formulas about labels."""

    @property
    def logic(self) -> str:
        """The logic of all that is asked: with real numbers too, none that has a name."""
        return "ALL" if self.machine.model.timed else self.labels_in

    @property
    def declarations(self) -> list[str]:
        """The constants of the theory, in SMT-LIB."""
        labels = [
            f"(declare-const {value.sexpr()} (_ BitVec {width(var)}))" for var, value in self.state.values.items()
        ]
        return labels + durations.declared(self.machine)

    @property
    def domain(self) -> list[z3.BoolRef]:
        """Each variable has one of its labels."""
        return self.state.domain()

    @property
    def local(self) -> list[z3.BoolRef]:
        """The same, of what one step can read and set."""
        return self.state.domain()

    @property
    def initial(self) -> list[z3.BoolRef]:
        """The state is the initial one: each variable has its first label."""
        return [value == 0 for value in self.state.values.values()]

    @cached_property
    def steps(self) -> list[Step]:
        """Every action of the machine."""
        return [
            Step(
                action.label,
                evaluate(action.guard, self.state),
                {var: assign(var, term, self.state) for var, term in action.updates},
                action,
            )
            for action in self.machine.model.actions
        ]

    @cached_property
    def potential(self) -> list[Part]:
        """The summands of the state's potential."""
        return parts(self.machine.model, self.state)

    def claim(self, lemma: Lemma) -> Claim:
        """What a lemma says of the state."""
        terms = tuple(self.machine.model.instances(lemma.claim))
        reads = frozenset(var for term in terms for var in fields(term) if isinstance(var, Var))
        return Claim(lemma, self.says(terms), terms, reads)

    def says(self, terms: Sequence[Term]) -> z3.BoolRef:
        """All of the terms, as a formula about the state."""
        return conjunction([evaluate(term, self.state) for term in terms])

    def unfolded(self, formula: z3.BoolRef) -> z3.BoolRef:
        """An axiom in a form that is the same to logic, and quicker to use."""
        return formula

    def goal(self, claim: Claim) -> z3.BoolRef:
        """What has to be kept of a lemma: here, all that it says."""
        return claim.formula

    def after(self, step: Step, term: Expression) -> Expression:
        """A term over the state, said of the state after a step."""
        return z3.substitute(term, [(self.state.values[var], new) for var, new in step.sets.items()])

    def touched(self, step: Step, claim: Claim) -> bool:
        """The step sets something that the lemma reads."""
        return not claim.reads.isdisjoint(step.sets)

    def arbitrary(self, term: Expression) -> Expression:
        """A term about each element of a sort, said of an arbitrary one: here each has variables of its own."""
        return term

    def bystanders(self) -> list[Obligation]:
        """What other rooms must not do to the settlement of this one: nothing, where there is but one."""
        return []

    def stuck(self, prop: Property) -> list[Obligation]:
        """The state is bad and no fair action is enabled: impossible.

        That depends on the number of workers, since more of them can do more: one obligation for each number, the
        others being idle and taken for absent.
        """
        model, protocol = self.machine.model, self.machine.protocol
        bad = self.says([model.claim(prop.bad)])
        fair = [step for step in self.steps if step.action and step.action.fair]
        if protocol.home is None or protocol.crowd is None:
            return [Obligation(f"property {prop.name}", (bad, *(z3.Not(step.enabled) for step in fair)))]
        pcs = [var for var in model.variables if var.field is protocol.home.pc]
        found = []
        for count in model.instance.named(protocol.crowd):
            idle = [self.state.is_(pc, pc.labels.index(protocol.home.idle)) for pc in pcs[count + 1 :]]
            working = [step for step in fair if step.action and step.action.arguments.get(protocol.crowd, 0) <= count]
            disabled = [z3.Not(step.enabled) for step in working]
            found.append(Obligation(f"property {prop.name}, {count + 1} at work", (bad, *idle, *disabled)))
        return found


@attrs.frozen(eq=False, slots=False)  # cached_property needs a __dict__
class Invariant:
    """Lemmas that are claimed to hold in every reachable state of a theory."""

    theory: Theory
    claims: tuple[Claim, ...]

    @property
    def axioms(self) -> list[z3.BoolRef]:
        """What every obligation may use: each variable has one of its labels, and every lemma holds."""
        return [*self.theory.domain, *(claim.formula for claim in self.claims)]

    def obligations(self, prop: Property) -> list[Obligation]:
        """Everything that has to be shown for a property."""
        theory = self.theory
        found = [self.starts, *self.inductive, *self.timed]
        if prop.kind == "safety":
            bad = theory.says([theory.machine.model.claim(prop.bad)])
            return [*found, Obligation(f"property {prop.name}", (bad,))]
        ranks = [self.descends(step, prop) for step in theory.steps if step.action]
        return [*ranks, *theory.bystanders(), *found, *theory.stuck(prop)]

    @cached_property
    def inductive(self) -> list[Obligation]:
        """Every action keeps the lemmas."""
        return [self.keeps(step) for step in self.theory.steps]

    @cached_property
    def timed(self) -> list[Obligation]:
        """The orders that rows demand follow from durations."""
        return list(durations.obligations(self.theory))

    @cached_property
    def starts(self) -> Obligation:
        """Some lemma is broken initially: impossible."""
        broken = z3.Not(conjunction([claim.formula for claim in self.claims]))
        return Obligation("initial", (*self.theory.initial, broken), bare=True)

    def keeps(self, step: Step) -> Obligation:
        """The action leads to a state without some lemma: impossible."""
        goals = [self.theory.goal(claim) for claim in self.claims if self.theory.touched(step, claim)]
        broken = z3.Not(self.theory.after(step, conjunction(goals)))
        return Obligation(f"step {step.name}", (step.enabled, *step.defined, z3.simplify(broken)))

    def descends(self, step: Step, prop: Property) -> Obligation:
        """The action does not make the rank smaller: impossible. A new life begins only when the last is over."""
        theory = self.theory
        if step.action and theory.machine.protocol.begins(step.action.rule):
            bad = theory.says([theory.machine.model.claim(prop.bad)])
            return Obligation(f"rank {step.name}", (step.enabled, bad))
        # Where a derived step stores depends on the lemmas; a row's own step needs none, and is cheaper without.
        bare = step.action is not None and step.action.part in ("", MORE)
        higher = z3.simplify(z3.Not(self._lowers(step)))
        return Obligation(f"rank {step.name}", (*theory.local, step.enabled, *step.defined, higher), bare=bare)

    def _lowers(self, step: Step) -> z3.BoolRef:
        """Of the numbers of the rank, a step leaves those before its own as they are, and makes its own smaller."""
        theory = self.theory
        protocol = theory.machine.protocol
        if step.action and step.action.part == "retry":
            # A retry sets nothing but what its thread has seen: that was out of date before, and is not after.
            entry, thread = protocol.entry, protocol.threads[step.action.rule.actor]
            if entry is None or not isinstance(thread, Writer):
                raise TypeError(f"{step.name} is no step of a thread that writes")
            (seen,) = (var for var in step.sets if var.field is thread.seen)
            current = next(value for var, value in theory.state.values.items() if var.field is entry.status)
            out_of_date = theory.state.values[seen] != current
            return z3.And(out_of_date, z3.Not(theory.after(step, out_of_date)), z3.BoolVal(len(step.sets) == 1))
        touched = [part for part in theory.potential if part.var in step.sets]
        potential = sum((part.term for part in touched if part.var.place != EVERY), z3.BitVecVal(0, BITS))
        lower = z3.ULT(theory.after(step, potential), potential + spent(step.action, protocol))
        each = [theory.arbitrary(part.term) for part in touched if part.var.place == EVERY]
        return conjunction([lower, *(z3.ULE(theory.after(step, term), term) for term in each)])


def keep(theory: Theory, lemmas: Sequence[Lemma]) -> Invariant:
    """The largest part of some lemmas that holds initially and that every action keeps.

    Lemmas that Z3 can break are dropped until nothing more breaks (Houdini's algorithm). That only makes the claim
    weaker, so it needs no trust: what is left is proved like any other invariant.
    """
    claims = {claim for claim in map(theory.claim, lemmas) if _holds_initially(theory, claim)}
    assumed = {claim: z3.Bool(f"lemma {claim.lemma.name}") for claim in claims}
    solver = new_solver(theory.logic)
    solver.add(*theory.domain, *(z3.Implies(assumed[claim], claim.formula) for claim in claims))
    while True:
        dropped = set[Claim]()
        for step in theory.steps:
            touched = {claim for claim in claims - dropped if theory.touched(step, claim)}
            goals = {claim: theory.after(step, theory.goal(claim)) for claim in touched}
            solver.push()
            solver.add(step.enabled, *step.defined)
            dropped |= _broken(solver, [assumed[claim] for claim in claims], goals)
            solver.pop()
        claims -= dropped
        if not dropped:
            return Invariant(theory, tuple(sorted(claims, key=lambda claim: lemmas.index(claim.lemma))))


def _holds_initially(theory: Theory, claim: Claim) -> bool:
    solver = new_solver(theory.logic)
    solver.add(*theory.domain, *theory.initial, z3.Not(claim.formula))
    return bool(solver.check() == z3.unsat)


def _broken(solver: z3.Solver, assumptions: Sequence[z3.BoolRef], goals: dict[Claim, z3.BoolRef]) -> set[Claim]:
    """The lemmas that the asserted step does not keep, or that Z3 cannot decide."""
    broken = set[Claim]()
    while left := {claim: goal for claim, goal in goals.items() if claim not in broken}:
        solver.push()
        solver.add(z3.Not(conjunction(list(left.values()))))
        answer = solver.check(*assumptions)
        model = solver.model() if answer == z3.sat else None
        solver.pop()
        if answer == z3.unsat:
            break
        seen = {
            claim
            for claim, goal in left.items()
            if model is not None and z3.is_false(model.eval(goal, model_completion=True))
        }
        # A model need not say whether a quantified goal holds in it, and Z3 may give up on all at once: ask one by one.
        if not (found := seen or {claim for claim, goal in left.items() if not _kept(solver, assumptions, goal)}):
            break
        broken |= found
    return broken


def _kept(solver: z3.Solver, assumptions: Sequence[z3.BoolRef], goal: z3.BoolRef) -> bool:
    solver.push()
    solver.add(z3.Not(goal))
    answer = solver.check(*assumptions)
    solver.pop()
    return bool(answer == z3.unsat)


def new_solver(logic: str) -> z3.Solver:
    """A Z3 solver for a logic, with a fixed seed and a resource limit."""
    solver = z3.SolverFor(logic)
    solver.set("random_seed", 0)
    solver.set("rlimit", _LIMIT)
    return solver
