"""No lemma is there in vain: without it, the others no longer prove what they prove."""

from __future__ import annotations

import pytest
import z3

from kvlatch.proofs.induction import Invariant, new_solver
from kvlatch.proofs.obligations import conjunction
from kvlatch.proofs.parametric import AnyNumber
from kvlatch.proofs.solvers import discharge
from kvlatch.proofs.worlds import EVERYTHING
from kvlatch.spec.designs import DESIGNS
from kvlatch.spec.lemmas import BY_NAME, FEW, LEMMAS
from kvlatch.spec.model import ANY, Machine
from kvlatch.spec.properties import BY_NAME as PROPERTY
from kvlatch.spec.properties import PROPERTIES
from kvlatch.spec.room import ROOM
from kvlatch.spec.schema import Atomicity, Lemma


class Pool:
    """The lemmas of ``latch`` in one atomicity, each behind an assumption, and what each step makes of them."""

    def __init__(self, atomicity: Atomicity) -> None:
        theory = AnyNumber.of(Machine.of(DESIGNS["latch"], atomicity, EVERYTHING.network, EVERYTHING.instance(ANY)))
        claims = {lemma: theory.claim(lemma) for lemma in LEMMAS}
        self.assumed = {lemma: z3.Bool(lemma.name) for lemma in LEMMAS}
        self.solver = new_solver(theory.logic)
        self.solver.add(*theory.domain, *(z3.Implies(self.assumed[lemma], claims[lemma].formula) for lemma in LEMMAS))
        self.steps = [
            (
                z3.And(step.enabled, *step.defined),
                {each: theory.after(step, theory.goal(c)) for each, c in claims.items() if theory.touched(step, c)},
            )
            for step in theory.steps
        ]
        every = Invariant(theory, tuple(claims.values()))
        self.bad = [
            obligation.assertions
            for prop in PROPERTIES
            for obligation in every.obligations(prop)
            if obligation.name.startswith("property")
        ]

    def proves_without(self, dropped: Lemma) -> bool:
        """The other lemmas keep each other, and imply every property."""
        others = [name for lemma, name in self.assumed.items() if lemma is not dropped]
        questions = [
            (enabled, z3.Not(conjunction([goal for lemma, goal in after.items() if lemma is not dropped])))
            for enabled, after in self.steps
        ]
        return all(self._impossible(others, question) for question in [*questions, *self.bad])

    def _impossible(self, assumptions: list[z3.BoolRef], question: tuple[z3.BoolRef, ...]) -> bool:
        self.solver.push()
        self.solver.add(*question)
        answer = self.solver.check(*assumptions)
        self.solver.pop()
        assert answer != z3.unknown
        return bool(answer == z3.unsat)


@pytest.fixture(scope="module")
def pools() -> list[Pool]:
    """Both atomicities that ``latch`` claims."""
    return [Pool("locked"), Pool("cas")]


@pytest.mark.parametrize("name", BY_NAME)
def test_each_lemma_is_needed(name: str, pools: list[Pool]) -> None:
    """Drop it, and some step breaks another lemma, or some property no longer follows.

    But for two: one says that two labels are enough for any number of requests, one is what another design rests on.
    """
    spared = {"no old infos": ROOM.older.lemmas if ROOM.older else (), "infos of the past": FEW["no-lost-wakeup"]}
    assert name in spared.get(name, ()) or not all(pool.proves_without(BY_NAME[name]) for pool in pools)


def test_a_wake_up_rests_on_infos_of_the_past() -> None:
    """In designs without tombstones metadata of the first request may be there in the life of the second."""
    theory = AnyNumber.of(Machine.of(DESIGNS["fix-a"], "locked", EVERYTHING.network, EVERYTHING.instance(ANY)))
    few = FEW["no-lost-wakeup"]
    for names in (few, [name for name in few if name != "infos of the past"]):
        proof = Invariant(theory, tuple(theory.claim(BY_NAME[name]) for name in names))
        answers = discharge(proof, proof.obligations(PROPERTY["no-lost-wakeup"]))
        assert all(answer.discharged for answer in answers) is (names is few)


def test_together_they_prove_every_property(pools: list[Pool]) -> None:
    """The control: a lemma that is not in the pool is missed by nobody."""
    stranger = Lemma("stranger", LEMMAS[0].claim)
    assert all(pool.proves_without(stranger) for pool in pools)


def test_names() -> None:
    """Every lemma has its own name, and the few that other designs rest on are among them."""
    assert len(BY_NAME) == len(LEMMAS)
    assert set(FEW) <= set(PROPERTY)
    assert {name for names in FEW.values() for name in names} <= set(BY_NAME)
