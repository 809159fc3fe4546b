"""States as columns: the algebra of explicit search, where a value is an array with one entry per state.

A state is packed into one unsigned 64-bit number, each variable a digit in its own radix. Designs are columns too:
the first digit of a state says which *configuration* (design, atomicity, network) it belongs to, and a switch is
looked up in a table by that digit. One search therefore explores all designs at once, and its cost per step is that
of a few NumPy calls, however many designs there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import attrs
import numpy as np
import numpy.typing as npt

from kvlatch.spec.designs import Atomicity, Design, Network
from kvlatch.spec.merges import table
from kvlatch.spec.model import Model, merge_rows
from kvlatch.spec.terms import Var

Column = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]
Packed = npt.NDArray[np.uint64]

_NOTHING = 255
"""In a merge table: the merge returns without a store."""


@attrs.frozen
class Configuration:
    """One design in one atomicity and one network."""

    design: Design
    atomicity: Atomicity
    network: Network


class TooLarge(ValueError):
    """The instance does not fit into 64 bits a state."""


@attrs.frozen(eq=False)
class Layout:
    """Where each variable of a model lies in a packed state, for a list of configurations."""

    model: Model
    configurations: tuple[Configuration, ...]
    weights: dict[Var, int]
    switches: dict[Var, Column]
    merges: npt.NDArray[np.uint8]

    @classmethod
    def of(cls, model: Model, configurations: Sequence[Configuration]) -> Layout:
        """A layout; TooLarge if a state needs more than 64 bits."""
        weight, weights = len(configurations), {}
        for var in model.variables:
            weights[var] = weight
            weight *= len(var.labels)
        if weight > 2**64:
            raise TooLarge(f"a state of {model.instance} needs {weight.bit_length()} bits, more than 64: take fewer")
        positions = [c.design.positions(c.atomicity, c.network) for c in configurations]
        switches = {
            var: np.array([position[field] for position in positions], np.uint8)
            for field, var in model.switches.items()
        }
        rows = [merge_rows(table(c.design.merge)) for c in configurations]
        merges = np.array([[[_NOTHING if x is None else x for x in row] for row in m] for m in rows], np.uint8)
        return cls(model, tuple(configurations), weights, switches, merges)

    def initial(self) -> Packed:
        """The initial state of every configuration."""
        return np.arange(len(self.configurations), dtype=np.uint64)

    def configuration(self, packed: Packed) -> npt.NDArray[np.intp]:
        """Which configuration each state belongs to."""
        return (packed % np.uint64(len(self.configurations))).astype(np.intp)

    def column(self, packed: Packed, var: Var) -> Column:
        """One variable of each state."""
        digit = packed // np.uint64(self.weights[var])
        return (digit % np.uint64(len(var.labels))).astype(np.uint8)


class Columns:
    """The algebra of one block of states. Columns are unpacked when they are first asked for."""

    def __init__(self, layout: Layout, packed: Packed) -> None:
        self.layout = layout
        self.packed = packed
        self.configuration = layout.configuration(packed)
        self._columns: dict[Var, Column] = {}

    def pick(self, rows: npt.NDArray[np.intp]) -> Columns:
        """The same algebra for some of the states."""
        picked = Columns.__new__(Columns)
        picked.layout = self.layout
        picked.packed = self.packed[rows]
        picked.configuration = self.configuration[rows]
        picked._columns = _Picked(self, rows)
        return picked

    def read(self, var: Var) -> Column:
        column = self._columns.get(var)
        if column is None:
            if var in self.layout.switches:
                column = self.layout.switches[var][self.configuration]
            else:
                column = self.layout.column(self.packed, var)
            self._columns[var] = column
        return column

    def is_(self, var: Var, index: int) -> Mask:
        return self.read(var) == index

    def same(self, left: Var, right: Var) -> Mask:
        return self.read(left) == self.read(right)

    def not_(self, part: Mask) -> Mask:
        return ~part

    def all_(self, parts: list[Mask]) -> Mask:
        return reduce(np.logical_and, parts) if parts else np.ones(len(self.packed), np.bool_)

    def any_(self, parts: list[Mask]) -> Mask:
        return reduce(np.logical_or, parts) if parts else np.zeros(len(self.packed), np.bool_)

    def where(self, when: Mask, then: Column, other: Column) -> Column:
        return np.where(when, then, other)

    def label(self, target: Var, index: int) -> Column:
        return np.full(len(self.packed), index, np.uint8)

    def merged(self, current: Var, incoming: int) -> Column:
        entry = self.read(current)
        stored = self.layout.merges[self.configuration, entry, incoming]
        return np.where(stored == _NOTHING, entry, stored)

    def stores(self, current: Var, incoming: int, stored: int | None) -> Mask:
        wanted = _NOTHING if stored is None else stored
        return self.layout.merges[self.configuration, self.read(current), incoming] == wanted


class _Picked(dict[Var, Column]):
    """Columns of some rows, taken from the block they come from instead of being unpacked again."""

    def __init__(self, block: Columns, rows: npt.NDArray[np.intp]) -> None:
        super().__init__()
        self._block, self._rows = block, rows

    def get(self, var: Var, default: Column | None = None) -> Column:  # type: ignore[override]
        if var not in self:
            self[var] = self._block.read(var)[self._rows]
        return self[var]
