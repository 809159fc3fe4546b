"""Two solvers of different families answer the same obligations: Z3, and cvc5 from the text that Z3 prints.

Z3 also says which lemmas it used, and cvc5 has to do with those: fewer lemmas make an obligation harder to discharge,
never easier. An obligation is discharged if both say unsat. A time-out, a resource limit, ``unknown`` or an error in
either is ``unknown``, which is never a pass.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence

import attrs
import cvc5
import z3

from kvlatch.proofs.induction import Claim, Invariant, new_solver
from kvlatch.proofs.obligations import Obligation

_LIMIT = 10_000_000
"""cvc5's resource limit for one question."""


@attrs.frozen
class Answers:
    """What the two solvers said of one obligation, and how long Z3 took."""

    name: str
    z3: str
    cvc5: str
    ms: float

    @property
    def discharged(self) -> bool:
        """Both say unsat."""
        return self.z3 == self.cvc5 == "unsat"


def discharge(invariant: Invariant, obligations: Sequence[Obligation]) -> list[Answers]:
    """Both solvers' answers, in the order of the obligations. cvc5 is asked what Z3 has discharged.

    After a failure nothing more is asked, unless it is some properties' own: the lemmas may still prove the others.
    """
    first = list(zip(obligations, _by_z3(invariant, obligations), strict=False))
    discharged = [(obligation, used) for obligation, (said, used, _) in first if said == "unsat"]
    answers = _by_cvc5(_session(invariant, discharged), len(discharged))
    second = {obligation: answer for (obligation, _), answer in zip(discharged, answers, strict=True)}
    return [
        Answers(obligation.name, said, second.get(obligation, "not asked"), ms) for obligation, (said, _, ms) in first
    ]


def _by_z3(invariant: Invariant, obligations: Sequence[Obligation]) -> Iterator[tuple[str, tuple[Claim, ...], float]]:
    """For each obligation the answer, the lemmas that it took, and the milliseconds."""
    solver = new_solver(invariant.theory.logic)
    solver.add(*invariant.theory.domain)
    assumed = {z3.Bool(f"lemma {claim.lemma.name}"): claim for claim in invariant.claims}
    solver.add(*(z3.Implies(name, claim.formula) for name, claim in assumed.items()))
    for obligation in obligations:
        start = time.perf_counter()
        solver.push()
        solver.add(*obligation.assertions)
        said = str(solver.check(*([] if obligation.bare else assumed)))
        core = {name.get_id() for name in solver.unsat_core()} if said == "unsat" else set()
        solver.pop()
        used = tuple(claim for name, claim in assumed.items() if name.get_id() in core)
        yield said, used, 1000 * (time.perf_counter() - start)
        if said != "unsat" and not obligation.name.startswith(("property", "rank", "fair")):
            return


def _session(invariant: Invariant, obligations: Iterable[tuple[Obligation, Iterable[Claim]]]) -> str:
    """One SMT-LIB 2.6 script: each lemma defined once, then each obligation, with its lemmas, between push and pop."""
    theory = invariant.theory
    lines = [f"(set-logic {theory.logic})", *theory.declarations]
    lemmas = {claim.lemma.name: theory.unfolded(claim.formula) for claim in invariant.claims}
    lines += [f"(define-fun |{name}| () Bool {formula.sexpr()})" for name, formula in lemmas.items()]
    lines += [f"(assert {theory.unfolded(formula).sexpr()})" for formula in theory.domain]
    for obligation, claims in obligations:
        lines.append("(push 1)")
        lines += [f"(assert |{claim.lemma.name}|)" for claim in claims]
        lines += [f"(assert {formula.sexpr()})" for formula in obligation.assertions]
        lines += ["(check-sat)", "(pop 1)"]
    return "\n".join(lines)


def _by_cvc5(session: str, count: int) -> list[str]:
    """cvc5's answer to each of the ``count`` questions of a session; all unknown if it cannot read them."""
    solver = cvc5.Solver(cvc5.TermManager())
    solver.setOption("incremental", "true")
    solver.setOption("fresh-binders", "true")  # one name is bound in many lemmas
    solver.setOption("enum-inst", "true")  # where matching terms is not enough, all terms: then quantifiers are decided
    solver.setOption("rlimit-per", str(_LIMIT))
    parser = cvc5.InputParser(solver)
    symbols = parser.getSymbolManager()
    answers = []
    try:
        parser.setStringInput(cvc5.InputLanguage.SMT_LIB_2_6, session, "obligations")
        while not (command := parser.nextCommand()).isNull():
            if said := command.invoke(solver, symbols).strip():
                answers.append(said if said in ("sat", "unsat") else "unknown")
    except RuntimeError:  # what cvc5 raises where it cannot read on
        return ["unknown"] * count
    return answers if len(answers) == count else ["unknown"] * count


def standalone(invariant: Invariant, obligations: Iterable[Obligation]) -> Iterator[str]:
    """Each obligation as a script that stands alone, with every lemma unless it is bare."""
    theory = invariant.theory
    head = [f"(set-logic {theory.logic})", *theory.declarations]
    axioms = [f"(assert {formula.sexpr()})" for formula in invariant.axioms]
    for obligation in obligations:
        asserted = [f"(assert {formula.sexpr()})" for formula in obligation.assertions]
        yield "\n".join([*head, *([] if obligation.bare else axioms), *asserted, "(check-sat)\n"])
