"""The oracle and the proofs agree: what is found in a manager made of a design's rows, is refuted of the design."""

import pytest

from kvlatch.proofs import pins
from kvlatch.reference.laws import NO_DEADLOCK
from kvlatch.reference.oracle.checks import LAWS, examine
from kvlatch.reference.oracle.explore import STAGES, explore, replay
from kvlatch.reference.oracle.moves import Bounds, Call, Step
from kvlatch.reference.oracle.spec_manager import SpecManager
from kvlatch.reference.oracle.wrong_managers import LATCH, WRONG, Wrong
from kvlatch.spec.designs import DESIGNS, Design
from kvlatch.spec.properties import PROPERTIES
from tests.reference.oracle.wandering import wandered


def refuted(design: Design) -> set[str]:
    """The properties with a pinned counterexample: of the locked design, or of the split one, which can do no less."""
    expected = pins.pinned()
    level = "locked" if "locked" in design.atomicities else "split"
    cells = {
        (workers, prop.name): expected[design.name, level, workers, prop.name]
        for workers in (1, 2)
        for prop in PROPERTIES
    }
    return {prop for (_, prop), verdict in cells.items() if verdict != "holds"}


def test_the_oracle_finds_nothing_in_latch() -> None:
    """Every play within the stages' bounds, and random ones beyond, break no law of a manager made of latch's rows."""
    report = examine(SpecManager(LATCH), "latch", tuple(LAWS), walks=10, seconds=None)
    assert report.complete
    assert report.looked_at["plays"] > 2_000
    assert report.findings == {}
    assert report.kept == tuple(law for law in LAWS if law != NO_DEADLOCK)


def test_more_chunks_and_workers_than_the_stages_have_change_nothing() -> None:
    """Random plays of three chunks, three workers and two requests break no law of latch either."""
    bounds = Bounds("disorderly", chunks=3, workers=3, requests=2)
    assert wandered(SpecManager(LATCH), bounds, walks=20) == set()


@pytest.mark.parametrize("name", [name for name in DESIGNS if name != "latch"])
def test_the_oracle_finds_only_what_the_proofs_refute(name: str) -> None:
    """In a manager made of a design's rows the oracle finds broken laws, and each of them has a counterexample."""
    manager = SpecManager(DESIGNS[name])
    found: set[str] = set()
    for bounds in (STAGES[0], STAGES[2]):
        left = [prop.name for prop in PROPERTIES if prop.name not in found]
        found |= explore(manager, bounds, left, limit=600).found.keys()
    least = {"room-reusable"} if name == "latch-local" else {"no-ghost", "pages-held", "one-outcome"}
    assert least <= found <= refuted(DESIGNS[name])


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.law)
def test_each_wrong_manager_breaks_its_law(wrong: Wrong) -> None:
    """The oracle finds in each manager with one thing wrong the law that it is said to break."""
    assert wrong.law in explore(wrong.manager, wrong.bounds, [wrong.law]).found


def test_there_is_a_wrong_manager_for_every_property() -> None:
    """No property of the spec is without a manager that breaks it."""
    assert {wrong.law for wrong in WRONG} == {prop.name for prop in PROPERTIES}


def test_what_happens_inside_a_call_is_seen() -> None:
    """A transfer that fails tells decode Failed, and the pages are released by the clear that follows."""
    play = replay(SpecManager(LATCH), "orderly-1-1-1 create metadata poll send start/0 break/0 poll clear")
    told = [[(request, word.name) for request, word in seen.told] for seen in play.seen]
    assert told == [[], [], [], [], [], [(1, "Failed")], [], []]
    assert [list(seen.released) for seen in play.seen] == [[], [], [], [], [], [], [], [1]]
    assert play.life.now.phase == "done"


def test_a_worker_without_its_peers_is_one_of_several() -> None:
    """Which of two workers takes the first chunk makes no difference to what is seen."""
    plays = [
        replay(
            SpecManager(LATCH), f"orderly-2-2-1 create metadata poll send send start/{one} start/{other} finish/{one}"
        )
        for one, other in ((0, 1), (1, 0))
    ]
    assert plays[0].seen == plays[1].seen


def test_a_call_that_no_run_has_is_refused() -> None:
    """Creating a request twice is a mistake of the caller, and said to be one; so is a thread that goes on."""
    twice = Step("scheduler", Call("create", 1))
    with pytest.raises(ValueError, match="create is not enabled"):
        SpecManager(LATCH).play([(twice, twice)])
    with pytest.raises(ValueError, match="scheduler is not held anywhere"):
        SpecManager(LATCH).play([(Step("scheduler"),)])


def test_without_a_row_the_manager_goes_without() -> None:
    """The rows that are given are the ones that are played: without `release`, no pages come back."""
    rules = tuple(rule for rule in SpecManager(LATCH).rules if rule.name != "release")
    play = replay(SpecManager(LATCH, rules), "orderly-1-1-1 create abort poll clear")
    assert [seen.released for seen in play.seen] == [()] * 4
