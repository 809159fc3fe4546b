"""What a solver is asked: assertions that together must be unsatisfiable."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import z3


@attrs.frozen(eq=False)
class Obligation:
    """Assertions that, together with the lemmas (unless ``bare``), must be unsatisfiable."""

    name: str
    assertions: tuple[z3.BoolRef, ...]
    bare: bool = False


def conjunction(formulas: Sequence[z3.BoolRef]) -> z3.BoolRef:
    """All of the formulas; never the empty or the unary ``and``, which Z3 prints as other solvers do not read it."""
    if not formulas:
        return z3.BoolVal(True)
    return formulas[0] if len(formulas) == 1 else z3.And(*formulas)
