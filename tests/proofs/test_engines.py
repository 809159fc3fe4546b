"""The engines give one meaning to one formula: along random runs, drawn from the enabled actions of the spec."""

from __future__ import annotations

import numpy as np
import pytest
import z3
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlatch.proofs.columns import Columns, Layout
from kvlatch.proofs.induction import Theory, new_solver
from kvlatch.proofs.search import explore
from kvlatch.proofs.terms import width
from kvlatch.spec.designs import DESIGNS, Design
from kvlatch.spec.model import Action, Instance, Machine
from kvlatch.spec.properties import PROPERTIES
from kvlatch.spec.schema import Atomicity, Network
from kvlatch.spec.terms import State, assign, evaluate
from kvlatch.spec.traces import Trace, read, verify, write

Setting = tuple[Design, Atomicity, Network, Instance]
NETWORKS: tuple[Network, ...] = ("orderly", "late", "disorderly")
MACHINES: list[Setting] = [
    (design, atomicity, network, Instance(workers=workers, chunks=2, requests=2))
    for design in DESIGNS.values()
    for atomicity in design.atomicities
    for network in NETWORKS
    for workers in (1, 2)
]

Run = list[tuple[Action | None, State]]


def run(machine: Machine, choices: list[int]) -> Run:
    """A run: each choice picks one of the actions that are enabled, until none is."""
    steps: Run = [(None, machine.initial())]
    for choice in choices:
        enabled = machine.enabled(steps[-1][1])
        if not enabled:
            break
        action = enabled[choice % len(enabled)]
        steps.append((action, machine.step(steps[-1][1], action)))
    return steps


runs = st.tuples(st.sampled_from(MACHINES), st.lists(st.integers(0, 59), min_size=10, max_size=60))


@given(runs)
@settings(max_examples=60)
def test_columns_mean_what_the_concrete_semantics_means(drawn: tuple[Setting, list[int]]) -> None:
    """Guards, effects and properties of packed states are those of the states one by one."""
    setting, choices = drawn
    machine = Machine.of(*setting)
    steps = run(machine, choices)
    states = [state for _, state in steps]
    layout = Layout.of(machine)
    columns = Columns(layout, np.array([layout.pack(state) for state in states], np.uint64))
    assert [layout.unpack(packed) for packed in columns.packed] == states
    for action in machine.model.actions:
        mask = evaluate(action.guard, columns)
        assert mask.tolist() == [machine.holds(action.guard, state) for state in states]
        effects = {var: assign(var, term, columns) for var, term in action.updates}
        for row in np.flatnonzero(mask):
            after = machine.step(states[row], action)
            assert {var: int(column[row]) for var, column in effects.items()} == {var: after[var] for var in effects}
    for prop in PROPERTIES:
        bad = machine.model.claim(prop.bad)
        assert evaluate(bad, columns).tolist() == [machine.holds(bad, state) for state in states]


@given(runs)
@settings(max_examples=10)
def test_terms_mean_what_the_concrete_semantics_means(drawn: tuple[Setting, list[int]]) -> None:
    """With the values of a state put in, Z3's terms simplify to what the state says."""
    setting, choices = drawn
    machine = Machine.of(*setting)
    theory = Theory.of(machine)
    action, state = run(machine, choices)[-1]
    before = run(machine, choices)[-2][1] if action else state
    values = [(term, z3.BitVecVal(before[var], width(var))) for var, term in theory.state.values.items()]
    for step in theory.steps:
        assert step.action is not None
        enabled = z3.simplify(z3.substitute(step.enabled, values))
        assert z3.is_true(enabled) == machine.holds(step.action.guard, before)
        if step.action is action:
            for var, term in step.sets.items():
                assert z3.simplify(z3.substitute(term, values)).as_long() == state[var]


@given(runs)
@settings(max_examples=30)
def test_every_run_survives_its_file(
    tmp_path_factory: pytest.TempPathFactory, drawn: tuple[Setting, list[int]]
) -> None:
    """Written, read and executed again, a run is the same run."""
    setting, choices = drawn
    machine = Machine.of(*setting)
    steps = run(machine, choices)
    trace = Trace.of(*setting, None, steps)
    path = tmp_path_factory.mktemp("run") / "run.itf.json"
    write(trace, path)
    assert read(path) == trace
    assert [action.label for action in verify(read(path)).actions] == [a.label for a, _ in steps if a]


def test_z3_reaches_what_the_search_reaches_and_nothing_else() -> None:
    """By Z3 no step leads out of the states that the search has reached, and each of them has been reached by steps."""
    machine = Machine.of(DESIGNS["latch"], "locked", "orderly", Instance(workers=1, chunks=1))
    search = explore(machine, [])
    theory = Theory.of(machine)
    value = theory.state.values
    states = [search.layout.unpack(packed) for level in search.levels for packed in level.packed]
    reached = z3.Or([z3.And([value[var] == index for var, index in state.items()]) for state in states])
    solver = new_solver(theory.logic)
    solver.add(*theory.domain)
    assert solver.check(*theory.initial, z3.Not(reached)) == z3.unsat
    for step in theory.steps:
        after = theory.after(step, reached)
        assert solver.check(reached, step.enabled, z3.Not(after)) == z3.unsat
    without_one = z3.Or(reached.children()[:-1])
    leads_out = [(without_one, step.enabled, z3.Not(theory.after(step, without_one))) for step in theory.steps]
    assert any(solver.check(*question) == z3.sat for question in leads_out), "the control: a state is missing"
