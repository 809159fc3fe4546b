"""Explicit search: breadth first through every reachable state of a machine.

The frontier is an array of packed states, a guard is a mask over it, a step is an addition to the packed numbers. A
property is broken at the depth at which a bad state first appears, so counterexamples are shortest. Every state keeps
one parent, so a counterexample is the same in every run.

Settlement is liveness. A weakly fair run that does not settle ends in a state where no fair action is enabled, or goes
round a cycle for ever. The first is a bad state like any other. The second is excluded by peeling the graph: a state
whose successors have all been peeled is peeled; a finite graph has a cycle exactly if something is left.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import attrs
import numpy as np
import numpy.typing as npt

from kvlatch.proofs.columns import Columns, Layout, Mask, Packed, Rows
from kvlatch.proofs.reach import possible
from kvlatch.spec.model import Action, Machine
from kvlatch.spec.schema import Property
from kvlatch.spec.terms import State, Term, assign, evaluate


@attrs.frozen(eq=False)
class Level:
    """The states first reached at one depth; for each, a row of the level before and the action taken there."""

    packed: Packed
    parent: npt.NDArray[np.int32]
    action: npt.NDArray[np.int16]


@attrs.frozen(eq=False)
class Search:
    """What a search has seen.

    ``violations`` says, by property, at which depth and in which row of that level it is first broken; ``taken`` which
    actions happen; ``cyclic`` whether the state graph has a cycle, where a liveness property was asked for, is not
    broken by a state without fair actions, and the search was ``complete``.
    """

    layout: Layout
    levels: list[Level]
    violations: dict[str, tuple[int, int]]
    taken: tuple[Action, ...]
    complete: bool
    cyclic: bool

    @property
    def states(self) -> int:
        """How many states were reached."""
        return sum(len(level.packed) for level in self.levels)

    def length(self, prop: str) -> int | None:
        """Steps of a shortest counterexample; None if there is none."""
        return self.violations[prop][0] if prop in self.violations else None

    def trace(self, prop: str) -> list[tuple[Action | None, State]]:
        """A shortest counterexample: the initial state, then each action with the state after it."""
        depth, row = self.violations[prop]
        steps: list[tuple[Action | None, State]] = []
        for level in self.levels[depth::-1]:
            index = int(level.action[row])
            action = self.layout.machine.model.actions[index] if index >= 0 else None
            steps.append((action, self.layout.unpack(level.packed[row])))
            row = int(level.parent[row])
        return steps[::-1]

    def count(self, formula: Term) -> int:
        """In how many of the states reached a formula holds."""
        claim = self.layout.machine.model.claim(formula)
        blocks = (block for level in self.levels for _, block in Columns.blocks(self.layout, level.packed))
        return sum(int(np.count_nonzero(evaluate(claim, block))) for block in blocks)


def explore(machine: Machine, properties: Sequence[Property], until: Collection[str] | None = None) -> Search:
    """Search to the end, or until the properties named in ``until`` are all broken; TooLarge beyond 64 bits."""
    layout = Layout.of(machine, possible(machine))
    bad = [(prop, machine.model.claim(prop.bad)) for prop in properties]
    visited = np.array([layout.pack(machine.initial())], np.uint64)
    levels = [Level(visited, np.zeros(1, np.int32), np.full(1, -1, np.int16))]
    edges: list[tuple[Packed, Packed]] = []
    violations: dict[str, tuple[int, int]] = {}
    taken = np.zeros(len(machine.model.actions), np.bool_)
    complete = True
    while complete and len(frontier := levels[-1].packed):
        steps: list[_Step] = []
        for start, columns in Columns.blocks(layout, frontier):
            block, stuck = _successors(machine, columns, start)
            steps += block
            for prop, formula in bad:
                mask = evaluate(formula, columns)
                rows = np.flatnonzero(mask & stuck if prop.kind == "liveness" else mask)
                if len(rows):
                    violations.setdefault(prop.name, (len(levels) - 1, start + int(rows[0])))
        taken[[step.action for step in steps]] = True
        if any(prop.kind == "liveness" and prop.name not in violations for prop in properties):
            edges += [(frontier[step.rows], step.packed) for step in steps]
        else:
            edges.clear()
        complete = until is None or not violations.keys() >= set(until)
        levels.append(_next_level(steps, visited))
        visited = np.sort(np.concatenate([visited, levels[-1].packed]), kind="stable")
    actions = tuple(action for action, seen in zip(machine.model.actions, taken, strict=True) if seen)
    return Search(layout, levels, violations, actions, complete, complete and _cyclic(visited, edges))


@attrs.frozen(eq=False)
class _Step:
    """One action, the rows of the frontier that take it, and the packed states after it."""

    action: int
    rows: Rows
    packed: Packed


def successors(machine: Machine, columns: Columns) -> Iterator[tuple[Action, Rows, Packed]]:
    """Each action that some of a block's states can take: the action, the rows of those states, the states after it."""
    for action in machine.model.actions:
        rows = np.flatnonzero(evaluate(action.guard, columns))
        if len(rows):
            yield action, rows, _after(action, columns.pick(rows))


def _successors(machine: Machine, columns: Columns, start: int) -> tuple[list[_Step], Mask]:
    """The steps from a block of the frontier that begins at row ``start``; and the rows without a fair action."""
    steps = []
    stuck = np.ones(len(columns.packed), np.bool_)
    number = {action: index for index, action in enumerate(machine.model.actions)}
    for action, rows, packed in successors(machine, columns):
        steps.append(_Step(number[action], rows + start, packed))
        if action.fair:
            stuck[rows] = False
    return steps, stuck


def _after(action: Action, columns: Columns) -> Packed:
    """The packed states after an action that all rows take: each changed digit moves the number by its weight."""
    packed, layout = columns.packed.copy(), columns.layout
    for var, term in action.updates:
        weight = np.uint64(layout.weights[var])
        packed += layout.digit(var, assign(var, term, columns)) * weight
        packed -= layout.digit(var, columns.read(var)) * weight
    return packed


def _next_level(steps: list[_Step], visited: Packed) -> Level:
    """The states after the steps that have not been visited."""
    if not steps:
        return Level(np.empty(0, np.uint64), np.empty(0, np.int32), np.empty(0, np.int16))
    packed, first = np.unique(np.concatenate([step.packed for step in steps]), return_index=True)
    position = np.minimum(np.searchsorted(visited, packed), len(visited) - 1)
    new = visited[position] != packed
    first = first[new]
    parent = np.concatenate([step.rows.astype(np.int32) for step in steps])[first]
    action = np.concatenate([np.full(len(step.rows), step.action, np.int16) for step in steps])[first]
    return Level(packed[new], parent, action)


def _cyclic(visited: Packed, edges: list[tuple[Packed, Packed]]) -> bool:
    """Whether the graph has a cycle."""
    nothing = np.empty(0, np.uint64)
    source = np.searchsorted(visited, np.concatenate([nothing, *(before for before, _ in edges)]))
    target = np.searchsorted(visited, np.concatenate([nothing, *(after for _, after in edges)]))
    order = np.argsort(target, kind="stable")
    source = source[order]
    starts = np.searchsorted(target[order], np.arange(len(visited) + 1))
    unpeeled_successors = np.bincount(source, minlength=len(visited))
    peeled = unpeeled_successors == 0
    layer = np.flatnonzero(peeled)
    while len(layer):
        counts = starts[layer + 1] - starts[layer]
        incoming = np.repeat(starts[layer + 1] - np.cumsum(counts), counts) + np.arange(counts.sum())
        unpeeled_successors -= np.bincount(source[incoming], minlength=len(visited))
        ready = (unpeeled_successors == 0) & ~peeled
        peeled |= ready
        layer = np.flatnonzero(ready)
    return not peeled.all()
