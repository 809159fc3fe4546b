"""The atlas of merges: every numbering of the five statuses, every table of a merge, and the laws that leave one.

Three questions of a maintainer. Can the statuses be renumbered so that ``max`` over time and MIN over ranks are both
right? No, in none of 120 ways. Can a merge be commutative and keep both terminal statuses? No. Then which table is
right? For each profile of stickiness six laws leave one of 5^25; with those about a room without an entry, one of 6^30.

The laws are in ``merge_laws.py``. Each speaks of one cell at a time, so the smallest change that makes a rule obey is
to set each cell where it differs from the one table: no such cell may keep its value, and no other need change.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import combinations, permutations, product
from typing import Final

import attrs
import z3

from kvlatch.proofs.merge_laws import (
    CLEARS,
    LIVE,
    PROFILES,
    SHARED,
    STATUSES,
    Cell,
    Cells,
    Census,
    Entry,
    Failed,
    Law,
    Success,
    broken,
    census,
)
from kvlatch.spec.merges import KEEP, MERGES, Merge
from kvlatch.spec.status import ABSENT, KVPoll

# --------------------------------------------------------------------------------------------------------------------
# Algebra


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
