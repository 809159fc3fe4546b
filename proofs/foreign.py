"""Proofs about foreign code: a table that was extracted from a manager takes the place of a merge of the spec.

What is proved is about ``latch`` with that merge, its update one step. So it says what the table is good for when all
else is right; what else the foreign manager does, the table does not show.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from kvlatch.proofs import atlas, pins
from kvlatch.proofs.atlas import Change
from kvlatch.proofs.prove import LOOSE, Cell, decide
from kvlatch.reference.oracle.merge_table import as_merge
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

    def as_json(self) -> dict[str, object]:
        """The same, for machines."""
        return {
            "subject": self.subject,
            "table": [[str(getattr(stored, "name", stored)) for stored in row] for row in self.merge],
            "same_as": list(self.same_as),
            "changes": {profile: list(map(str, changes)) for profile, changes in self.changes.items()},
            "properties": {cell.prop: pins.text(cell.verdict) for cell in self.cells},
        }


def judge_merge(subject: str, merge: Table) -> JudgedMerge:
    """Hold an extracted table against the laws of both profiles, and prove or refute each property with it."""
    rule = as_merge(merge)
    name = f"latch with the merge of {subject}"
    LOOSE[name] = attrs.evolve(DESIGNS["latch"], name=name, merge=rule, atomicities=("locked",))
    (cells,) = decide(name, "locked", [2], list(BY_NAME))
    same = tuple(known for known, other in MERGES.items() if table(other) == merge)
    return JudgedMerge(subject, merge, same, atlas.profiles_of(rule).changes, tuple(cells))
