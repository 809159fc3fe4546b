"""Two solvers: they agree, and nothing that either does not say outright is a pass."""

from __future__ import annotations

from itertools import product

import attrs
import pytest
import z3

from kvlatch.proofs import induction, solvers
from kvlatch.proofs.induction import Invariant, Obligation, Theory
from kvlatch.proofs.lemmas import LEMMAS
from kvlatch.proofs.solvers import Answers, discharge, smtlib
from kvlatch.proofs.worlds import WORLDS
from kvlatch.spec.designs import DESIGNS
from kvlatch.spec.model import Machine
from kvlatch.spec.properties import BY_NAME
from kvlatch.spec.protocol import phase

SAID = ("sat", "unsat", "unknown", "not asked")
THEORY = Theory.of(Machine.of(DESIGNS["latch"], "locked", WORLDS[0].network, WORLDS[0].instance(1)))
INVARIANT = Invariant(THEORY, tuple(THEORY.claim(lemma) for lemma in LEMMAS))
NOTHING = Invariant(THEORY, ())
(PHASE,) = (value for var, value in THEORY.state.values.items() if var.field is phase)

TRUE_OF_ALL = INVARIANT.obligations(BY_NAME["no-pin"])[-1]
POSSIBLE = Obligation("possible", (phase.index("done") == PHASE,))
IMPOSSIBLE = Obligation("impossible", (phase.index("done") == PHASE, phase.index("new") == PHASE))


def by_both(invariant: Invariant, obligation: Obligation) -> tuple[str, str]:
    """What each solver says of one obligation, whatever the other does."""
    [(first, _)] = solvers._by_z3(invariant, [obligation])
    [second] = solvers._by_cvc5(smtlib(invariant, [obligation]), 1)
    return first, second


@pytest.mark.parametrize(
    ("invariant", "obligation", "answer"),
    [
        (INVARIANT, TRUE_OF_ALL, "unsat"),
        (NOTHING, TRUE_OF_ALL, "sat"),
        (INVARIANT, POSSIBLE, "sat"),
        (INVARIANT, IMPOSSIBLE, "unsat"),
        (NOTHING, IMPOSSIBLE, "unsat"),
        (NOTHING, Obligation("no assertion", ()), "sat"),
        (NOTHING, Obligation("false", (z3.BoolVal(False),)), "unsat"),
    ],
    ids=["with the lemmas", "without", "possible", "impossible", "by itself", "nothing", "false"],
)
def test_the_solvers_agree(invariant: Invariant, obligation: Obligation, answer: str) -> None:
    """Both find the counterexample, or both say that there is none."""
    assert by_both(invariant, obligation) == (answer, answer)


def test_the_last_label_is_the_last_value() -> None:
    """A variable has no value beyond its labels, for either solver."""
    var = next(var for var in THEORY.machine.model.variables if len(var.labels) == 7)
    beyond = Obligation("beyond", (z3.UGT(THEORY.state.values[var], 6),))
    assert by_both(NOTHING, beyond) == ("unsat", "unsat")


def test_obligations_do_not_see_each_other() -> None:
    """Each is asked by itself, after an impossible one as well, and the answers come in their order."""
    order = [IMPOSSIBLE, TRUE_OF_ALL, IMPOSSIBLE]
    answers = discharge(INVARIANT, order)
    assert [answer.name for answer in answers] == [obligation.name for obligation in order]
    assert all(answer.discharged for answer in answers)
    assert all(answer.ms > 0 for answer in answers)
    assert solvers._by_cvc5(smtlib(INVARIANT, [POSSIBLE, *order, POSSIBLE]), 5) == ["sat", *["unsat"] * 3, "sat"]


def test_no_obligations_have_no_answers() -> None:
    """Nothing asked, nothing said."""
    assert discharge(INVARIANT, []) == []


def test_what_one_solver_refutes_is_not_discharged() -> None:
    """After a counterexample nothing is discharged any more, what came before it included."""
    answers = discharge(INVARIANT, [IMPOSSIBLE, POSSIBLE, IMPOSSIBLE])
    assert answers
    assert not any(answer.discharged for answer in answers)
    assert [answer.z3 for answer in answers][:2] == ["unsat", "sat"]


@pytest.mark.parametrize(("first", "second"), list(product(SAID, SAID)))
def test_only_two_times_unsat_is_discharged(first: str, second: str) -> None:
    """Whatever else the two say, the obligation is open."""
    assert Answers("some", first, second, 1.0).discharged is (first == second == "unsat")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "garbage",
        "(check-sat",
        "(assert nowhere) (check-sat)",
        "(declare-const x (_ BitVec 2)) (assert (= x 1)) (check-sat)",
        "(assert false) (check-sat) garbage",
        "(assert false) (check-sat) (check-sat)",
        "(get-model)",
    ],
)
@pytest.mark.parametrize("count", [1, 3])
def test_garbage_is_unknown(text: str, count: int) -> None:
    """A text that cvc5 cannot read, or that asks another number of questions, answers none of them."""
    assert solvers._by_cvc5(f"(set-logic QF_BV) {text}", count) == ["unknown"] * count


def test_cvc5_that_disagrees_or_fails_is_no_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer of cvc5 other than unsat leaves open what Z3 discharges."""
    for said in ("sat", "unknown"):
        monkeypatch.setattr(solvers, "_by_cvc5", lambda _, count, said=said: [said] * count)
        [answer] = discharge(INVARIANT, [IMPOSSIBLE])
        assert (answer.z3, answer.cvc5, answer.discharged) == ("unsat", said, False)


@pytest.mark.parametrize("module", ["z3", "cvc5"])
def test_a_resource_limit_is_unknown(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    """A solver that runs out of resources says unknown, and nothing is discharged."""
    hard = Obligation("hard", tuple(hard_problem()))
    if module == "z3":
        monkeypatch.setattr(induction, "_LIMIT", 1000)
        [(said, _)] = solvers._by_z3(NOTHING, [hard])
    else:
        monkeypatch.setattr(solvers, "_CVC5_LIMIT", 1000)
        script = smtlib(NOTHING, [hard]).replace(
            "(push 1)", "(declare-const a (_ BitVec 24)) (declare-const b (_ BitVec 24)) (push 1)"
        )
        [said] = solvers._by_cvc5(script, 1)
    assert said == "unknown"


def hard_problem() -> list[z3.BoolRef]:
    """Two factors of a large prime."""
    a, b = z3.BitVecs("a b", 24)
    wide = z3.ZeroExt(24, a) * z3.ZeroExt(24, b)
    return [wide == 140737488355213, z3.UGT(a, 1), z3.UGT(b, 1)]


def test_the_script_says_what_z3_is_asked() -> None:
    """Read back by Z3, the script's assertions are the lemmas and the obligation."""
    solver = z3.Solver()
    solver.from_string(smtlib(INVARIANT, [TRUE_OF_ALL]).replace("(check-sat)\n(pop 1)", ""))
    whole = z3.And(*INVARIANT.axioms, *TRUE_OF_ALL.assertions)
    differs = z3.Solver()
    differs.add(z3.And(*solver.assertions()) != whole)
    assert differs.check() == z3.unsat


def test_answers_are_values() -> None:
    """An answer cannot be changed afterwards."""
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        Answers("some", "sat", "sat", 1.0).z3 = "unsat"  # type: ignore[misc]  # the point
