"""The reference manager does what the spec says: in every reachable state, in runs over several rooms, in every trace.

The manager takes arrays of rooms, so it can be put into all reachable states of an instance at once, a room each, and
asked for every step from every one of them. That is the whole comparison, for one room at a time; runs that Hypothesis
chooses add what rooms and workers could do to each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st

from kvlatch.proofs.columns import Columns
from kvlatch.proofs.search import Search, explore
from kvlatch.reference.arrays import steps as manager_steps
from kvlatch.reference.arrays.core import At, Core
from kvlatch.reference.arrays.device import Array, NoDevice, module
from kvlatch.reference.arrays.manager import Batch, NotEnabled
from kvlatch.reference.arrays.tables import F, S, W
from kvlatch.spec import traces
from kvlatch.spec.designs import DESIGNS
from kvlatch.spec.model import Action, Instance
from kvlatch.spec.protocol import gen, status
from kvlatch.spec.schema import NETWORKS, Network
from kvlatch.spec.terms import evaluate
from tests.reference.arrays import cupy_facade
from tests.reference.arrays.lockstep import (
    Lockstep,
    Numbers,
    Row,
    Run,
    Situation,
    batch,
    contents,
    differs,
    labels,
    load,
    number,
    runs,
)

PINNED = sorted((Path(__file__).parents[3] / "proofs" / "traces").glob("*.itf.json"))
TRACES = [path for path in PINNED if isinstance(traces.read(path).instance, Instance)]
"""Those of the room, which the array manager is a manager of."""

REUSED, TWO_CHUNKS, TWO_WORKERS, SMALL = Instance(1, 1, 2), Instance(1, 2, 1), Instance(2, 2, 1), Instance(1, 1, 1)
TWO_ROOMS = Instance(workers=2, chunks=2, requests=2, rooms=2)

FEWER = settings(max_examples=settings().max_examples // 4, suppress_health_check=[HealthCheck.too_slow])
"""A run takes some 20 ms."""
FIND = settings(max_examples=300, phases=[Phase.generate, Phase.shrink])


def rows(network: Network, *names: str) -> list[Row]:
    """Designs, by default all, in each atomicity that they claim."""
    designs = [DESIGNS[name] for name in names or DESIGNS]
    return [Row(design, level, network) for design in designs for level in design.atomicities]


NO_FIX = [name for name in DESIGNS if not name.startswith("fix")]
# The fixes are the control with another merge or guard, which the first world sees.
WORLDS = [
    *((row, REUSED) for row in rows("late")),
    *((row, TWO_CHUNKS) for row in rows("disorderly", *NO_FIX)),
    *((row, TWO_WORKERS) for row in rows("orderly", "latch", "sglang-0.5.23")),
    *((row, SMALL) for network in NETWORKS for row in rows(network, "seed-control", "latch")),
]


# --------------------------------------------------------------------------------------------------------------------
# Every step from every state


@attrs.frozen(eq=False)
class Explored:
    """Every reachable state of an instance, and for each action the states that it can happen in."""

    row: Row
    instance: Instance
    search: Search
    columns: Columns
    enabled: dict[Action, Numbers]

    def goals(self) -> Iterator[Goal]:
        """Each situation that is reached, with a nearest state in which it is one."""
        at = {var.field.name: self.columns.read(var) for var in self.search.layout.machine.model.variables}
        ends = np.cumsum([len(level.packed) for level in self.search.levels])
        for action, states in self.enabled.items():
            pairs, first = np.unique(at["status"][states].astype(int) * 2 + at["gen"][states], return_index=True)
            for pair, index in zip(pairs.tolist(), states[first].tolist(), strict=True):
                situation = status.labels[pair // 2], action.name, gen.labels[pair % 2]
                depth = int(np.searchsorted(ends, index, side="right"))
                yield Goal(situation, self, action, depth, index - int(ends[depth - 1]) if depth else index)


@attrs.frozen(eq=False)
class Goal:
    """An action, and a state in which it can happen: a row of the search's level of that depth."""

    situation: Situation
    found: Explored
    action: Action
    depth: int
    row: int

    def path(self) -> list[Action]:
        """A shortest run that takes the action in that state."""
        there = attrs.evolve(self.found.search, violations={"there": (self.depth, self.row)})
        return [*(action for action, _ in there.trace("there") if action is not None), self.action]


@cache
def explored(row: Row, instance: Instance) -> Explored:
    """All of it, breadth first, so that the first state of a kind is one of the nearest."""
    search = explore(row.machine(instance), [])
    columns = Columns(search.layout, np.concatenate([level.packed for level in search.levels]))
    actions = search.layout.machine.model.actions
    enabled = {action: np.flatnonzero(evaluate(action.guard, columns)) for action in actions}
    return Explored(row, instance, search, columns, enabled)


@pytest.mark.parametrize(("row", "instance"), WORLDS, ids=str)
def test_every_step_from_every_state(row: Row, instance: Instance) -> None:
    """In every reachable state the manager allows what the spec allows, and every step leads where the spec says."""
    found = explored(row, instance)
    everywhere, copies = load(row, instance, found.columns), len(found.columns.packed)
    for action, states in found.enabled.items():
        allowed = everywhere.enabled(Batch.of(np, **number(action, copies, instance.workers)))
        assert np.array_equal(np.flatnonzero(allowed), states), action.label
        if len(states):
            before = found.columns.pick(states)
            manager = load(row, instance, before)
            manager.apply(Batch.of(np, **number(action, len(states), instance.workers)))
            assert differs(manager, instance, before, action) is None, action.label


def test_a_difference_in_one_state_is_seen() -> None:
    """The comparison of all states fails for one column of one room that is not as the spec says."""
    row = rows("late", "latch")[0]
    states = explored(row, REUSED).columns.pick(np.arange(100))
    manager = load(row, REUSED, states)
    assert differs(manager, REUSED, states) is None
    manager.tables.latch.array[77] = F if manager.tables.latch.array[77] != F else S
    said = differs(manager, REUSED, states)
    assert said is not None
    assert said.startswith("copy 77: latch is ")


# --------------------------------------------------------------------------------------------------------------------
# Runs over several rooms


def test_every_situation_is_run(record_property: Callable[[str, object], None]) -> None:
    """Runs of the spec, two rooms at a time, take every action in every status and generation that it can have."""
    nearest: dict[Situation, Goal] = {}
    for row, instance in WORLDS:
        for goal in explored(row, instance).goals():
            if goal.situation not in nearest or goal.depth < nearest[goal.situation].depth:
                nearest[goal.situation] = goal
    seen = set[Situation]()
    for row, instance in WORLDS:
        here = [goal for goal in nearest.values() if goal.found is explored(row, instance)]
        here.sort(key=lambda goal: (-goal.depth, goal.situation))
        while here := [goal for goal in here if goal.situation not in seen]:
            lockstep = Lockstep.of(row, attrs.evolve(instance, rooms=2, workers=2 * instance.workers))
            for action in _interleaved(lockstep, [goal.path() for goal in here[:2]]):
                lockstep.step(action)
            seen |= lockstep.seen
    record_property("situations", f"{len(seen)} of {len(nearest)}")
    assert seen == set(nearest)


def _interleaved(lockstep: Lockstep, paths: list[list[Action]]) -> Iterator[Action]:
    """The steps of two runs in turn, each in a room of its own with workers of its own."""
    workers = lockstep.machine.model.instance.count("worker") // len(paths)
    for turn in range(max(map(len, paths))):
        for room, path in enumerate(paths):
            if turn < len(path):
                arguments = {**path[turn].arguments, "room": room}
                if "worker" in arguments:
                    arguments["worker"] += room * workers
                action = lockstep.machine.model.action(path[turn].name, arguments)
                assert action is not None
                yield action


@pytest.fixture(scope="module", params=["numpy", "facade", "gpu"])
def xp(request: pytest.FixtureRequest) -> ModuleType:
    """Every array module that the manager runs on here."""
    if request.param != "gpu":
        return np if request.param == "numpy" else cupy_facade.xp
    try:
        return module("gpu")
    except NoDevice as error:
        pytest.skip(str(error))


@FEWER
@given(data=st.data())
def test_a_run_over_two_rooms(xp: ModuleType, data: st.DataObject) -> None:
    """Two rooms, two workers, threads in any order: the whole state is the spec's after every step."""
    row = data.draw(st.sampled_from([*rows("late"), *rows("disorderly", "latch")]))
    run = data.draw(runs(row, TWO_ROOMS))
    lockstep = Lockstep.of(row, TWO_ROOMS, xp)
    for action in run.actions:
        lockstep.step(action)
    lockstep.compare_enabled()


@FEWER
@given(data=st.data())
def test_a_batch_is_its_operations_one_after_the_other(data: st.DataObject) -> None:
    """A run as a few batches leaves every array as it is after a batch for each operation, pages and bytes included."""
    row = data.draw(st.sampled_from(rows("late")))
    run = data.draw(runs(row, TWO_ROOMS))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(run.actions)), max_size=2)))
    one_by_one, together = row.manager(TWO_ROOMS), row.manager(TWO_ROOMS)
    for action in run.actions:
        one_by_one.apply(batch(np, [action]))
    for start, end in zip([0, *cuts], [*cuts, None], strict=True):
        together.apply(batch(np, run.actions[start:end]))
    assert contents(one_by_one) == contents(together)


@FEWER
@given(data=st.data())
def test_a_batch_is_done_wholly_or_not_at_all(data: st.DataObject) -> None:
    """An operation that cannot happen when its turn comes takes back all that came before it in its batch."""
    row = data.draw(st.sampled_from(rows("late")))
    run = data.draw(runs(row, TWO_ROOMS))
    done = data.draw(st.integers(0, len(run.actions)))
    manager, machine = row.manager(TWO_ROOMS), row.machine(TWO_ROOMS)
    state = machine.initial()
    for action in run.actions:
        state = machine.step(state, action)
    allowed = machine.enabled(state)
    impossible = data.draw(st.sampled_from([a for a in machine.model.actions if a not in allowed]))
    manager.apply(batch(np, run.actions[:done]))
    before = contents(manager)
    with pytest.raises(NotEnabled, match=rf"^operation {len(run.actions) - done} of the batch, "):
        manager.apply(batch(np, [*run.actions[done:], impossible]))
    assert contents(manager) == before
    manager.apply(batch(np, run.actions[done:]))


# --------------------------------------------------------------------------------------------------------------------
# Every counterexample


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.name.removesuffix(traces.SUFFIX))
def test_every_counterexample_replays(path: Path) -> None:
    """The manager takes the steps of a counterexample through the states that the file records, to a bad one."""
    trace = traces.read(path)
    run = traces.verify(trace)
    [network] = [network for network in NETWORKS if network == trace.network]
    [row] = [row for row in rows(network, trace.design) if row.atomicity == trace.atomicity]
    manager, machine = row.manager(Instance(**attrs.asdict(trace.instance))), run.meaning.machine
    assert labels(manager, machine) == trace.steps[0].state
    for action, step in zip(run.actions, trace.steps[1:], strict=True):
        manager.apply(batch(np, [action]))
        assert labels(manager, machine) == step.state, action.label
    end = {var: var.labels.index(labels(manager, machine)[var.name]) for var in machine.model.variables}
    assert run.meaning.broken(end) == 0


def test_all_counterexamples_are_there() -> None:
    """The traces that the proofs pin are found."""
    assert len(TRACES) >= 140


# --------------------------------------------------------------------------------------------------------------------
# Planted bugs


def _one_cell_off(patch: pytest.MonkeyPatch) -> None:
    """The merge lets WaitingForInput in over Failed."""
    of = Core.of

    def off(*args: Any) -> Core:
        core = of(*args)
        core.merge[F, W] = W
        return core

    patch.setattr(Core, "of", off)


def _no_stamp(patch: pytest.MonkeyPatch) -> None:
    """A store forgets for which request it was."""
    store = Core._store

    def forgetful(self: Core, room: Array, read: Array, incoming: int, gen: Array) -> Array:
        stamp = self.tables.stamp[room]
        stands = store(self, room, read, incoming, gen)
        self.tables.stamp[room] = stamp
        return stands

    patch.setattr(Core, "_store", forgetful)


def _released_twice(patch: pytest.MonkeyPatch) -> None:
    """Pages are released, and released again."""
    release = Core.release

    def twice(self: Core, at: At) -> None:
        release(self, at)
        release(self, at)

    patch.setattr(Core, "release", twice)


def _wrong_room(patch: pytest.MonkeyPatch) -> None:
    """Transfer infos are popped in the next room."""
    pop = manager_steps.pop_infos

    def next_room(m: Core, at: At, gen: Array) -> None:
        pop(m, attrs.evolve(at, room=(at.room + 1) % len(m.tables.infos.array)), gen)

    patch.setattr(manager_steps, "pop_infos", next_room)


def _never_decremented(patch: pytest.MonkeyPatch) -> None:
    """The count of outstanding chunks goes up and not down."""
    move = Core.move

    def upwards(self: Core, at: At, to: Array | int) -> None:
        outstanding = self.tables.outstanding[at.room]
        move(self, at, to)
        self.tables.outstanding[at.room] = np.maximum(outstanding, self.tables.outstanding[at.room])

    patch.setattr(Core, "move", upwards)


@pytest.mark.parametrize(
    ("plant", "row", "instance", "steps"),
    [
        (_one_cell_off, rows("late", "latch")[0], REUSED, 4),
        (_no_stamp, rows("late", "latch")[0], REUSED, 7),
        (_released_twice, rows("late", "latch")[0], REUSED, 10),
        (_wrong_room, rows("late", "seed-control")[0], attrs.evolve(REUSED, rooms=2), 6),
        (_never_decremented, rows("late", "latch")[0], REUSED, 11),
    ],
)
def test_a_planted_bug_is_found(
    plant: Callable[[pytest.MonkeyPatch], None],
    row: Row,
    instance: Instance,
    steps: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Hypothesis finds a manager with a bug out, and shrinks the run to the few steps that it takes to see it."""
    plant(monkeypatch)
    shortest = find(runs(row, instance, length=16), diverges, settings=FIND)
    assert len(shortest.actions) <= steps + 2


def diverges(run: Run) -> bool:
    """Manager and spec differ somewhere in a run."""
    lockstep = Lockstep.of(run.row, run.instance)
    try:
        for action in run.actions:
            lockstep.step(action)
    except AssertionError:
        return True
    return False
