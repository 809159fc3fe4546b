"""Two solvers of different families answer the same obligations: Z3, and cvc5 from the text that Z3 prints.

An obligation is discharged if both say unsat. A time-out, a resource limit, ``unknown`` or an error in either is
``unknown``, which is never a pass.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import attrs
import cvc5

from kvlatch.proofs.induction import Invariant, Obligation, new_solver

_CVC5_LIMIT = 10_000_000


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
    """Both solvers' answers, the bare obligations first. cvc5 is asked what Z3 has discharged.

    After a failure nothing more is asked, unless it is one property's own: the lemmas may still prove the others.
    """
    obligations = sorted(obligations, key=lambda obligation: not obligation.bare)
    first = list(zip(obligations, _by_z3(invariant, obligations), strict=False))
    discharged = [obligation for obligation, (answer, _) in first if answer == "unsat"]
    second = dict(zip(discharged, _by_cvc5(smtlib(invariant, discharged), len(discharged)), strict=True))
    return [
        Answers(obligation.name, answer, second.get(obligation, "not asked"), ms) for obligation, (answer, ms) in first
    ]


def _by_z3(invariant: Invariant, obligations: Sequence[Obligation]) -> Iterator[tuple[str, float]]:
    solver = new_solver(invariant.theory.logic)
    bare = new_solver(invariant.theory.logic)
    solver.add(*invariant.axioms)
    for obligation in obligations:
        start = time.perf_counter()
        asked = bare if obligation.bare else solver
        asked.push()
        asked.add(*obligation.assertions)
        answer = str(asked.check())
        asked.pop()
        yield answer, 1000 * (time.perf_counter() - start)
        if answer != "unsat" and not obligation.name.startswith("property"):
            return


def _by_cvc5(text: str, count: int) -> list[str]:
    terms = cvc5.TermManager()
    solver = cvc5.Solver(terms)
    solver.setOption("incremental", "true")
    solver.setOption("fresh-binders", "true")  # one name is bound in many lemmas
    solver.setOption("rlimit-per", str(_CVC5_LIMIT))
    parser = cvc5.InputParser(solver)
    parser.setStringInput(cvc5.InputLanguage.SMT_LIB_2_6, text, "obligations")
    symbols = parser.getSymbolManager()
    answers = []
    try:
        while not (command := parser.nextCommand()).isNull():
            said = command.invoke(solver, symbols).strip()
            if said:
                answers.append(said if said in ("sat", "unsat") else "unknown")
    except RuntimeError:  # what cvc5 raises where it cannot read on
        answers = []
    return answers if len(answers) == count else ["unknown"] * count


def smtlib(invariant: Invariant, obligations: Sequence[Obligation]) -> str:
    """The obligations as one SMT-LIB 2.6 script, each between push and pop; bare ones first, then with the lemmas."""
    lines = [f"(set-logic {invariant.theory.logic})", *invariant.theory.declarations]
    axioms = [f"(assert {formula.sexpr()})" for formula in invariant.axioms]
    for obligation in obligations:
        if not obligation.bare:
            lines, axioms = [*lines, *axioms], []
        lines += _asked(obligation)
    return "\n".join(lines)


def _asked(obligation: Obligation) -> list[str]:
    assertions = [f"(assert {formula.sexpr()})" for formula in obligation.assertions]
    return ["(push 1)", *assertions, "(check-sat)", "(pop 1)"]
