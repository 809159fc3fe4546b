"""Verdicts: Proved, Refuted with a shortest run, or Unknown. Only :func:`earn` makes a Proved.

It demands, for one property of one design,

* one discharged obligation for every action of the model, by name, so that a new row cannot be forgotten;
* the obligation that the lemmas exclude a bad state, discharged; for settlement, that they exclude being stuck with any
  number of workers, and that each action makes the rank smaller;
* each discharge by two solvers of different families (``solvers.py``);
* that nothing is vacuous: every action that the explicit search has seen happen can start in a state that satisfies
  the lemmas;
* a named mutant of the protocol that breaks the property (``mutants.py``), so that the claim can fail at all;
* what the protocol relies on in a neighbour, kept by every step of that (``contracts.py``);
* with any number of requests, the lemmas on which two labels for all of them rest (``schema.Older``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet

import attrs

from kvlatch.proofs import contracts
from kvlatch.proofs.gaps import Gap, gap
from kvlatch.proofs.induction import Invariant, new_solver
from kvlatch.proofs.mutants import MUTANTS
from kvlatch.proofs.solvers import Answers, discharge
from kvlatch.proofs.worlds import bounds_of, scope_of_machine
from kvlatch.spec.schema import ANY, Property, World
from kvlatch.spec.terms import FALSE


@attrs.frozen
class Proved:
    """The property holds in every run within the scope; each obligation with the milliseconds that Z3 took for it."""

    scope: str
    lemmas: tuple[str, ...]
    obligations: Mapping[str, float]
    bounds: Mapping[str, int | str | None] = attrs.field(factory=dict)
    """The scope as fields: how many of each sort (``any``), the network, and the fairness that was assumed, if any."""
    narrow: bool = False
    """It is about less than proofs of the protocol are: a table marks it."""


@attrs.frozen
class Refuted:
    """A shortest run that breaks the property, in the gentlest world that has one."""

    world: World
    run: tuple[tuple[str, Mapping[str, int]], ...]

    @property
    def length(self) -> int:
        """Steps of the run."""
        return len(self.run)


@attrs.frozen
class Unknown:
    """Neither; never a pass. ``gap`` is where the induction fails; ``searched`` which worlds hold no counterexample."""

    reason: str
    gap: Gap | None = None
    searched: tuple[str, ...] = ()


Verdict = Proved | Refuted | Unknown


@attrs.frozen(eq=False)
class Case:
    """Everything that has been asked about one invariant, to be judged property by property."""

    invariant: Invariant
    answers: Mapping[str, Answers]
    startable: AbstractSet[str]
    breakable: AbstractSet[str]
    """The properties that a mutant of the protocol breaks."""
    _gaps: dict[str, Gap] = attrs.field(factory=dict, init=False)

    @property
    def scope(self) -> str:
        """What the answers are about: the instance and the network of the model that was asked about."""
        return scope_of_machine(self.invariant.theory.machine)

    def gap(self, prop: Property, name: str) -> Gap:
        """Why an obligation for a property is not discharged."""
        if name not in self._gaps:
            obligation = next(obligation for obligation in self.invariant.obligations(prop) if obligation.name == name)
            self._gaps[name] = gap(self.invariant, obligation)
        return self._gaps[name]

    @classmethod
    def of(cls, invariant: Invariant, properties: Iterable[Property]) -> Case:
        """Ask both solvers all that :func:`earn` demands for these properties, and Z3 which actions can start."""
        wanted = {o.name: o for prop in properties for o in invariant.obligations(prop)}
        answers = {answer.name: answer for answer in discharge(invariant, list(wanted.values()))}
        startable = _startable(invariant) if len(answers) == len(wanted) else set()
        name = invariant.theory.machine.protocol.name
        return cls(invariant, answers, startable, {mutant.prop for mutant in MUTANTS if mutant.of.name == name})


def earn(case: Case, prop: Property, taken: AbstractSet[str]) -> Verdict:
    """The verdict of a proof; ``taken`` has the labels of the actions that the search has seen happen."""
    names = [obligation.name for obligation in case.invariant.obligations(prop)]
    asked = [case.answers[name] for name in names if name in case.answers]
    if undischarged := [answers for answers in asked if not answers.discharged]:
        first = undischarged[0]
        said = f"{len(undischarged)} obligations open; {first.name}: Z3 {first.z3}, cvc5 {first.cvc5}"
        return Unknown(said, case.gap(prop, first.name))
    if missing := [name for name in names if name not in case.answers]:
        return Unknown(f"no answer to {', '.join(missing)}")
    if vacuous := taken - case.startable:
        return Unknown(f"vacuous: the lemmas exclude actions that happen: {', '.join(sorted(vacuous))}")
    if prop.name not in case.breakable:
        return Unknown("no mutant of the protocol breaks this property, so nothing shows that it could fail")
    contract = case.invariant.theory.machine.protocol.contract
    if contract and (unkept := contracts.unkept(contract)):
        return Unknown(f"the neighbour does not keep what is relied on: {', '.join(unkept)}")
    if unfounded := _unfounded(case.invariant):
        return Unknown(f"any number of requests rests on lemmas that are not among these: {', '.join(unfounded)}")
    lemmas = tuple(claim.lemma.name for claim in case.invariant.claims)
    ms = {answers.name: answers.ms for answers in asked}
    machine = case.invariant.theory.machine
    narrow = machine.model.instance != machine.protocol.everything.instance(ANY)
    return Proved(case.scope, lemmas, ms, bounds_of(machine, prop), narrow)


def _unfounded(invariant: Invariant) -> list[str]:
    """With any number of requests, the lemmas that are missing for taking all older ones as one."""
    model = invariant.theory.machine.model
    older = model.protocol.older
    if older is None or model.instance.count("request") != ANY or model.claim(older.when) is FALSE:
        return []
    return sorted(set(older.lemmas) - {claim.lemma.name for claim in invariant.claims})


def _startable(invariant: Invariant) -> set[str]:
    """The actions that are enabled in some state that satisfies the lemmas."""
    solver = new_solver(invariant.theory.logic)
    solver.add(*invariant.axioms)
    found = set()
    for step in invariant.theory.steps:
        solver.push()
        solver.add(step.enabled)
        if str(solver.check()) == "sat":
            found.add(step.name)
        solver.pop()
    return found
