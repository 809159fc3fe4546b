"""States as columns: the algebra of explicit search, where a value is an array with one entry per state.

A state is packed into one unsigned 64-bit number, each variable a digit in its own radix, so that a set of states is a
sorted array and a step is an addition.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import reduce

import attrs
import numpy as np
import numpy.typing as npt

from kvlatch.spec.model import Machine
from kvlatch.spec.terms import Enumerated, State, Var

Column = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]
Packed = npt.NDArray[np.uint64]
Rows = npt.NDArray[np.intp]

BLOCK = 1 << 16
"""States in a block: enough that NumPy's overhead vanishes, few enough that their columns stay in the cache."""

_NOTHING = 255
"""In a merge table: the merge returns without a store. In a table of digits: the label has none."""


class TooLarge(ValueError):
    """The instance does not fit into 64 bits a state."""


@attrs.frozen(eq=False)
class Layout:
    """Where each variable of a machine lies in a packed state: a digit, with a value for each label that it can have.

    ``labels`` has the labels by digit, ``digits`` the digit by label; a variable that never changes takes no room.
    """

    machine: Machine
    weights: dict[Var, int]
    labels: dict[Var, Column]
    digits: dict[Var, Column]
    merge: Column

    @classmethod
    def of(cls, machine: Machine, possible: Mapping[Var, Iterable[int]] | None = None) -> Layout:
        """The layout of a machine, for these labels or for all of them; TooLarge if a state needs more than 64 bits."""
        weight = 1
        weights, labels, digits = {}, {}, {}
        for var in machine.model.variables:
            wanted = range(len(var.labels)) if possible is None else possible[var]
            labels[var] = np.array(sorted(wanted), np.uint8)
            digits[var] = np.full(len(var.labels), _NOTHING, np.uint8)
            digits[var][labels[var]] = np.arange(len(labels[var]))
            weights[var] = weight
            weight *= len(labels[var])
        if weight > 2**64:
            raise TooLarge(f"a state of {machine.model.instance} needs {weight.bit_length()} bits, more than 64")
        merge = np.array([[_NOTHING if cell is None else cell for cell in row] for row in machine.merge], np.uint8)
        return cls(machine, weights, labels, digits, merge)

    def pack(self, state: State) -> np.uint64:
        """One state as a number; AssertionError for a label that its variable cannot have."""
        return np.uint64(
            sum(
                int(self.digit(var, np.array([index], np.uint8))[0]) * self.weights[var] for var, index in state.items()
            )
        )

    def unpack(self, packed: np.uint64) -> State:
        """One number as a state."""
        return {
            var: int(self.labels[var][int(packed) // weight % len(self.labels[var])])
            for var, weight in self.weights.items()
        }

    def column(self, packed: Packed, var: Var) -> Column:
        """One variable of each state."""
        labels = self.labels[var]
        if len(labels) == 1:
            return np.full(len(packed), labels[0], np.uint8)
        digit = (packed // np.uint64(self.weights[var]) % np.uint64(len(labels))).astype(np.uint8)
        return digit if len(labels) == len(var.labels) else labels[digit]

    def digit(self, var: Var, column: Column) -> Packed:
        """The digits of a column of labels; AssertionError if one is a label that the variable cannot have."""
        digit = self.digits[var][column]
        if np.any(digit == _NOTHING):
            raise AssertionError(f"{var.name} has a label that it was taken not to have")
        return digit.astype(np.uint64)


@attrs.frozen(eq=False)
class Columns(Enumerated):
    """The algebra of one block of states. Columns are unpacked when they are first asked for."""

    layout: Layout
    packed: Packed
    columns: dict[Var, Column] = attrs.field(factory=dict)
    source: tuple[Columns, Rows] | None = None

    @classmethod
    def blocks(cls, layout: Layout, packed: Packed) -> Iterator[tuple[int, Columns]]:
        """The states in blocks, each with the row where it begins."""
        for start in range(0, len(packed), BLOCK):
            yield start, cls(layout, packed[start : start + BLOCK])

    def pick(self, rows: Rows) -> Columns:
        """Some of the states; their columns are taken from here instead of being unpacked again."""
        return Columns(self.layout, self.packed[rows], source=(self, rows))

    def read(self, var: Var) -> Column:
        column = self.columns.get(var)
        if column is None:
            if self.source is None:
                column = self.layout.column(self.packed, var)
            else:
                block, rows = self.source
                column = block.read(var)[rows]
            self.columns[var] = column
        return column

    def is_(self, var: Var, index: int) -> Mask:
        mask: Mask = self.read(var) == index
        return mask

    def same(self, left: Var, right: Var) -> Mask:
        mask: Mask = self.read(left) == self.read(right)
        return mask

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
        stored = self.layout.merge[entry, incoming]
        return np.where(stored == _NOTHING, entry, stored)

    def stores(self, current: Var, incoming: int, stored: int | None) -> Mask:
        wanted = _NOTHING if stored is None else stored
        mask: Mask = self.layout.merge[self.read(current), incoming] == wanted
        return mask
