"""Two solvers of different families answer the same obligations: Z3, and cvc5 from the text that Z3 prints.

An obligation is discharged if both say unsat. A time-out, a resource limit, ``unknown`` or an error in either is
``unknown``, which is never a pass.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import attrs
import cvc5
import z3

from kvlatch.proofs.induction import Invariant, Obligation, solver_for
from kvlatch.proofs.terms import width

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
    """Both solvers' answers, in the order of the obligations."""
    first = list(_by_z3(invariant, obligations))
    second = _by_cvc5(smtlib(invariant, obligations), len(obligations))
    return [
        Answers(obligation.name, answer, other, ms)
        for obligation, (answer, ms), other in zip(obligations, first, second, strict=True)
    ]


def _by_z3(invariant: Invariant, obligations: Sequence[Obligation]) -> Iterator[tuple[str, float]]:
    solver = solver_for(invariant.theory)
    solver.add(*invariant.formulas)
    for obligation in obligations:
        start = time.perf_counter()
        solver.push()
        solver.add(*obligation.assertions)
        answer = str(solver.check())
        solver.pop()
        yield answer, 1000 * (time.perf_counter() - start)


def _by_cvc5(text: str, count: int) -> list[str]:
    terms = cvc5.TermManager()
    solver = cvc5.Solver(terms)
    solver.setOption("incremental", "true")
    solver.setOption("rlimit-per", str(_CVC5_LIMIT))
    parser = cvc5.InputParser(solver)
    parser.setStringInput(cvc5.InputLanguage.SMT_LIB_2_6, text, "obligations")
    symbols = parser.getSymbolManager()
    answers = []
    while not (command := parser.nextCommand()).isNull():
        said = command.invoke(solver, symbols).strip()
        if said:
            answers.append(said if said in ("sat", "unsat") else "unknown")
    return answers if len(answers) == count else ["unknown"] * count


def smtlib(invariant: Invariant, obligations: Sequence[Obligation]) -> str:
    """The obligations as one SMT-LIB 2.6 script: the invariant once, then each between push and pop."""
    theory = invariant.theory
    lines = ["(set-logic QF_BV)"]
    for valuation in (theory.before, theory.after):
        lines += [f"(declare-const {value.sexpr()} (_ BitVec {width(var)}))" for var, value in valuation.values.items()]
    lines += [f"(assert {formula.sexpr()})" for formula in (*theory.before.domain(), *invariant.formulas)]
    for obligation in obligations:
        lines.append("(push 1)")
        lines += [f"(assert {formula.sexpr()})" for formula in obligation.assertions]
        lines += ["(check-sat)", "(pop 1)"]
    return "\n".join(lines)
