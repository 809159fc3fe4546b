"""Explicit search, against a search that is too simple to be wrong, and against what is pinned."""

from __future__ import annotations

import numpy as np
import pytest

from kvlatch.proofs.columns import Layout, TooLarge
from kvlatch.proofs.mutants import MUTANTS
from kvlatch.proofs.search import Search, explore
from kvlatch.spec.designs import DESIGNS, guard
from kvlatch.spec.model import Instance, Machine, named
from kvlatch.spec.properties import BY_NAME, PROPERTIES
from kvlatch.spec.protocol import RULES, phase, status, worker
from kvlatch.spec.room import ROOM
from kvlatch.spec.schema import Atomicity, Network, Property, Rule
from kvlatch.spec.terms import FALSE, TRUE, ForAll, State, Term

SMALLEST = Instance(workers=1, chunks=1)
SHORT = {
    "ts": "terminal-sticky", "nr": "no-resurrection", "so": "success-not-overwritten", "sc": "success-complete",
    "np": "no-pin", "st": "settlement", "ng": "no-ghost", "ph": "pages-held", "r1": "released-once",
    "oo": "one-outcome", "lw": "no-lost-wakeup", "rr": "room-reusable",
}  # fmt: skip
SOME: tuple[tuple[str, Atomicity], ...] = (("seed-control", "locked"), ("fix-a", "split"), ("latch", "cas"))
EACH = pytest.mark.parametrize(("design", "level"), SOME)


def machine(design: str, level: Atomicity, instance: Instance = SMALLEST, network: Network = "orderly") -> Machine:
    return Machine.of(DESIGNS[design], level, network, instance)


def naive(on: Machine) -> tuple[list[State], dict[str, int], set[str]]:
    """Every state, at which depth each property first breaks, and what happens: breadth first, one state at a time."""
    bad = {prop: on.model.claim(prop.bad) for prop in PROPERTIES}
    depths: dict[str, int] = {}
    taken: set[str] = set()
    level: list[State] = [on.initial()]
    seen = {tuple(on.initial().values()): on.initial()}
    depth = 0
    while level:
        following: list[State] = []
        for state in level:
            enabled = on.enabled(state)
            taken |= {f"{action} of {action.thread}" for action in enabled}
            stuck = not any(action.fair for action in enabled)
            for prop, formula in bad.items():
                if on.holds(formula, state) and (stuck or prop.kind == "safety"):
                    depths.setdefault(prop.name, depth)
            for action in enabled:
                after = on.step(state, action)
                key = tuple(after.values())
                if key not in seen:
                    seen[key] = after
                    following.append(after)
        level = following
        depth += 1
    return list(seen.values()), depths, taken


def depths(search: Search) -> dict[str, int]:
    """At which depth each property that is broken is first broken."""
    return {prop: depth for prop, (depth, _) in search.violations.items()}


def pinned(text: str) -> dict[str, int]:
    """``"ts 11 nr 10"`` as depths by property."""
    words = text.split()
    return {SHORT[name]: int(depth) for name, depth in zip(words[::2], words[1::2], strict=True)}


@EACH
def test_the_naive_search_finds_the_same(design: str, level: Atomicity) -> None:
    """One state at a time, with the concrete semantics, gives the same states, verdicts, lengths and actions."""
    on = machine(design, level)
    found = explore(on, PROPERTIES)
    states, broken, taken = naive(on)
    assert (found.states, depths(found)) == (len(states), broken)
    assert {f"{action} of {action.thread}" for action in found.taken} == taken
    packed = np.concatenate([each.packed for each in found.levels])
    assert sorted(packed.tolist()) == sorted(int(found.layout.pack(state)) for state in states)


@pytest.mark.parametrize(
    ("workers", "chunks", "design", "level", "states", "broken"),
    [
        (1, 1, "seed-control", "locked", 800, "ts 11 nr 10 so 14 ng 7 ph 15 oo 14"),
        (1, 1, "fix-a", "split", 2234, "ts 15 nr 14 so 19 ng 10 ph 19 oo 19"),
        (1, 1, "latch", "cas", 1261, ""),
        (1, 2, "seed-control", "locked", 2029, "ts 12 nr 11 so 21 np 15 st 15 ng 7 ph 16 oo 19"),
        (1, 2, "fix-a", "split", 5173, "ts 16 nr 15 so 27 np 19 st 19 ng 10 ph 20 oo 24"),
        (1, 2, "latch", "cas", 2413, ""),
        (2, 1, "seed-control", "locked", 1358, "ts 11 nr 10 so 14 ng 7 ph 15 oo 14"),
    ],
)
def test_states_and_lengths_are_the_pinned_ones(
    workers: int, chunks: int, design: str, level: Atomicity, states: int, broken: str
) -> None:
    """A small instance has exactly this many states, and its shortest counterexamples exactly these lengths."""
    found = explore(machine(design, level, Instance(workers, chunks)), PROPERTIES)
    assert (found.states, depths(found)) == (states, pinned(broken))
    assert {name: found.length(name) for name in BY_NAME} == dict.fromkeys(BY_NAME) | pinned(broken)
    assert found.complete
    assert not found.cyclic


@pytest.mark.parametrize(("design", "level"), SOME[:2])
def test_traces_run_on_the_machine(design: str, level: Atomicity) -> None:
    """Every counterexample starts at the start, is as long as its depth, and its steps and last state are real ones."""
    on = machine(design, level, Instance(workers=1, chunks=2))
    found = explore(on, PROPERTIES)
    assert found.violations
    for prop, depth in depths(found).items():
        (none, state), *steps = found.trace(prop)
        assert none is None
        assert state == on.initial()
        assert len(steps) == depth
        for taken, after in steps:
            assert taken in on.enabled(state)
            assert taken is not None
            state = on.step(state, taken)
            assert state == after
        assert on.holds(on.model.claim(BY_NAME[prop].bad), state)


def test_a_search_is_the_same_every_time() -> None:
    """Two searches find the same traces, step by step."""
    first, second = (explore(machine("seed-control", "locked"), PROPERTIES) for _ in range(2))
    for prop in first.violations:
        assert [str(action) for action, _ in first.trace(prop)] == [str(action) for action, _ in second.trace(prop)]
        assert [list(state.values()) for _, state in first.trace(prop)] == [
            list(state.values()) for _, state in second.trace(prop)
        ]


def test_a_property_that_holds_has_no_length_and_no_trace() -> None:
    """Where nothing is broken there is nothing to show."""
    found = explore(machine("latch", "locked"), PROPERTIES)
    assert found.length("no-pin") is None
    with pytest.raises(KeyError, match="no-pin"):
        found.trace("no-pin")


def test_a_settlement_trace_ends_where_nothing_fair_is_left() -> None:
    """Its last state is not settled, and no action that must happen can."""
    on = machine("seed-control", "locked", Instance(workers=1, chunks=2))
    _, last = explore(on, PROPERTIES).trace("settlement")[-1]
    assert named(on, last)["phase"] == "inflight"
    assert not [str(action) for action in on.enabled(last) if action.fair]


def test_pages_that_are_kept_are_not_settled() -> None:
    """A request that is done, and whose pages nobody will release, breaks settlement at its very end."""
    [mutant] = [mutant for mutant in MUTANTS if mutant.name == "kept for ever"]
    on = mutant.machine
    _, last = explore(on, PROPERTIES).trace("settlement")[-1]
    assert (named(on, last)["phase"], named(on, last)["pages"]) == ("done", "held")
    assert on.enabled(last) == []


def test_search_stops_where_it_is_told_to() -> None:
    """With ``until`` the search ends once the named properties are broken, else where it ends anyway."""
    on = machine("seed-control", "locked")
    whole = explore(on, PROPERTIES)
    partly = explore(on, PROPERTIES, until=["no-ghost"])
    assert not partly.complete
    assert not partly.cyclic
    assert depths(partly) == {"no-ghost": 7}
    assert partly.states < whole.states
    assert set(partly.taken) <= set(whole.taken)
    both = explore(on, PROPERTIES, until=["no-ghost", "no-resurrection"])
    assert depths(both) == {"no-ghost": 7, "no-resurrection": 10}
    never = explore(on, PROPERTIES, until=["no-ghost", "room-reusable"])
    assert never.complete
    assert (never.states, depths(never)) == (whole.states, depths(whole))


@pytest.mark.parametrize(
    "formula",
    [phase == "inflight", status == "Failed", ForAll("worker", worker == "idle"), guard == "skips", TRUE, FALSE],
    ids=["phase", "status", "workers", "switch", "true", "false"],
)
def test_states_are_counted_where_a_formula_holds(formula: Term) -> None:
    """``count`` says in how many of the states reached a formula holds, switches and quantifiers included."""
    on = machine("seed-control", "locked")
    claim = on.model.claim(formula)
    assert explore(on, PROPERTIES).count(formula) == sum(on.holds(claim, state) for state in naive(on)[0])


def test_every_phase_is_counted() -> None:
    """Each state is in one phase, and only the first is in ``new``."""
    found = explore(machine("seed-control", "locked"), PROPERTIES)
    by_phase = [found.count(phase == label) for label in phase.labels]
    assert by_phase[0] == 1
    assert all(by_phase)
    assert sum(by_phase) == found.states


def test_what_happens_is_what_is_taken() -> None:
    """An action is in ``taken`` if some reachable state enables it; two rows of the protocol are not for ``latch``."""
    found = explore(machine("latch", "locked"), PROPERTIES)
    names = {action.name for action in found.taken}
    assert "write_t_again" not in names
    assert {rule.name for rule in RULES if rule.requests == 1} - names == {"conclude", "write_t_again"}


def test_packing_is_undone_by_unpacking() -> None:
    """Every state of a run is one number, and the number is the state."""
    on = machine("fix-a", "split", Instance(workers=2, chunks=2))
    layout = Layout.of(on)
    for _, state in explore(on, PROPERTIES, until=["terminal-sticky"]).trace("terminal-sticky"):
        assert layout.unpack(layout.pack(state)) == state


def test_an_instance_that_does_not_fit_is_refused() -> None:
    """A state that needs more than 64 bits is refused before anything is searched, with what it would need."""
    with pytest.raises(TooLarge, match=r"8 workers, .*, 1 room needs \d+ bits, more than 64$"):
        explore(machine("latch", "locked", Instance(workers=8, chunks=4, requests=2)), PROPERTIES)


OPEN = Rule("open", "scheduler", "free", "free", phase == "new", {phase: "boot"})
CLOSE = Rule("close", "scheduler", "free", "free", phase == "boot", {phase: "new"})
LEAVE = Rule("leave", "scheduler", "free", "free", phase == "boot", {phase: "done"})
STAY = Rule("stay", "scheduler", "free", "free", phase == "boot", {phase: "boot"})
JAM = Rule("jam", "scheduler", "free", "free", phase == "boot", {phase: "running"})


ENDS = Property("ends", "No run goes on for ever.", FALSE, kind="liveness", broken="it goes on")
"""Broken by no state, so that only a cycle is left to break it."""


@pytest.mark.parametrize(
    ("rules", "cyclic", "states"),
    [
        ((), False, 1), ((OPEN,), False, 2), ((OPEN, LEAVE), False, 3), ((OPEN, CLOSE), True, 2),
        ((OPEN, CLOSE, LEAVE), True, 3), ((OPEN, STAY), True, 2),
    ],
    ids=["nothing", "stops", "leaves", "goes round", "goes round or leaves", "stays"],
)  # fmt: skip
def test_a_cycle_is_reported(rules: tuple[Rule, ...], cyclic: bool, states: int) -> None:
    """A run that can go round for ever is found even where another way leads out, and where no state is bad."""
    found = explore(Machine.of(DESIGNS["latch"], "locked", "orderly", SMALLEST, ROOM.with_rows(rules)), [ENDS])
    assert (found.cyclic, found.states, found.violations) == (cyclic, states, {})


def test_cycles_are_looked_for_where_they_matter() -> None:
    """Where no liveness property is asked for, or a stuck state has broken it already, a cycle breaks nothing more."""
    on = Machine.of(DESIGNS["latch"], "locked", "orderly", SMALLEST, ROOM.with_rows((OPEN, CLOSE, JAM)))
    settlement = BY_NAME["settlement"]
    assert explore(on, [ENDS]).cyclic
    assert explore(on, [settlement, ENDS]).cyclic
    assert not explore(on, [BY_NAME["no-pin"]]).cyclic
    stuck = explore(on, [settlement])
    assert (stuck.length("settlement"), stuck.cyclic) == (2, False)


@EACH
def test_a_cycle_through_a_longer_way_is_reported(design: str, level: Atomicity) -> None:
    """Three steps that lead back to the start are a cycle as well, and only in the designs that have them."""
    ring = [("new", "boot"), ("boot", "running"), ("running", "new")]
    rules = [
        Rule(f"from {here}", "scheduler", "free", "free", (phase == here) & conditional, {phase: there})
        for here, there in ring
        for conditional in [guard == "skips" if here == "running" else TRUE]
    ]
    found = explore(Machine.of(DESIGNS[design], level, "orderly", SMALLEST, ROOM.with_rows(rules)), PROPERTIES)
    assert found.cyclic is (DESIGNS[design].guard == "skips")
