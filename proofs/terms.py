"""Formulas as Z3 terms: a variable is a bit-vector just wide enough for its labels."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import z3

from kvlatch.spec.terms import Ordered, Var


def width(var: Var) -> int:
    """Bits for the labels of a variable."""
    return max(1, (len(var.labels) - 1).bit_length())


@attrs.frozen
class Symbolic:
    """The algebra of Z3 terms over one valuation of the variables."""

    values: Mapping[Var, z3.BitVecRef]
    merge: tuple[tuple[int | None, ...], ...]

    @classmethod
    def fresh(cls, variables: tuple[Var, ...], merge: tuple[tuple[int | None, ...], ...], suffix: str = "") -> Symbolic:
        """A valuation by new constants, ``status`` and so on."""
        return cls({var: z3.BitVec(var.name + suffix, width(var)) for var in variables}, merge)

    def domain(self) -> list[z3.BoolRef]:
        """Each variable has one of its labels."""
        return [
            z3.ULE(value, len(var.labels) - 1)
            for var, value in self.values.items()
            if len(var.labels) < 2 ** width(var)
        ]

    def is_(self, var: Var, index: int) -> z3.BoolRef:
        return self.values[var] == index

    def same(self, left: Var, right: Var) -> z3.BoolRef:
        return self.values[left] == self.values[right]

    def not_(self, part: z3.BoolRef) -> z3.BoolRef:
        return z3.Not(part)

    def all_(self, parts: list[z3.BoolRef]) -> z3.BoolRef:
        return z3.And(parts) if len(parts) > 1 else parts[0] if parts else z3.BoolVal(True)

    def any_(self, parts: list[z3.BoolRef]) -> z3.BoolRef:
        return z3.Or(parts) if len(parts) > 1 else parts[0] if parts else z3.BoolVal(False)

    def where(self, when: z3.BoolRef, then: z3.BitVecRef, other: z3.BitVecRef) -> z3.BitVecRef:
        return z3.If(when, then, other)

    def label(self, target: Var, index: int) -> z3.BitVecRef:
        return z3.BitVecVal(index, width(target))

    def read(self, var: Var) -> z3.BitVecRef:
        return self.values[var]

    def merged(self, current: Var, incoming: int) -> z3.BitVecRef:
        entry = self.values[current]
        result = entry
        for index, row in enumerate(self.merge):
            stored = row[incoming]
            if stored is not None and stored != index:
                result = z3.If(entry == index, z3.BitVecVal(stored, width(current)), result)
        return result

    def stores(self, current: Var, incoming: int, stored: int | None) -> z3.BoolRef:
        rows = [index for index, row in enumerate(self.merge) if row[incoming] == stored]
        return self.any_([self.values[current] == index for index in rows])

    def every(self, part: z3.BoolRef, sort: str) -> z3.BoolRef:
        raise TypeError(f"only parametric.py has any number of {sort}s")

    def ordered(self, order: Ordered) -> z3.BoolRef:
        raise TypeError(f"only parametric.py has any number of {order.sort}s")
