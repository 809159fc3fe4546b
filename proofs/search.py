"""Explicit search: breadth first through every reachable state of every configuration at once.

The frontier is a block of packed states, a guard is a mask over it, a step is an addition to the packed numbers. A
property is broken at the depth at which a bad state first appears, so counterexamples are shortest. Only the levels
are kept, no parents: a counterexample is found again backwards, level by level.

Settlement is liveness. A weakly fair run that does not settle ends in a state where no fair action is enabled, or goes
round a cycle for ever. The first is a bad state like any other. The second is excluded by peeling the graph: a state
whose successors have all been peeled is peeled; a finite graph has a cycle exactly if something is left.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import attrs
import numpy as np
import numpy.typing as npt

from kvlatch.proofs.columns import Columns, Configuration, Layout, Mask, Packed
from kvlatch.spec.model import Action, Model
from kvlatch.spec.properties import Property
from kvlatch.spec.terms import State, Term, assign, evaluate

_BLOCK = 1 << 16
"""States handled at a time: so many that NumPy's overhead vanishes, so few that the columns stay in the cache."""


@attrs.frozen
class Violation:
    """A bad state, and how many steps lead to it at least."""

    depth: int
    packed: int


@attrs.frozen(eq=False)
class Search:
    """What a search has seen. ``violations`` by configuration index and property name."""

    layout: Layout
    levels: list[Packed]
    violations: dict[tuple[int, str], Violation]
    states: npt.NDArray[np.intp]
    cyclic: Mask
    complete: Mask

    def trace(self, configuration: int, prop: str) -> list[tuple[Action | None, State]]:
        """The shortest counterexample: the initial state, then each action with the state after it."""
        violation = self.violations[configuration, prop]
        target = np.uint64(violation.packed)
        steps: list[tuple[Action | None, State]] = []
        for depth in range(violation.depth - 1, -1, -1):
            level = self.levels[depth]
            before = level[self.layout.configuration(level) == configuration]
            action, source = _predecessor(self.layout, before, target)
            steps.append((action, _unpack(self.layout, target)))
            target = source
        steps.append((None, _unpack(self.layout, target)))
        return steps[::-1]


def explore(
    model: Model,
    configurations: Sequence[Configuration],
    properties: Sequence[Property],
    until: Mapping[int, Iterable[str]] | None = None,
) -> Search:
    """Search every configuration, to the end or ``until`` the named properties of a configuration are all broken."""
    layout = Layout.of(model, configurations)
    bad = [(prop, model.claim(prop.bad)) for prop in properties]
    wanted = {index: set(names) for index, names in (until or {}).items()}
    frontier = layout.initial()
    visited = frontier.copy()
    levels = [frontier]
    edges: list[tuple[Packed, Packed]] = []
    violations: dict[tuple[int, str], Violation] = {}
    complete = np.ones(len(configurations), np.bool_)
    while True:
        broken, successors = [], []
        for start in range(0, len(frontier), _BLOCK):
            columns = Columns(layout, frontier[start : start + _BLOCK])
            steps, stuck = _successors(model, columns)
            successors += [packed for _, packed in steps]
            edges += [(columns.packed[rows], packed) for rows, packed in steps]
            for prop, formula in bad:
                mask = evaluate(formula, columns)
                broken.append((prop.name, columns, mask & stuck if prop.kind == "liveness" else mask))
        _record(violations, broken, len(levels) - 1)
        if wanted:
            done = [
                index
                for index, names in wanted.items()
                if all((index, name) in violations for name in names) and complete[index]
            ]
            complete[done] = False
        if not successors:
            break
        new = np.unique(np.concatenate(successors))
        new = new[~_member(new, visited)]
        if not complete.all():
            new = new[complete[layout.configuration(new)]]
        if not len(new):
            break
        visited = np.sort(np.concatenate([visited, new]), kind="stable")
        levels.append(new)
        frontier = new
    states = np.bincount(layout.configuration(visited), minlength=len(configurations))
    return Search(layout, levels, violations, states, _cyclic(layout, visited, edges, complete), complete)


def _successors(model: Model, columns: Columns) -> tuple[list[tuple[npt.NDArray[np.intp], Packed]], Mask]:
    """For each action the rows that take it and the packed states after it; and the rows without a fair action."""
    steps = []
    stuck = np.ones(len(columns.packed), np.bool_)
    for action in model.actions:
        rows = np.flatnonzero(evaluate(action.guard, columns))
        if len(rows):
            steps.append((rows, _after(action, columns.pick(rows))))
            if action.fair:
                stuck[rows] = False
    return steps, stuck


def _after(action: Action, columns: Columns) -> Packed:
    """The packed states after an action that all rows take: each changed digit moves the number by its weight."""
    packed = columns.packed.copy()
    for var, term in action.updates:
        weight = np.uint64(columns.layout.weights[var])
        packed += assign(var, term, columns).astype(np.uint64) * weight
        packed -= columns.read(var).astype(np.uint64) * weight
    return packed


def _record(violations: dict[tuple[int, str], Violation], broken: list[tuple[str, Columns, Mask]], depth: int) -> None:
    for name, columns, mask in broken:
        for row in np.flatnonzero(mask):
            key = int(columns.configuration[row]), name
            known = violations.get(key)
            if known is None or (known.depth == depth and columns.packed[row] < known.packed):
                violations[key] = Violation(depth, int(columns.packed[row]))


def _member(some: Packed, of: Packed) -> Mask:
    """Which numbers are in a sorted array."""
    position = np.searchsorted(of, some)
    position[position == len(of)] = 0
    return np.asarray(of[position] == some)


def _cyclic(layout: Layout, visited: Packed, edges: list[tuple[Packed, Packed]], complete: Mask) -> Mask:
    """Which of the completely searched configurations have a cycle in their state graph."""
    source = np.searchsorted(visited, np.concatenate([before for before, _ in edges]))
    target_packed = np.concatenate([after for _, after in edges])
    inside = complete[layout.configuration(target_packed)]
    source, target = source[inside], np.searchsorted(visited, target_packed[inside])
    order = np.argsort(target, kind="stable")
    source = source[order]
    starts = np.searchsorted(target[order], np.arange(len(visited) + 1))
    open_successors = np.bincount(source, minlength=len(visited))
    peeled = open_successors == 0
    layer = np.flatnonzero(peeled)
    while len(layer):
        counts = starts[layer + 1] - starts[layer]
        incoming = np.repeat(starts[layer + 1] - np.cumsum(counts), counts) + np.arange(counts.sum())
        open_successors -= np.bincount(source[incoming], minlength=len(visited))
        ready = (open_successors == 0) & ~peeled
        peeled |= ready
        layer = np.flatnonzero(ready)
    cyclic = np.zeros(len(complete), np.bool_)
    cyclic[layout.configuration(visited[~peeled])] = True
    return cyclic & complete


def _predecessor(layout: Layout, before: Packed, target: np.uint64) -> tuple[Action, np.uint64]:
    """The first action, in the order of the rows, that leads from one of the states to the target."""
    for action in layout.model.actions:
        columns = Columns(layout, before)
        rows = np.flatnonzero(evaluate(action.guard, columns))
        if len(rows):
            hits = rows[_after(action, columns.pick(rows)) == target]
            if len(hits):
                return action, before[hits[0]]
    raise AssertionError("a state of one level has no predecessor in the level before")


def _unpack(layout: Layout, packed: np.uint64) -> State:
    one = np.array([packed], np.uint64)
    return {var: int(layout.column(one, var)[0]) for var in layout.model.variables}


def states_where(search: Search, formula: Term) -> Packed:
    """The visited states in which a formula holds."""
    found = []
    for level in search.levels:
        for start in range(0, len(level), _BLOCK):
            columns = Columns(search.layout, level[start : start + _BLOCK])
            found.append(columns.packed[evaluate(search.layout.model.claim(formula), columns)])
    return np.concatenate(found)
