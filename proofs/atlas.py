"""The atlas of merges: every numbering of the five statuses, every table of a merge, and the laws that leave one.

Three questions of a maintainer. Can the statuses be renumbered so that ``max`` over time and MIN over ranks are both
right? No, in none of 120 ways. Can a merge be commutative and keep both terminal statuses? No. Then which table is
right? For each profile of stickiness six laws leave one of 5^25; with those about a room without an entry, one of 6^30.

Every law speaks of one cell at a time, so counts are exact: the tables that obey are the product, over the cells, of
the values that all laws allow there. For the same reason the smallest change that makes a rule obey is to set each
cell where it differs from the one table: no such cell may keep its value, and no other need change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import combinations, permutations, product
from math import prod
from typing import Final

import attrs
import z3

from kvlatch.spec.merges import KEEP, MERGES, OPENING, Merge
from kvlatch.spec.status import ABSENT, TERMINAL, KVPoll

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


def _associative(table: Cells) -> bool:
    return all(table[table[a, b], c] == table[a, table[b, c]] for a, b, c in product(STATUSES, repeat=3))


def _idempotent(table: Cells) -> bool:
    return all(table[a, a] == a for a in STATUSES)


def _commutative(table: Cells) -> bool:
    return all(table[a, b] == table[b, a] for a, b in product(STATUSES, repeat=2))


ALGEBRA: Final[dict[str, Callable[[Cells], bool]]] = {
    "associative": _associative,
    "idempotent": _idempotent,
    "commutative": _commutative,
}
"""What nobody demands: that a log may be merged in pieces, that a write may be doubled, that order does not matter."""


# --------------------------------------------------------------------------------------------------------------------
# Renumberings


Order = tuple[KVPoll, ...]
"""A numbering of the statuses: the one with the least number first."""


@attrs.frozen
class Renumberings:
    """All numberings of the five statuses, and those that make ``max`` over time or MIN over ranks right.

    ``laws``: in how many ``max`` obeys each law. ``both_sticky``: in how many it keeps Failed and Success.
    ``over_time``: where it obeys all laws of a profile. ``over_ranks``: where MIN gives Failed if any rank has failed,
    else the slowest rank.
    """

    total: int
    laws: Mapping[str, int]
    both_sticky: int
    over_time: Mapping[str, frozenset[Order]]
    over_ranks: frozenset[Order]

    reason = (
        "Over time Failed must win as the greatest number, over ranks as the least. Exchanging minimum and maximum in "
        "one of the two places mends that and breaks the rest: over time the later live status must win, over ranks "
        "the earlier."
    )

    @property
    def right(self) -> frozenset[Order]:
        """Where ``max`` obeys all laws of some profile."""
        return frozenset[Order]().union(*self.over_time.values())

    @property
    def both(self) -> frozenset[Order]:
        """Where MIN is right, and ``max`` for some profile."""
        return self.right & self.over_ranks

    @property
    def turned(self) -> frozenset[Order]:
        """The same with minimum and maximum free to be chosen in each of the two places."""
        return either_way(self.right) & either_way(self.over_ranks)


def either_way(orders: frozenset[Order]) -> frozenset[Order]:
    """The orders, and the same backwards: what the minimum is in one, the maximum is in the other."""
    return orders | {order[::-1] for order in orders}


def extreme(order: Order) -> Cells:
    """The merge that keeps whichever status comes later in the order: ``max``, or backwards ``min``."""
    return {(a, b): max(a, b, key=order.index) for a, b in product(STATUSES, repeat=2)}


_REDUCED: Final[Cells] = {
    (a, b): Failed if Failed in (a, b) else min(a, b, key=(*LIVE, Success).index)
    for a, b in product(STATUSES, repeat=2)
}
"""What two ranks must be reduced to; more ranks are two at a time."""


def renumberings() -> Renumberings:
    """Try all 120."""
    laws = (*SHARED, *PROFILES.values())
    obeyed = {order: {law.name for law in laws} - set(broken(laws, extreme(order))) for order in permutations(STATUSES)}

    def where(*names: str) -> frozenset[Order]:
        return frozenset(order for order, held in obeyed.items() if held.issuperset(names))

    shared = [law.name for law in SHARED]
    return Renumberings(
        total=len(obeyed),
        laws={law.name: len(where(law.name)) for law in laws},
        both_sticky=len(where("Failed is final", "Success is final")),
        over_time={profile: where(*shared, law.name) for profile, law in PROFILES.items()},
        over_ranks=frozenset(order for order in obeyed if extreme(order[::-1]) == _REDUCED),
    )


# --------------------------------------------------------------------------------------------------------------------
# Commutative merges


@attrs.frozen
class Clash:
    """Demands on all 5 x 5 tables, of which Z3 finds any two together possible, and all three not.

    ``answers``: what Z3 says of every set of demands.
    """

    answers: Mapping[tuple[str, ...], str]

    reason = (
        "Failed <- Success must be Failed, and Success <- Failed must be Success; "
        "a commutative merge has the same value in both cells."
    )

    @property
    def impossible(self) -> bool:
        """All the demands together have no table."""
        return self.answers[max(self.answers, key=len)] == "unsat"


def clash() -> Clash:
    """Ask Z3 for a table for each set of demands."""
    cell = {(a, b): z3.BitVec(f"{a.name} <- {b.name}", 3) for a, b in product(STATUSES, repeat=2)}
    demands = {
        "Failed is final": z3.And([cell[Failed, new] == Failed for new in STATUSES]),
        "Success is final": z3.And([cell[Success, new] == Success for new in STATUSES]),
        "commutative": z3.And([cell[a, b] == cell[b, a] for a, b in combinations(STATUSES, 2)]),
    }
    solver = z3.Solver()
    solver.add([z3.ULT(value, len(STATUSES)) for value in cell.values()])
    subsets = [names for size in range(1, len(demands) + 1) for names in combinations(demands, size)]
    return Clash({names: str(solver.check([demands[name] for name in names])) for names in subsets})


# --------------------------------------------------------------------------------------------------------------------
# Published rules


@attrs.frozen
class Change:
    """A cell of a rule that must change."""

    cell: Cell
    stored: Entry
    should: Entry

    def __str__(self) -> str:
        old, new = self.cell
        return f"{letter(old)} <- {letter(new)}: {letter(self.stored)}, should be {letter(self.should)}"


@attrs.frozen
class Rule:
    """A published rule beside the laws: what it breaks, and the smallest change that mends it.

    The five rows of statuses are matters of the profile, the row for no entry of what clearing leaves.
    """

    name: str
    breaks: Mapping[str, tuple[str, ...]]
    changes: Mapping[str, tuple[Change, ...]]


def result(merge: Merge) -> Cells:
    """What is in the table after a write, of all 6 x 5: a merge that keeps leaves what was there."""
    answers = {(old, new): merge(old, new) for old, new in product((*STATUSES, None), STATUSES)}
    return {(old, new): old if stored == KEEP else stored for (old, new), stored in answers.items()}


def rule(merge: Merge, demands: Mapping[str, tuple[Sequence[Law], Cells]]) -> Rule:
    """Hold a rule against the laws and the part of the table that they leave, for each profile and each clear."""
    stored = result(merge)
    return Rule(
        merge.__name__,
        {name: broken(laws, stored) for name, (laws, _) in demands.items()},
        {
            name: tuple(Change(cell, stored[cell], should) for cell, should in part.items() if stored[cell] != should)
            for name, (_, part) in demands.items()
        },
    )


# --------------------------------------------------------------------------------------------------------------------
# The whole


@attrs.frozen
class Atlas:
    """Everything that is known of merges.

    ``profiles`` is about the tables of 5 x 5 cells, by profile; ``full`` about 6 x 5, by profile and clear.
    """

    renumberings: Renumberings
    commutative: Clash
    profiles: Mapping[str, Census]
    full: Mapping[tuple[str, str], Census]
    rules: tuple[Rule, ...]

    @property
    def algebra(self) -> Mapping[str, Mapping[str, bool]]:
        """What the one table of each profile has without being asked."""
        return {
            profile: {name: holds(one.table) for name, holds in ALGEBRA.items()}
            for profile, one in self.profiles.items()
        }


def atlas() -> Atlas:
    """Compute everything."""
    five = {profile: census((*SHARED, law), STATUSES) for profile, law in PROFILES.items()}
    full = {
        (profile, clear): census((*one.laws, *CLEARS[clear]), (*STATUSES, None))
        for (profile, one), clear in product(five.items(), CLEARS)
    }
    asked = demands(five, full)
    return Atlas(renumberings(), clash(), five, full, tuple(rule(merge, asked) for merge in MERGES.values()))


def demands(
    five: Mapping[str, Census], full: Mapping[tuple[str, str], Census]
) -> dict[str, tuple[Sequence[Law], Cells]]:
    """What each profile, and each clear, demands of a rule: the laws, and the part of the table that they leave."""
    asked: dict[str, tuple[Sequence[Law], Cells]] = {profile: (one.laws, one.table) for profile, one in five.items()}
    for (_, clear), one in full.items():
        asked[clear] = CLEARS[clear], {cell: stored for cell, stored in one.table.items() if cell[0] is None}
    return asked


def profiles_of(merge: Merge) -> Rule:
    """Hold one rule against the two profiles alone: how far it is from each."""
    five = {profile: census((*SHARED, law), STATUSES) for profile, law in PROFILES.items()}
    return rule(merge, demands(five, {}))


def _name(entry: Entry) -> str:
    return ABSENT if entry is None else entry.name


def letter(entry: Entry) -> str:
    """One letter for an entry; A is no entry."""
    return _name(entry)[0]


def orders_text(orders: Collection[Order]) -> list[str]:
    """Orders of the five statuses as strings of letters."""
    return sorted(" < ".join(map(letter, order)) for order in orders)


def as_json(atlas: Atlas) -> dict[str, object]:
    """All counts and tables, for machines."""
    numberings = atlas.renumberings
    return {
        "renumberings": {
            "total": numberings.total,
            "laws": dict(numberings.laws),
            "both_sticky": numberings.both_sticky,
            "over_time": {profile: orders_text(orders) for profile, orders in numberings.over_time.items()},
            "over_ranks": orders_text(numberings.over_ranks),
            "both": orders_text(numberings.both),
            "turned": orders_text(numberings.turned),
            "reason": Renumberings.reason,
        },
        "commutative": {
            "impossible": atlas.commutative.impossible,
            "answers": {" + ".join(names): answer for names, answer in atlas.commutative.answers.items()},
            "reason": Clash.reason,
        },
        "profiles": {profile: _census_json(one) for profile, one in atlas.profiles.items()},
        "full": [
            {"profile": profile, "clear": clear} | _census_json(one) for (profile, clear), one in atlas.full.items()
        ],
        "algebra": {profile: dict(holds) for profile, holds in atlas.algebra.items()},
        "rules": {
            rule.name: {
                demand: {"breaks": list(rule.breaks[demand]), "changes": [str(change) for change in changes]}
                for demand, changes in rule.changes.items()
            }
            for rule in atlas.rules
        },
    }


def _census_json(one: Census) -> dict[str, object]:
    return {
        "universe": one.universe,
        "tables": one.tables,
        "laws": [
            {
                "name": law.name,
                "says": law.says,
                "source": law.source,
                "without": one.without[law.name],
                "mutants_alone": one.alone[law.name],
            }
            for law in one.laws
        ],
        "redundant": list(one.redundant),
        "mutants": len(one.mutants),
        "survivors": len(one.survivors),
        "table": {_name(old): {new.name: _name(one.table[old, new]) for new in STATUSES} for old in one.entries},
    }
