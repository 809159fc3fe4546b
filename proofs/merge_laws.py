"""The laws of a merge, and how many tables obey them.

Every law speaks of one cell at a time, so counts are exact: the tables that obey are the product, over the cells, of
the values that all laws allow there. ``atlas.py`` asks the questions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import product
from math import prod
from typing import Final

import attrs

from kvlatch.spec.merges import OPENING
from kvlatch.spec.status import TERMINAL, KVPoll

Failed, Bootstrapping, WaitingForInput, Transferring, Success = KVPoll
STATUSES: Final = tuple(KVPoll)
LIVE: Final = (Bootstrapping, WaitingForInput, Transferring)

Entry = KVPoll | None
"""What the table has for a room; None is no entry. A merge that stores None would remove the entry."""
Cell = tuple[Entry, Entry]
"""What was there, and what is written; nobody writes None."""
Cells = Mapping[Cell, Entry]
"""A merge as a table: what is there after a write."""


# --------------------------------------------------------------------------------------------------------------------
# Laws


@attrs.frozen(eq=False)
class Law:
    """What one cell of a merge must be like: ``allows(old, new, stored)``, and where that is known from."""

    name: str
    says: str
    source: str
    allows: Callable[[Entry, Entry, Entry], bool]


_LIFE: Final[dict[Entry, int]] = {None: 0, **{status: 1 + LIVE.index(status) for status in LIVE}, Failed: 4, Success: 4}
"""How far a room has come: no entry, the three live statuses, over."""

SHARED: Final = (
    Law(
        "nothing made up",
        "What is stored is what was there or what was written.",
        "every published rule",
        lambda old, new, stored: stored in (old, new),
    ),
    Law(
        "Failed is final",
        "A room that has failed stays Failed, whatever is written.",
        "no-resurrection; sglang#19205, sglang#30352",
        lambda old, _, stored: old != Failed or stored == Failed,
    ),
    Law(
        "terminal lands",
        "Failed or Success, written on a live status, is stored.",
        "no-pin: plain max loses every Failed (Mooncake 0.4.6, NIXL up to 0.5.5)",
        lambda old, new, stored: old not in LIVE or new not in TERMINAL or stored == new,
    ),
    Law(
        "never back",
        "A live write, late or doubled, takes a live room no step back.",
        "no-lost-wakeup: WaitingForInput survives the constructor's Bootstrapping; max in every version",
        lambda old, new, stored: old not in LIVE or new not in LIVE or _LIFE[stored] >= _LIFE[old],
    ),
    Law(
        "never lost",
        "A live write takes a live room at least as far as it says.",
        "no-lost-wakeup; max in every version",
        lambda old, new, stored: old not in LIVE or new not in LIVE or _LIFE[stored] >= _LIFE[new],
    ),
)
"""What holds under both profiles."""

PROFILES: Final = {
    "first terminal wins": Law(
        "Success is final",
        "A room that has succeeded stays Success, whatever is written.",
        "success-not-overwritten; sglang#35281",
        lambda old, _, stored: old != Success or stored == Success,
    ),
    "failure overrides": Law(
        "Success yields to Failed alone",
        "A room that has succeeded becomes Failed if that is written, and else stays Success.",
        "terminal-sticky; sglang since 0.5.20",
        lambda old, new, stored: old != Success or stored == (Failed if new == Failed else Success),
    ),
}
"""The law in which the two readings of "terminal" differ."""

CLEARS: Final = {
    "absent": (
        Law(
            "opening creates",
            "Bootstrapping or WaitingForInput creates the entry, whichever comes first.",
            "no-lost-wakeup; sglang#31217",
            lambda old, new, stored: old is not None or new not in OPENING or stored == new,
        ),
        Law(
            "nothing else creates",
            "Failed, Transferring or Success without an entry is late, and leaves none.",
            "no-ghost; sglang#24539, sglang since 0.5.20",
            lambda old, new, stored: old is not None or new in OPENING or stored is None,
        ),
    ),
    "tombstone": (
        Law(
            "every write creates",
            "What is written creates the entry: what is late has met the tombstone, and does not come here.",
            "no-ghost is the tombstone's business; latch",
            lambda old, new, stored: old is not None or stored == new,
        ),
    ),
}
"""The row for no entry depends on what clearing leaves in the table (the switch ``clear`` of a design)."""


def allowed(laws: Collection[Law], entries: Sequence[Entry]) -> dict[Cell, list[Entry]]:
    """The values that all laws allow in each cell, where these entries are the rows, and all but None the columns."""
    columns = [entry for entry in entries if entry is not None]
    return {
        (old, new): [value for value in entries if all(law.allows(old, new, value) for law in laws)]
        for old, new in product(entries, columns)
    }


def count(laws: Collection[Law], entries: Sequence[Entry]) -> int:
    """How many tables over these entries obey the laws."""
    tables: int = prod(map(len, allowed(laws, entries).values()))
    return tables


def broken(laws: Collection[Law], table: Cells) -> tuple[str, ...]:
    """The laws that a table breaks."""
    return tuple(law.name for law in laws if not all(law.allows(*cell, stored) for cell, stored in table.items()))


# --------------------------------------------------------------------------------------------------------------------
# The tables that obey


@attrs.frozen
class Census:
    """How many tables obey a set of laws, and what each law does for that.

    ``without``: how many obey when one law is dropped; a law without which there are no more is redundant.
    ``mutants``: for each change of one cell of the one table, the laws that it breaks; no law if it survives.
    """

    laws: tuple[Law, ...]
    entries: tuple[Entry, ...]
    tables: int
    without: Mapping[str, int]
    table: Cells
    mutants: Mapping[tuple[Cell, Entry], tuple[str, ...]]

    @property
    def universe(self) -> str:
        """How many tables there are, as a power: JSON readers round large integers."""
        return f"{len(self.entries)}^{len(self.table)}"

    @property
    def redundant(self) -> tuple[str, ...]:
        """The laws that follow from the others."""
        return tuple(name for name, left in self.without.items() if left == self.tables)

    @property
    def survivors(self) -> tuple[tuple[Cell, Entry], ...]:
        """The mutants that break no law."""
        return tuple(mutant for mutant, laws in self.mutants.items() if not laws)

    @property
    def alone(self) -> Mapping[str, int]:
        """How many mutants each law alone notices."""
        single = Counter(laws[0] for laws in self.mutants.values() if len(laws) == 1)
        return {law.name: single[law.name] for law in self.laws}


def census(laws: tuple[Law, ...], entries: tuple[Entry, ...]) -> Census:
    """Count the tables over these entries; ValueError unless exactly one obeys."""
    tables = count(laws, entries)
    if tables != 1:
        raise ValueError(f"{tables} tables obey, not one: {', '.join(law.name for law in laws)}")
    table = {cell: values[0] for cell, values in allowed(laws, entries).items()}
    return Census(
        laws=laws,
        entries=entries,
        tables=tables,
        without={law.name: count([other for other in laws if other is not law], entries) for law in laws},
        table=table,
        mutants={
            (cell, value): broken(laws, {cell: value})
            for cell, stored in table.items()
            for value in entries
            if value != stored
        },
    )
