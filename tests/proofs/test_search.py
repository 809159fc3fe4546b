"""Explicit search, against a search that is too simple to be wrong, and against what is pinned."""

from __future__ import annotations

import pytest

from kvlatch.proofs.columns import Configuration, TooLarge
from kvlatch.proofs.search import Search, explore, states_where
from kvlatch.spec.designs import DESIGNS, Atomicity, Network, guard
from kvlatch.spec.model import Fixed, Instance, Machine, build, named
from kvlatch.spec.properties import BY_NAME, PROPERTIES, Property
from kvlatch.spec.protocol import Rule, phase
from kvlatch.spec.terms import TRUE, State

SMALLEST = Instance(workers=1, chunks=1)
SHORT = {
    "ts": "terminal-sticky", "nr": "no-resurrection", "so": "success-not-overwritten", "sc": "success-complete",
    "np": "no-pin", "st": "settlement", "ng": "no-ghost", "ph": "pages-held", "r1": "released-once",
    "oo": "one-outcome", "lw": "no-lost-wakeup", "rr": "room-reusable",
}  # fmt: skip


def configuration(design: str, atomicity: Atomicity, network: Network = "orderly") -> Configuration:
    return Configuration(DESIGNS[design], atomicity, network)


SOME = (configuration("seed-control", "locked"), configuration("fix-a", "split"), configuration("latch", "cas"))


def naive(instance: Instance, chosen: Configuration) -> tuple[int, dict[str, int]]:
    """How many states there are, and at which depth each property first breaks: breadth first, one state at a time."""
    where = chosen.design, chosen.atomicity, chosen.network
    machine = Machine.of(build(instance), *where)
    bad = {prop: Fixed(*where)(machine.model.claim(prop.bad)) for prop in PROPERTIES}
    depths: dict[str, int] = {}
    level: list[State] = [machine.initial()]
    seen = {tuple(machine.initial().values())}
    depth = 0
    while level:
        following: list[State] = []
        for state in level:
            enabled = machine.enabled(state)
            stuck = not any(action.fair for action in enabled)
            for prop, formula in bad.items():
                if machine.holds(formula, state) and (stuck or prop.kind == "safety"):
                    depths.setdefault(prop.name, depth)
            for action in enabled:
                after = machine.step(state, action)
                key = tuple(after.values())
                if key not in seen:
                    seen.add(key)
                    following.append(after)
        level = following
        depth += 1
    return len(seen), depths


def depths(search: Search, index: int = 0) -> dict[str, int]:
    """What a search has found about one configuration."""
    return {prop: violation.depth for (of, prop), violation in search.violations.items() if of == index}


def pinned(text: str) -> dict[str, int]:
    """``"ts 11 nr 10"`` as depths by property."""
    words = text.split()
    return {SHORT[name]: int(depth) for name, depth in zip(words[::2], words[1::2], strict=True)}


@pytest.mark.parametrize("index", range(len(SOME)), ids=[chosen.design.name for chosen in SOME])
def test_the_naive_search_finds_the_same(index: int) -> None:
    """One state at a time, with the concrete semantics, gives as many states and the same verdicts and lengths."""
    found = explore(build(SMALLEST), SOME, PROPERTIES)
    assert (found.states[index], depths(found, index)) == naive(SMALLEST, SOME[index])


@pytest.mark.parametrize(
    ("instance", "chosen", "states", "broken"),
    [
        (SMALLEST, SOME[0], 800, "ts 11 nr 10 so 14 ng 7 ph 15 oo 14"),
        (SMALLEST, SOME[1], 2234, "ts 15 nr 14 so 19 ng 10 ph 19 oo 19"),
        (SMALLEST, SOME[2], 1261, ""),
        (Instance(workers=1, chunks=2), SOME[0], 2029, "ts 12 nr 11 so 21 np 15 st 15 ng 7 ph 16 oo 19"),
        (Instance(workers=1, chunks=2), SOME[1], 5173, "ts 16 nr 15 so 27 np 19 st 19 ng 10 ph 20 oo 24"),
        (Instance(workers=1, chunks=2), SOME[2], 2413, ""),
        (Instance(workers=2, chunks=1), SOME[0], 1358, "ts 11 nr 10 so 14 ng 7 ph 15 oo 14"),
    ],
)
def test_states_and_lengths_are_the_pinned_ones(
    instance: Instance, chosen: Configuration, states: int, broken: str
) -> None:
    """A small instance has exactly this many states, and its shortest counterexamples exactly these lengths."""
    found = explore(build(instance), [chosen], PROPERTIES)
    assert (found.states.tolist(), depths(found)) == ([states], pinned(broken))
    assert found.complete.all()
    assert not found.cyclic.any()


def test_searching_together_is_searching_alone() -> None:
    """What is found about a configuration does not depend on what is searched beside it."""
    together = explore(build(SMALLEST), SOME, PROPERTIES)
    for index, chosen in enumerate(SOME):
        alone = explore(build(SMALLEST), [chosen], PROPERTIES)
        assert (alone.states[0], depths(alone)) == (together.states[index], depths(together, index))


@pytest.mark.parametrize("index", [0, 1], ids=["seed-control", "fix-a"])
def test_traces_run_on_the_machine(index: int) -> None:
    """Every counterexample starts at the start, is as long as its depth, and its steps and last state are real ones."""
    model = build(Instance(workers=1, chunks=2))
    found = explore(model, SOME, PROPERTIES)
    where = SOME[index].design, SOME[index].atomicity, SOME[index].network
    machine = Machine.of(model, *where)
    for prop, depth in depths(found, index).items():
        (none, state), *steps = found.trace(index, prop)
        assert none is None
        assert state == machine.initial()
        assert len(steps) == depth
        for taken, after in steps:
            assert taken is not None
            action = machine.model.action(taken.name, taken.arguments)
            assert action is not None
            state = machine.step(state, action)
            assert state == after
        assert machine.holds(Fixed(*where)(model.claim(BY_NAME[prop].bad)), state)


def test_a_settlement_trace_ends_where_nothing_fair_is_left() -> None:
    """Its last state is not settled, and no action that must happen can."""
    model = build(Instance(workers=1, chunks=2))
    found = explore(model, SOME[:1], PROPERTIES)
    machine = Machine.of(model, SOME[0].design, SOME[0].atomicity, SOME[0].network)
    _, last = found.trace(0, "settlement")[-1]
    assert named(machine, last)["phase"] == "inflight"
    assert not [str(action) for action in machine.enabled(last) if action.fair]


def test_search_stops_where_it_is_told_to() -> None:
    """With ``until`` a configuration is left once the named properties are broken; others are searched to the end."""
    model = build(SMALLEST)
    whole = explore(model, SOME, PROPERTIES)
    partly = explore(model, SOME, PROPERTIES, until={0: ["no-ghost"], 2: ["no-ghost"]})
    assert partly.complete.tolist() == [False, True, True]
    assert depths(partly, 0) == {"no-ghost": 7}
    assert partly.states[0] < whole.states[0]
    assert partly.states[1:].tolist() == whole.states[1:].tolist()
    assert depths(partly, 1) == depths(whole, 1)
    assert not partly.cyclic.any()


def test_states_are_counted_where_a_formula_holds() -> None:
    """``states_where`` gives every visited state in which a formula holds, and only those."""
    found = explore(build(SMALLEST), SOME[:1], PROPERTIES)
    by_phase = [len(states_where(found, phase == label)) for label in phase.labels]
    assert by_phase[0] == 1
    assert all(by_phase)
    assert sum(by_phase) == found.states[0]


def test_an_instance_that_does_not_fit_is_refused() -> None:
    """A state that needs more than 64 bits is refused before anything is searched, with what it would need."""
    with pytest.raises(TooLarge, match=r"workers=8.* needs \d+ bits, more than 64: take fewer"):
        explore(build(Instance(workers=8, chunks=4, requests=2)), SOME, PROPERTIES)


OPEN = Rule("open", "scheduler", "free", "free", phase == "new", {phase: "boot"})
CLOSE = Rule("close", "scheduler", "free", "free", phase == "boot", {phase: "new"})
LEAVE = Rule("leave", "scheduler", "free", "free", phase == "boot", {phase: "done"})


@pytest.mark.parametrize(
    ("rules", "cyclic", "states"),
    [([OPEN], False, 2), ([OPEN, LEAVE], False, 3), ([OPEN, CLOSE], True, 2), ([OPEN, CLOSE, LEAVE], True, 3)],
    ids=["stops", "leaves", "goes round", "goes round or leaves"],
)
def test_a_cycle_is_reported(rules: list[Rule], cyclic: bool, states: int) -> None:
    """A run that can go round for ever is found even where another way leads out, and where no state is bad."""
    nothing: list[Property] = []
    found = explore(build(SMALLEST, rules), SOME, nothing)
    assert found.cyclic.tolist() == [cyclic] * len(SOME)
    assert found.states.tolist() == [states] * len(SOME)


def test_a_cycle_through_a_longer_way_is_reported() -> None:
    """Three steps that lead back to the start are a cycle as well, and only for the configuration that has them."""
    ring = [("new", "boot"), ("boot", "running"), ("running", "new")]
    rules = [
        Rule(f"from {here}", "scheduler", "free", "free", (phase == here) & conditional, {phase: there})
        for here, there in ring
        for conditional in [guard == "skips" if here == "running" else TRUE]
    ]
    found = explore(build(SMALLEST, rules), SOME, PROPERTIES)
    assert found.cyclic.tolist() == [True, True, False]
