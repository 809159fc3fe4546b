"""Two solvers: they agree, and nothing that either does not say outright is a pass."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import attrs
import pytest
import z3

from kvlatch.proofs import induction, solvers
from kvlatch.proofs.induction import Claim, Invariant, Theory
from kvlatch.proofs.obligations import Obligation
from kvlatch.proofs.solvers import Answers, discharge, standalone
from kvlatch.proofs.worlds import WORLDS
from kvlatch.spec.designs import DESIGNS
from kvlatch.spec.lemmas import LEMMAS
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
    [(first, used, _)] = solvers._by_z3(invariant, [obligation])
    [second] = solvers._by_cvc5(
        solvers._session(invariant, [(obligation, used if first == "unsat" else invariant.claims)]), 1
    )
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
        (INVARIANT, INVARIANT.starts, "unsat"),
    ],
    ids=["with the lemmas", "without", "possible", "impossible", "by itself", "nothing", "false", "bare"],
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
    asked = [(obligation, INVARIANT.claims) for obligation in (POSSIBLE, *order, POSSIBLE)]
    assert solvers._by_cvc5(solvers._session(INVARIANT, asked), 5) == ["sat", *["unsat"] * 3, "sat"]


def test_no_obligations_have_no_answers() -> None:
    """Nothing asked, nothing said."""
    assert discharge(INVARIANT, []) == []


@pytest.mark.parametrize(
    ("name", "goes_on"), [("initial", False), ("step some", False), ("rank some", True), ("property some", True)]
)
def test_after_a_counterexample_only_what_is_some_properties_own_is_asked(name: str, goes_on: bool) -> None:
    """What has failed is not asked of cvc5; only if it was a property's own, another may still be discharged."""
    answers = discharge(INVARIANT, [IMPOSSIBLE, attrs.evolve(POSSIBLE, name=name), TRUE_OF_ALL])
    said = [(answer.name, answer.z3, answer.cvc5, answer.discharged) for answer in answers]
    both = ("unsat", "unsat", True)
    expected = [("impossible", *both), (name, "sat", "not asked", False), (TRUE_OF_ALL.name, *both)]
    assert said == (expected if goes_on else expected[:2])


def test_lemmas_that_are_used_are_enough() -> None:
    """Z3 names some of the lemmas; with those both discharge the obligation, and with none of them neither does."""
    [(answer, used, _)] = solvers._by_z3(INVARIANT, [TRUE_OF_ALL])
    assert answer == "unsat"
    assert 0 < len(used) < len(INVARIANT.claims)
    assert set(used) < set(INVARIANT.claims)
    assert by_both(Invariant(THEORY, used), TRUE_OF_ALL) == ("unsat", "unsat")
    others = tuple(claim for claim in INVARIANT.claims if claim not in used)
    assert by_both(Invariant(THEORY, others), TRUE_OF_ALL) == ("sat", "sat")


def test_a_bare_obligation_has_no_lemmas() -> None:
    """What follows from the lemmas does not follow without: a bare obligation is asked as if there were none."""
    bare = attrs.evolve(TRUE_OF_ALL, bare=True)
    assert [answer.z3 for answer in discharge(INVARIANT, [TRUE_OF_ALL, bare])] == ["unsat", "sat"]
    assert [used for _, used, _ in solvers._by_z3(INVARIANT, [attrs.evolve(IMPOSSIBLE, bare=True)])] == [()]


def test_cvc5_is_asked_only_with_the_lemmas_that_z3_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what Z3 has discharged is in the script, each with the lemmas that Z3 names, whichever they are."""
    scripts, used = [], []
    by_z3 = solvers._by_z3

    def by_cvc5(text: str, count: int) -> list[str]:
        scripts.append(text)
        return ["unsat"] * count

    def recorded(invariant: Invariant, obligations: list[Obligation]) -> Iterator[tuple[str, tuple[Claim, ...], float]]:
        for answer in by_z3(invariant, obligations):
            used.append(answer[1])
            yield answer

    monkeypatch.setattr(solvers, "_by_cvc5", by_cvc5)
    monkeypatch.setattr(solvers, "_by_z3", recorded)
    discharge(INVARIANT, [TRUE_OF_ALL, attrs.evolve(POSSIBLE, name="property possible"), IMPOSSIBLE])
    assert len(INVARIANT.claims) > len(used[0]) > len(used[1]) == len(used[2]) == 0
    assert scripts == [solvers._session(INVARIANT, [(TRUE_OF_ALL, used[0]), (IMPOSSIBLE, ())])]


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
        [(said, used, _)] = solvers._by_z3(NOTHING, [hard])
        assert used == ()
    else:
        monkeypatch.setattr(solvers, "_LIMIT", 1000)
        session = solvers._session(NOTHING, [(hard, ())]).replace(
            "(push 1)", "(declare-const a (_ BitVec 24)) (declare-const b (_ BitVec 24)) (push 1)"
        )
        [said] = solvers._by_cvc5(session, 1)
    assert said == "unknown"


def hard_problem() -> list[z3.BoolRef]:
    """Two factors of a large prime."""
    a, b = z3.BitVecs("a b", 24)
    wide = z3.ZeroExt(24, a) * z3.ZeroExt(24, b)
    return [wide == 140737488355213, z3.UGT(a, 1), z3.UGT(b, 1)]


def test_the_script_says_what_z3_is_asked() -> None:
    """Read back by Z3, the script's assertions are the lemmas that were passed and the obligation."""
    some = INVARIANT.claims[::2]
    solver = z3.Solver()
    solver.from_string(solvers._session(INVARIANT, [(TRUE_OF_ALL, some)]).replace("(check-sat)\n(pop 1)", ""))
    whole = z3.And(*Invariant(THEORY, some).axioms, *TRUE_OF_ALL.assertions)
    differs = z3.Solver()
    differs.add(z3.And(*solver.assertions()) != whole)
    assert differs.check() == z3.unsat


def test_a_script_stands_alone() -> None:
    """Of one obligation by itself cvc5 says the same: with every lemma, or with none where it is bare."""
    for obligation in (TRUE_OF_ALL, INVARIANT.starts, *INVARIANT.inductive[:3], IMPOSSIBLE):
        [text] = standalone(INVARIANT, [obligation])
        assert solvers._by_cvc5(text, 1) == ["unsat"]
    for obligation in (POSSIBLE, attrs.evolve(TRUE_OF_ALL, bare=True)):
        [text] = standalone(INVARIANT, [obligation])
        assert solvers._by_cvc5(text, 1) == ["sat"]


def test_answers_are_values() -> None:
    """An answer cannot be changed afterwards."""
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        Answers("some", "sat", "sat", 1.0).z3 = "unsat"  # type: ignore[misc]  # the point
