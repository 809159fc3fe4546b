"""Proofs about foreign code: a table that was extracted from a manager takes the place of a merge of the spec.

What is proved is about ``latch`` with that merge, its update one step, for any number of rooms and workers. So it says
what the table is good for when all else is right; what else the foreign manager does, the table does not show.
"""

from __future__ import annotations

import io
from collections.abc import Mapping

import attrs
from rich.console import Console

from kvlatch.proofs import atlas, matrix
from kvlatch.proofs.atlas import Change
from kvlatch.proofs.prove import LOOSE, Cell, decide
from kvlatch.reference.merge_table import as_merge
from kvlatch.spec.designs import DESIGNS
from kvlatch.spec.merges import MERGES, Table, table
from kvlatch.spec.properties import BY_NAME


@attrs.frozen
class JudgedMerge:
    """A foreign merge: which rules of the spec it equals, how far it is from each profile, and what is proved of it."""

    subject: str
    merge: Table
    same_as: tuple[str, ...]
    changes: Mapping[str, tuple[Change, ...]]
    cells: tuple[Cell, ...]

    @property
    def holds(self) -> bool:
        """It obeys every law of one of the two profiles."""
        return any(not changes for changes in self.changes.values())

    @property
    def text(self) -> str:
        """All of it, for a terminal."""
        output = io.StringIO()
        console = Console(file=output, width=120, color_system=None)
        console.print(atlas.grid(atlas.result(as_merge(self.merge)), self.subject))
        same = ", ".join(self.same_as) or "no rule of the spec"
        console.print(f"the same table as: {same}", highlight=False)
        for profile, changes in self.changes.items():
            told = "obeys every law" if not changes else "; ".join(map(str, changes))
            console.print(f"{profile}: {told}", highlight=False)
        console.print("in the place of latch's merge, one step an update, any number of rooms and workers:")
        for cell in self.cells:
            console.print(f"  {matrix.text(cell.verdict):8} {cell.prop}", highlight=False)
        return output.getvalue().rstrip()

    def as_json(self) -> dict[str, object]:
        """The same, for machines."""
        return {
            "subject": self.subject,
            "table": [[str(getattr(stored, "name", stored)) for stored in row] for row in self.merge],
            "same_as": list(self.same_as),
            "changes": {profile: list(map(str, changes)) for profile, changes in self.changes.items()},
            "properties": {cell.prop: matrix.text(cell.verdict) for cell in self.cells},
        }


def judge_merge(subject: str, merge: Table) -> JudgedMerge:
    """Hold an extracted table against the laws of both profiles, and prove or refute each property with it."""
    rule = as_merge(merge)
    name = f"latch with the merge of {subject}"
    LOOSE[name] = attrs.evolve(DESIGNS["latch"], name=name, merge=rule, atomicities=("locked",))
    (cells,) = decide(name, "locked", [2], list(BY_NAME))
    same = tuple(known for known, other in MERGES.items() if table(other) == merge)
    return JudgedMerge(subject, merge, same, atlas.profiles_of(rule).changes, tuple(cells))
