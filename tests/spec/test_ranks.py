"""The ranks protocol: its rounds are MIN over the votes, each switch matters, and its proof is for any number."""

from __future__ import annotations

from itertools import product

import pytest

from kvlatch.proofs.induction import Invariant
from kvlatch.proofs.mutants import MUTANTS
from kvlatch.proofs.mutation import Mutant
from kvlatch.proofs.parametric import AnyNumber
from kvlatch.proofs.search import explore
from kvlatch.proofs.verdicts import Case, Proved, earn
from kvlatch.spec.model import ANY, Machine
from kvlatch.spec.ranks import DESIGNS, PROPERTIES, RANKS, SWITCHES, Ranks, decided, network, place, vote
from kvlatch.spec.status import B, F, S, W
from kvlatch.spec.terms import State

BROKEN = {
    "ranks-latch": {},
    "ranks-looks-again": {"admission-agreement": 7, "all-settle": 10},
    "ranks-metadata-apart": {"success-everywhere": 14},
    "ranks-clock-voted": {"group-outcome": 4},
    "ranks-clock-of-one": {"admission-agreement": 2, "all-settle": 4},
    "ranks-loop-left": {"all-settle": 4},
    "ranks-reason-local": {"reason-fidelity": 5},
    "ranks-acts-alone": {"admission-agreement": 2, "all-settle": 11},
}
"""What each design breaks with two ranks, and in how many steps."""


def machine(design: str, ranks: int = 2) -> Machine:
    return Machine.of(DESIGNS[design], "locked", "orderly", Ranks(ranks), RANKS)


@pytest.mark.parametrize("design", DESIGNS)
def test_what_each_design_breaks(design: str) -> None:
    found = explore(machine(design), PROPERTIES)
    assert {name: found.length(name) for name in found.violations} == BROKEN[design]
    assert not found.cyclic


def test_every_switch_has_a_design() -> None:
    """Each switch but the network is at another position in some design, alone, and that breaks something."""
    chosen = {name: dict(design.chosen) for name, design in DESIGNS.items() if name != "ranks-latch"}
    assert all(len(one) == 1 and BROKEN[name] for name, one in chosen.items())
    positions = {(switch.name, label) for switch in SWITCHES if switch is not network for label in switch.labels[1:]}
    assert {pair for one in chosen.values() for pair in one.items()} == positions


ORDER = (F, B, W, S)
"""The statuses as MIN orders them: Failed=0, Bootstrapping=1, WaitingForInput=2, Success=4."""


@pytest.mark.parametrize("agreed", [B, W])
@pytest.mark.parametrize("votes", list(product(ORDER, repeat=3)))
def test_a_round_is_the_minimum_of_the_votes(votes: tuple[str, ...], agreed: str) -> None:
    """If MIN says something new, that is agreed on, and nothing else can be."""
    model = machine("ranks-latch", 3)
    state: State = model.initial()
    for index, cast in enumerate(votes):
        state = {**state, model.model.ground.var(vote, {"room": 0, "rank": index}): vote.index(cast)}
        where = "waiting" if agreed == B else "running"
        state = {**state, model.model.ground.var(place, {"room": 0, "rank": index}): place.index(where)}
    group = model.model.ground.var(decided, {"room": 0})
    state = {**state, group: decided.index(agreed)}
    least = min(votes, key=ORDER.index)
    results = {
        decided.labels[model.step(state, action)[group]] for action in model.enabled(state) if action.thread == "group"
    }
    # From the first queue a request is admitted before it can be a success: a MIN of Success admits it.
    expected = W if agreed == B and least == S else least
    assert results == (set() if expected in (agreed, B) else {expected})


def test_the_recommended_design_is_proved_for_any_number_of_ranks() -> None:
    """By both solvers, from all the lemmas at once."""
    theory = AnyNumber.of(machine("ranks-latch", ANY))
    case = Case.of(Invariant(theory, tuple(map(theory.claim, RANKS.lemmas))), PROPERTIES)
    verdicts = [earn(case, prop, set()) for prop in PROPERTIES]
    assert all(isinstance(one, Proved) and one.scope.startswith("any number of ranks") for one in verdicts)


def test_three_ranks_break_what_two_do() -> None:
    """The search beside the proof: what holds for any number holds for three, and what two break, three do."""
    for design, broken in BROKEN.items():
        assert explore(machine(design, 3), PROPERTIES).violations.keys() == broken.keys()


@pytest.mark.parametrize("dropped", [lemma.name for lemma in RANKS.lemmas])
def test_every_lemma_is_needed(dropped: str) -> None:
    """Without it some property of some design is not proved for any number of ranks."""
    lemmas = [lemma for lemma in RANKS.lemmas if lemma.name != dropped]
    for design in ("ranks-latch", "ranks-looks-again"):
        theory = AnyNumber.of(machine(design, ANY))
        wanted = [prop for prop in PROPERTIES if prop.name not in BROKEN[design]]
        for prop in wanted:
            few = [lemma for lemma in lemmas if lemma.name in RANKS.few[prop.name]]
            case = Case.of(Invariant(theory, tuple(map(theory.claim, few))), [prop])
            if not isinstance(earn(case, prop, set()), Proved):
                return
    pytest.fail(f"{dropped} is needed nowhere")


@pytest.mark.parametrize("mutant", [one for one in MUTANTS if one.of is RANKS], ids=lambda one: one.name)
def test_a_mutant_is_not_proved(mutant: Mutant) -> None:
    """For any number of ranks, what a mutant breaks with two does not follow from the lemmas."""
    model = Machine.of(mutant.design, "locked", "orderly", Ranks(ANY), RANKS.with_rows(mutant.rules))
    theory = AnyNumber.of(model)
    broken = RANKS.prop(mutant.prop)
    case = Case.of(Invariant(theory, tuple(map(theory.claim, RANKS.lemmas))), [broken])
    assert not isinstance(earn(case, broken, set()), Proved)
