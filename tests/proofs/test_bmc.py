"""Bounded model checking: an engine of its own kind that must find what explicit search finds, at the same depth."""

from __future__ import annotations

import attrs
import pytest
import z3

from kvlatch.proofs import bmc
from kvlatch.proofs.bmc import Undecided, Unrolling, script
from kvlatch.proofs.mutants import MUTANTS
from kvlatch.proofs.search import explore
from kvlatch.spec.designs import DESIGNS
from kvlatch.spec.model import Action, Instance, Machine
from kvlatch.spec.properties import BY_NAME, PROPERTIES
from kvlatch.spec.schema import Atomicity, Property
from kvlatch.spec.terms import Any

SMALLEST = Instance(workers=1, chunks=1)


def machine(design: str, level: Atomicity, instance: Instance = Instance()) -> Machine:  # noqa: B008 - frozen
    return Machine.of(DESIGNS[design], level, "orderly", instance)


def others(known: list[Property]) -> list[Property]:
    """All other properties as one of safety and one of liveness: broken where one of them is."""
    rest = [prop for prop in PROPERTIES if prop not in known]
    return [
        attrs.evolve(some[0], name=f"any {kind}", bad=Any(tuple(prop.bad for prop in some)))
        for kind in ("safety", "liveness")
        for some in [[prop for prop in rest if prop.kind == kind]]
    ]


def lengths(runs: dict[str, list[Action]]) -> dict[str, int]:
    return {prop: len(run) for prop, run in runs.items()}


@pytest.mark.parametrize(
    ("design", "level", "expected"),
    [
        ("seed-control", "locked", {"terminal-sticky": 12, "no-pin": 15, "settlement": 15}),
        ("fix-a", "split", {"terminal-sticky": 16}),
    ],
)
def test_lengths_are_those_of_the_search(design: str, level: Atomicity, expected: dict[str, int]) -> None:
    """The headlines: two engines that share nothing but the meaning of a row say the same number of steps."""
    on = machine(design, level)
    found = Unrolling.of(on).shortest([BY_NAME[name] for name in expected], 20)
    assert lengths(found) == expected
    search = explore(on, PROPERTIES)
    assert {name: search.length(name) for name in expected} == expected


def test_everything_that_the_search_finds_and_nothing_else() -> None:
    """To the depth of the whole state space: what is broken has the search's length, what holds is not found."""
    on = machine("seed-control", "locked", SMALLEST)
    search = explore(on, PROPERTIES)
    depth = len(search.levels)
    broken = [prop for prop in PROPERTIES if prop.name in search.violations]
    assert lengths(Unrolling.of(on).shortest([*broken, *others(broken)], depth)) == {
        prop: length for prop, (length, _) in search.violations.items()
    }


def test_what_holds_is_not_found() -> None:
    """No run of ``latch`` is bad, to the depth at which everything that ``seed-control`` breaks is broken."""
    depth = max(
        length for length, _ in explore(machine("seed-control", "locked", SMALLEST), PROPERTIES).violations.values()
    )
    assert Unrolling.of(machine("latch", "locked", SMALLEST)).shortest(others([]), depth) == {}


def test_a_run_is_one_of_the_spec_and_ends_badly() -> None:
    """Each action of a run is enabled where it is taken, and the last state is bad."""
    on = machine("seed-control", "locked")
    [run] = Unrolling.of(on).shortest([BY_NAME["no-ghost"]], 10).values()
    state = on.initial()
    for action in run:
        assert action in on.enabled(state)
        state = on.step(state, action)
    assert on.holds(on.model.claim(BY_NAME["no-ghost"].bad), state)


def test_a_liveness_run_ends_where_nothing_fair_is_left() -> None:
    """Pages that are kept for ever: the run ends in a state that nothing leaves, at the length of the search."""
    [mutant] = [mutant for mutant in MUTANTS if mutant.name == "kept for ever"]
    [run] = Unrolling.of(mutant.machine).shortest([BY_NAME["settlement"]], 12).values()
    assert len(run) == explore(mutant.machine, PROPERTIES).length("settlement") == 12
    state = mutant.machine.initial()
    for action in run:
        state = mutant.machine.step(state, action)
    assert not [str(action) for action in mutant.machine.enabled(state) if action.fair]


def test_the_limit_is_the_longest_run() -> None:
    """A counterexample of exactly the limit is found, and a longer one is not."""
    unrolling = Unrolling.of(machine("seed-control", "locked"))
    prop = BY_NAME["no-ghost"]
    assert unrolling.shortest([prop], 6) == {}
    assert lengths(unrolling.shortest([prop], 7)) == {"no-ghost": 7}
    assert lengths(Unrolling.of(machine("seed-control", "locked")).shortest([prop], 7)) == {"no-ghost": 7}


def test_a_script_says_that_none_is_shorter() -> None:
    """No property is broken below its length, and one step more for any of them breaks it."""
    on = machine("seed-control", "locked", SMALLEST)
    lengths = {prop: length for prop, (length, _) in explore(on, PROPERTIES).violations.items()}
    assert lengths

    def said(bounds: dict[str, int]) -> z3.CheckSatResult:
        solver = z3.SolverFor("QF_FD")
        solver.from_string(script(on, bounds))
        return solver.check()

    assert said(lengths) == z3.unsat
    for prop, length in lengths.items():
        assert said(lengths | {prop: length + 1}) == z3.sat


def test_what_z3_cannot_decide_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without resources Z3 answers unknown, which is neither a run nor its absence."""
    monkeypatch.setattr(bmc, "_LIMIT", 1)
    with pytest.raises(Undecided, match=r"^[a-z-]+ at depth \d+: "):
        Unrolling.of(machine("seed-control", "locked")).shortest([BY_NAME["terminal-sticky"]], 12)


def test_a_run_that_is_none_is_an_error() -> None:
    """A run that does not end in a bad state, or that the guards forbid, is not reported but raises."""
    on = machine("seed-control", "locked")
    unrolling, prop = Unrolling.of(on), BY_NAME["terminal-sticky"]
    create = on.model.action("create", {})
    assert create is not None
    with pytest.raises(AssertionError, match="terminal-sticky does not end in a bad state"):
        unrolling._execute([create], prop)
    with pytest.raises(ValueError, match="create is not enabled"):
        unrolling._execute([create, create], prop)
