"""The reference manager beside the spec: one reads the other's state as text, both take the same steps.

A manager's columns hold codes; :data:`LABELS` says what each means in the words of the spec, so that the whole state of
a manager is comparable with ``named(machine, state)``, and a state of the spec can be put into a manager.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cache
from types import ModuleType
from typing import Any, Final

import attrs
import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st
from hypothesis.vendor.pretty import RepresentationPrinter

from kvlatch.proofs.columns import Columns
from kvlatch.reference.arrays import tables
from kvlatch.reference.arrays.device import to_host
from kvlatch.reference.arrays.manager import UPDATES, Batch, Manager, Operation, Part
from kvlatch.spec.designs import Design
from kvlatch.spec.model import Action, Instance, Machine, named
from kvlatch.spec.schema import Atomicity, Network
from kvlatch.spec.status import STATUS
from kvlatch.spec.terms import State, Var, assign


def _codes(kind: type) -> dict[int, str]:
    """The labels of a class of codes; a program counter named for an update has a star."""
    updates = {operation.name for operation in UPDATES}
    names = {code: name.lower() for name, code in vars(kind).items() if isinstance(code, int)}
    return {code: f"{name}*" if name in updates else name.replace("_", " ") for code, name in names.items()}


_STATUS: Final = dict(enumerate(STATUS))
_REQUEST: Final = {0: "first", 1: "second"}
_TERMINAL: Final = {tables.F: "Failed", tables.S: "Success", tables.NOTHING: "none", tables.BOTH: "both"}
_TIMES: Final = {0: "none", 1: "once", 2: "twice"}
_NUMBERS: Final = {number: str(number) for number in range(4)}
LABELS: Final[Mapping[str, Mapping[int, str]]] = {
    "status": _STATUS,
    "scheduler_seen": _STATUS,
    "bootstrap_seen": _STATUS,
    "worker_seen": _STATUS,
    "stamp": _REQUEST,
    "gen": _REQUEST,
    "bootstrap_gen": _REQUEST,
    "job_gen": _REQUEST,
    "infos": {**_REQUEST, tables.NOBODY: "none"},
    "first_terminal": _TERMINAL,
    "latch": _TERMINAL,
    "wire": _TERMINAL,
    "metadata": _TIMES,
    "notice": _TIMES,
    "straggler": {0: "none", 1: "due"},
    "stale": {0: "no", 1: "yes"},
    "phase": _codes(tables.Phase),
    "pages": _codes(tables.Pages),
    "chunk": _codes(tables.Chunk),
    "scheduler": _codes(tables.Scheduler),
    "bootstrap": _codes(tables.Bootstrap),
    "worker": _codes(tables.Worker),
    "job": _NUMBERS,
    "job_room": {tables.NONE: "elsewhere", **_NUMBERS},
}


# --------------------------------------------------------------------------------------------------------------------
# One step at a time


def labels(manager: Manager, machine: Machine) -> dict[str, str]:
    """The whole state of a manager, as ``named`` says that of the spec."""
    columns = {name: to_host(getattr(manager.tables, name).array) for name in LABELS}
    found = {}
    for var in machine.model.variables:
        place = (var.place, _chunk(var)) if var.owner == "chunk" else var.place
        found[var.name] = LABELS[var.field.name][int(columns[var.field.name][place])]
    return found


def contents(manager: Manager) -> dict[str, list[Any]]:
    """Every array of a manager."""
    columns = attrs.asdict(manager.tables, recurse=False)
    return {name: to_host(c.array).tolist() for name, c in columns.items() if isinstance(c, tables.Column)}


def _chunk(var: Var) -> int:
    return int(var.name.partition("@")[0].rpartition("_")[2])


def counters(manager: Manager) -> None:
    """What the manager counts as it goes is what a look at all its workers gives."""
    t = {name: to_host(getattr(manager.tables, name).array) for name in ("worker", "job_room", "job_gen")}
    outstanding, serving = np.zeros(manager.sizes["rooms"], int), np.zeros((manager.sizes["rooms"], 2), int)
    for pc, room, gen in zip(t["worker"], t["job_room"], t["job_gen"], strict=True):
        if pc != tables.Worker.IDLE:
            outstanding[room] += int(pc) in tables.Worker.OUTSTANDING
            serving[room, gen] += 1
    assert to_host(manager.tables.outstanding.array).tolist() == outstanding.tolist()
    assert to_host(manager.tables.serving.array).tolist() == serving.tolist()


def code(action: Action) -> tuple[int, int]:
    """An action of the spec as an operation and a part."""
    name, _, part = action.name.partition(".")
    return Operation["break_" if name == "break" else name], Part[part or "whole"]


def batch(xp: ModuleType, actions: Iterable[Action]) -> Batch:
    """Actions of the spec as one batch."""
    rows = [(*code(a), *(a.arguments.get(name, none) for name, none in _ARGUMENTS)) for a in actions]
    operation, part, room, worker, chunk = np.array(rows, np.int64).reshape(-1, 5).T
    return Batch.of(xp, operation, room, part=part, worker=worker, chunk=chunk)


_ARGUMENTS: Final = (("room", 0), ("worker", tables.NONE), ("chunk", tables.NONE))


@attrs.frozen
class Row:
    """A design in one of its atomicities, in a network."""

    design: Design
    atomicity: Atomicity
    network: Network

    def __str__(self) -> str:
        return f"{self.design.name} {self.atomicity} {self.network}"

    def machine(self, instance: Instance) -> Machine:
        """The spec's machine."""
        return _machine(self, instance)

    def manager(self, instance: Instance, xp: ModuleType = np, copies: int = 1, **sizes: int) -> Manager:
        """A manager as large as the instance, or as that many copies of it side by side."""
        rooms, workers = instance.rooms * copies, instance.workers * copies
        sizes = {"rooms": rooms, "workers": workers, "chunks": instance.chunks, "page_bytes": 8, **sizes}
        return Manager(self.design, self.atomicity, self.network, xp=xp, **sizes)


@cache
def _machine(row: Row, instance: Instance) -> Machine:
    return Machine.of(row.design, row.atomicity, row.network, instance)


Situation = tuple[str, str, str]
"""The status of a room, the action that is taken in it, the generation of its request."""


class Diverged(AssertionError):
    """The manager is not where the spec is."""


@attrs.define(eq=False)
class Lockstep:
    """A machine of the spec and a manager that take the same steps; ``seen`` counts the situations they were in."""

    machine: Machine
    manager: Manager
    state: State
    text: dict[str, str]
    seen: set[Situation] = attrs.field(factory=set)

    @classmethod
    def of(cls, row: Row, instance: Instance, xp: ModuleType = np) -> Lockstep:
        """Both at their beginning."""
        machine = row.machine(instance)
        state = machine.initial()
        return cls(machine, row.manager(instance, xp), state, named(machine, state))

    def step(self, action: Action) -> None:
        """Both take a step, and are compared; Diverged says in what they differ."""
        at = f"@{action.arguments['room']}" if "room" in action.arguments else ""
        self.seen.add((self.text[f"status{at}"], action.name, self.text[f"gen{at}"]))
        self.state = self.machine.step(self.state, action)
        self.text = named(self.machine, self.state)
        try:
            self.manager.apply(batch(self.manager.xp, [action]))
        except ValueError as error:
            raise Diverged(f"{action.label}: {error}") from error
        have = labels(self.manager, self.machine)
        wrong = {name: (have[name], label) for name, label in self.text.items() if have[name] != label}
        if wrong:
            raise Diverged(f"{action.label}: {wrong}")
        counters(self.manager)

    def compare_enabled(self) -> None:
        """Both allow the same steps."""
        actions = self.machine.model.actions
        have = to_host(self.manager.enabled(batch(self.manager.xp, actions))).tolist()
        want = self.machine.enabled(self.state)
        wrong = [action.label for action, can in zip(actions, have, strict=True) if can != (action in want)]
        if wrong:
            raise Diverged(f"enabled in one and not in the other: {', '.join(wrong)}")


# --------------------------------------------------------------------------------------------------------------------
# Runs that Hypothesis chooses

LIFE: Final = (
    "create", "hear_metadata", "write_w", "admit", "enqueue", "take", "check_status", "check_infos", "write_t", "post",
    "complete",
)  # fmt: skip
"""The beginning of a request that goes well, as far as its first chunk."""


@attrs.frozen
class Run:
    """Steps of the spec, each enabled when its turn comes."""

    row: Row
    instance: Instance
    actions: tuple[Action, ...]

    def _repr_pretty_(self, printer: RepresentationPrinter, cycle: bool) -> None:
        """How Hypothesis prints it: the names of the steps, not the formulas in them."""
        printer.text(f"{self.row}: {', '.join(action.label for action in self.actions)}")


@st.composite
def runs(draw: st.DrawFn, row: Row, instance: Instance, length: int = 40) -> Run:
    """A run: in each room the beginning of a request's life, and then whichever threads Hypothesis chooses go on.

    A choice is an action. Its thread takes it, or, where the spec does not allow it, the next one of its own that is
    allowed; 0, to which choices shrink, is nobody.
    """
    walk = _Walk(row.machine(instance))
    for room in range(instance.rooms):
        for name in LIFE[: draw(st.integers(0, len(LIFE)))]:
            walk.life(name, room)
    count = len(walk.machine.model.actions)
    for choice in draw(st.lists(st.integers(0, count), min_size=length, max_size=length)):
        if choice:
            walk.go(walk.machine.model.actions[choice - 1])
    return Run(row, instance, tuple(walk.taken))


class _Walk:
    def __init__(self, machine: Machine) -> None:
        self.machine, self.state, self.taken = machine, machine.initial(), list[Action]()
        self.threads: dict[tuple[str, int], list[Action]] = defaultdict(list)
        for action in machine.model.actions:
            self.threads[self._thread(action)].append(action)

    @staticmethod
    def _thread(action: Action) -> tuple[str, int]:
        return action.thread, -1 if "worker" in action.arguments else action.arguments.get("room", 0)

    def life(self, name: str, room: int) -> None:
        """The room's worker, scheduler or bootstrap thread takes this step, all parts of it, if it can."""
        for action in self.machine.model.actions:
            place = action.arguments.get("room", 0), action.arguments.get("worker", room)
            wanted = action.rule.name == name and place == (room, room) and action.part != "retry"
            if wanted and self.machine.holds(action.guard, self.state):
                self._take(action)

    def go(self, action: Action) -> None:
        thread = self.threads[self._thread(action)]
        first = thread.index(action)
        for other in (*thread[first:], *thread[:first]):
            if self.machine.holds(other.guard, self.state):
                self._take(other)
                return

    def _take(self, action: Action) -> None:
        self.state = self.machine.step(self.state, action)
        self.taken.append(action)


# --------------------------------------------------------------------------------------------------------------------
# Many states at once

Numbers = npt.NDArray[np.intp]


def number(action: Action, copies: int, workers: int) -> dict[str, Any]:
    """The arguments of a batch that takes one action in each copy of an instance with one room."""
    operation, part = code(action)
    given: dict[str, Any] = {"operation": operation, "part": part, "room": np.arange(copies)}
    if "worker" in action.arguments:
        given["worker"] = np.arange(copies) * workers + action.arguments["worker"]
    if "chunk" in action.arguments:
        given["chunk"] = action.arguments["chunk"]
    return given


def load(row: Row, instance: Instance, states: Columns) -> Manager:
    """A manager with a copy of the instance, which has one room, in each of these states of the spec."""
    copies = len(states.packed)
    manager = row.manager(instance, copies=copies)
    for var in states.layout.weights:
        _column(manager, var, instance)[:] = _code_of(var)[states.read(var)]
    t = manager.tables
    t.job_room.array[:] = np.repeat(np.arange(copies), instance.workers)
    outstanding = np.isin(t.worker.array, tables.Worker.OUTSTANDING)
    t.outstanding.array[:] = np.bincount(t.job_room.array, outstanding, copies)
    for gen in (0, 1):
        serving = (t.worker.array != tables.Worker.IDLE) & (t.job_gen.array == gen)
        t.serving.array[:, gen] = np.bincount(t.job_room.array, serving, copies)
    return manager


def differs(manager: Manager, instance: Instance, states: Columns, action: Action | None = None) -> str | None:
    """The first variable, of the first copy, that is not as in these states, after an action if one is given."""
    updates = dict(action.updates) if action else {}
    for var in states.layout.weights:
        after = assign(var, updates[var], states) if var in updates else states.read(var)
        have, want = _column(manager, var, instance), _code_of(var)[after]
        wrong = np.flatnonzero(have != want)
        if len(wrong):
            names, copy = LABELS[var.field.name], wrong[0]
            return f"copy {copy}: {var.name} is {names[int(have[copy])]!r}, not {names[int(want[copy])]!r}"
    return None


def _column(manager: Manager, var: Var, instance: Instance) -> Any:
    array = getattr(manager.tables, var.field.name).array
    if var.owner == "worker":
        return array[var.place :: instance.workers]
    return array[:, _chunk(var)] if var.owner == "chunk" else array


def _code_of(var: Var) -> Numbers:
    """The manager's code of each label of a variable."""
    codes = {label: code for code, label in LABELS[var.field.name].items()}
    return np.array([codes.get(label, 255) for label in var.labels], np.intp)
