"""A proof is earned: whatever is missing, open, vacuous or not shown to be breakable makes it Unknown."""

from __future__ import annotations

import ast
from pathlib import Path

import attrs
import pytest

from kvlatch.proofs.induction import Invariant, Theory, keep
from kvlatch.proofs.mutants import MUTANTS
from kvlatch.proofs.search import explore
from kvlatch.proofs.solvers import Answers
from kvlatch.proofs.verdicts import Case, Proved, Unknown, Verdict, earn
from kvlatch.proofs.worlds import WORLDS
from kvlatch.spec.designs import DESIGNS
from kvlatch.spec.lemmas import BY_NAME as BY_LEMMA
from kvlatch.spec.lemmas import LEMMAS
from kvlatch.spec.model import Machine
from kvlatch.spec.properties import BY_NAME, PROPERTIES
from kvlatch.spec.protocol import gen
from kvlatch.spec.room import ROOM
from kvlatch.spec.schema import Lemma
from kvlatch.spec.terms import FALSE, TRUE

ROOT = Path(__file__).resolve().parents[2]
LATCH, SEEN = (
    Machine.of(DESIGNS["latch"], "locked", world.network, world.instance(1)) for world in (ROOM.bounded, WORLDS[0])
)
THEORY = Theory.of(LATCH)
STICKY, SETTLEMENT = BY_NAME["terminal-sticky"], BY_NAME["settlement"]


def case_of(*lemmas: Lemma) -> Case:
    """Everything asked about lemmas that nobody has tried to keep."""
    return Case.of(Invariant(THEORY, tuple(THEORY.claim(lemma) for lemma in lemmas)), PROPERTIES)


@pytest.fixture(scope="module")
def case() -> Case:
    return Case.of(keep(THEORY, LEMMAS), PROPERTIES)


@pytest.fixture(scope="module")
def taken() -> set[str]:
    return {action.label for action in explore(SEEN, PROPERTIES).taken}


def answering(case: Case, name: str, by_z3: str, by_cvc5: str) -> Case:
    """The case with one answer changed."""
    return attrs.evolve(case, answers={**case.answers, name: Answers(name, by_z3, by_cvc5, 1.0)})


def without(case: Case, name: str) -> Case:
    """The case with one answer missing."""
    return attrs.evolve(case, answers={key: answer for key, answer in case.answers.items() if key != name})


def case_names(case: Case) -> list[str]:
    """The names of everything that a case should have asked."""
    return [obligation.name for prop in PROPERTIES for obligation in case.invariant.obligations(prop)]


def reason(verdict: Verdict) -> str:
    assert isinstance(verdict, Unknown)
    return verdict.reason


def test_latch_earns_all_twelve(case: Case, taken: set[str]) -> None:
    """With nothing missing it is a proof, which names its scope, its lemmas and how many obligations it took."""
    actions = len(LATCH.model.actions)
    for prop in PROPERTIES:
        verdict = earn(case, prop, taken)
        assert isinstance(verdict, Proved)
        assert verdict.scope == "one room, one worker; 2 chunks, 2 requests on a room id, disorderly network"
        assert verdict.lemmas == tuple(lemma.name for lemma in LEMMAS)
        assert len(verdict.obligations) == 2 + (2 * actions if prop.kind == "liveness" else actions)


def test_no_action_can_be_forgotten(case: Case, taken: set[str]) -> None:
    """Without the obligation of any single action nothing is proved; without its rank no settlement."""
    for action in LATCH.model.actions:
        step, rank = f"step {action.label}", f"rank {action.label}"
        assert reason(earn(without(case, step), STICKY, taken)) == f"no answer to {step}"
        assert isinstance(earn(without(case, rank), STICKY, taken), Proved)
        assert reason(earn(without(without(case, step), rank), SETTLEMENT, taken)) == f"no answer to {rank}, {step}"


def test_what_is_open_is_said_before_what_is_missing(case: Case, taken: set[str]) -> None:
    """After a failure nothing more is asked, so the failure is the reason and not what was left out because of it."""
    both = without(answering(case, "step create", "sat", "not asked"), "step release")
    assert reason(earn(both, STICKY, taken)) == "1 obligations open; step create: Z3 sat, cvc5 not asked"


def test_the_property_itself_must_be_asked(case: Case, taken: set[str]) -> None:
    """A case about other properties proves none that it was not asked about."""
    other = Case.of(case.invariant, [BY_NAME["no-pin"]])
    assert isinstance(earn(other, BY_NAME["no-pin"], taken), Proved)
    assert reason(earn(other, STICKY, taken)) == "no answer to property terminal-sticky"
    missing = reason(earn(other, SETTLEMENT, taken))
    assert missing.startswith("no answer to ")
    assert all(name in missing for name in ("property settlement, 1 at work", "rank create"))


@pytest.mark.parametrize("name", ["initial", "step reuse", "step take worker=0 chunk=1", "property terminal-sticky"])
@pytest.mark.parametrize(
    "said", [("unknown", "unsat"), ("sat", "not asked"), ("unsat", "unknown"), ("unsat", "sat")], ids=" and ".join
)
def test_one_open_obligation_is_enough(case: Case, taken: set[str], name: str, said: tuple[str, str]) -> None:
    """An answer other than unsat, from either solver, to any obligation: unknown, which says what is open."""
    text = reason(earn(answering(case, name, *said), STICKY, taken))
    assert text == f"1 obligations open; {name}: Z3 {said[0]}, cvc5 {said[1]}"


def test_a_rank_that_is_open_leaves_settlement_unknown_alone(case: Case, taken: set[str]) -> None:
    """Safety does not need the rank."""
    broken = answering(case, "rank create", "unsat", "unknown")
    assert "rank create" in reason(earn(broken, SETTLEMENT, taken))
    assert isinstance(earn(broken, STICKY, taken), Proved)


def test_lemmas_that_are_not_kept_prove_nothing(taken: set[str]) -> None:
    """Some lemma without those that it rests on, or none at all: nothing is proved but what it suffices for."""
    for names, proved in (
        (["first terminal Failed"], ["no-resurrection"]),
        (["first terminal Failed", "drained"], []),
        ([], []),
    ):
        some = case_of(*(BY_LEMMA[name] for name in names))
        assert [prop.name for prop in PROPERTIES if isinstance(earn(some, prop, taken), Proved)] == proved


def test_a_contradiction_proves_nothing(taken: set[str]) -> None:
    """From a lemma that is never true everything follows; but it is not true at first, and no action can start."""
    case = case_of(Lemma("never", FALSE))
    assert case.answers["initial"].z3 == "sat"
    assert case.startable == set()
    assert all(isinstance(earn(case, prop, taken), Unknown) for prop in PROPERTIES)
    pretended = attrs.evolve(case, answers=dict.fromkeys(case_names(case), Answers("any", "unsat", "unsat", 1.0)))
    assert reason(earn(pretended, STICKY, taken)).startswith("vacuous: the lemmas exclude actions that happen: abort, ")


def test_an_action_that_happens_must_be_able_to_start(case: Case, taken: set[str]) -> None:
    """Excluding one action that the search has seen is vacuous; one that nobody has seen may be excluded."""
    assert taken <= case.startable
    fewer = attrs.evolve(case, startable=case.startable - {"release"})
    assert reason(earn(fewer, STICKY, taken)) == "vacuous: the lemmas exclude actions that happen: release"
    assert isinstance(earn(fewer, STICKY, taken - {"release"}), Proved)


def test_a_property_without_a_mutant_is_not_proved(case: Case, taken: set[str]) -> None:
    """Unless some mutant breaks it, nothing shows that the claim could fail; the others stay proved."""
    for prop in PROPERTIES:
        fewer = attrs.evolve(case, breakable=case.breakable - {prop.name})
        assert reason(earn(fewer, prop, taken)).startswith("no mutant of the protocol breaks this property")
        others = [other for other in PROPERTIES if other is not prop]
        assert all(isinstance(earn(fewer, other, taken), Proved) for other in others)
    assert case.breakable == {mutant.prop for mutant in MUTANTS if mutant.of is ROOM}


def test_lemmas_must_hold_at_first() -> None:
    """Lemmas that every step keeps, and that the initial state does not satisfy, prove nothing."""
    claim = THEORY.claim(Lemma("always the second", gen == "second"))
    never_the_first = attrs.evolve(STICKY, bad=gen == "first")
    case = Case.of(Invariant(THEORY, (claim,)), [never_the_first])
    assert case.answers["initial"].z3 == "sat"
    assert isinstance(earn(case, never_the_first, set()), Unknown)
    pretended = attrs.evolve(case, answers=dict.fromkeys(case_names(case), Answers("any", "unsat", "unsat", 1.0)))
    assert reason(earn(without(pretended, "initial"), never_the_first, set())) == "no answer to initial"


def test_lemmas_may_be_trivial() -> None:
    """What is true of every state is kept, startable and initial, and proves nothing that needs more."""
    case = case_of(Lemma("always", TRUE))
    assert isinstance(earn(case, STICKY, set()), Unknown)


def test_an_answer_has_no_default() -> None:
    """Nobody gets a discharged answer by leaving something out."""
    with pytest.raises(TypeError):
        Answers("some")  # type: ignore[call-arg]  # the point


@pytest.mark.parametrize("package", ["spec", "reference", "proofs"])
def test_only_earn_makes_a_proof(package: str) -> None:
    """``Proved(`` is called in one place of all packages: in ``earn``, at its very end."""
    calls = []
    for path in sorted((ROOT / package).rglob("*.py")):
        for function in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(function, ast.FunctionDef | ast.Module):
                calls += [
                    (path.name, getattr(function, "name", ""))
                    for node in ast.walk(function)
                    if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "Proved"
                ]
    expected = [("verdicts.py", ""), ("verdicts.py", "earn")] if package == "proofs" else []
    assert calls == expected
