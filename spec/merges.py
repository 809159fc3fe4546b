"""Merges: what one status write does to one entry. ``merge(current, incoming) -> what is stored``.

Each rule is written the way a maintainer would write it; ``current`` is None when the table has no entry. ``KEEP``
says that the code returns without touching the table. That is not the same as storing the old value again: a thread
that has read, and then stores what it read, overwrites whatever came in between.

The engines never call these functions. They look up :func:`table`, which is computed from them, so a table that was
extracted from somebody else's code can take the same place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

from kvlatch.spec.status import TERMINAL, KVPoll

Kept = Literal["keep"]
KEEP: Final[Kept] = "keep"

Merge = Callable[[KVPoll | None, KVPoll], KVPoll | Kept]
Table = tuple[tuple[KVPoll | Kept, ...], ...]
"""Six rows (the five statuses, then no entry) of five columns (the incoming status)."""

Failed = KVPoll.Failed
OPENING: Final = (KVPoll.Bootstrapping, KVPoll.WaitingForInput)
"""The statuses a request can start with; since 0.5.20 only these create an entry."""


def plain_max(current: KVPoll | None, incoming: KVPoll) -> KVPoll | Kept:
    """Mooncake 0.4.6, NIXL up to 0.5.5. Failed is the smallest number, so it never gets in (sglang at 007ba53)."""
    if current is None:
        return incoming
    return max(current, incoming)


def failed_else_max(current: KVPoll | None, incoming: KVPoll) -> KVPoll | Kept:
    """Mooncake 0.4.8 to 0.5.9, NIXL 0.5.6 to 0.5.9, common 0.5.10, 0.5.11: ``max(Failed, T)`` is T (sglang#19205)."""
    if current is None:
        return incoming
    if incoming == Failed:
        return Failed
    return max(current, incoming)


def failed_else_max_if_present(current: KVPoll | None, incoming: KVPoll) -> KVPoll | Kept:
    """Common 0.5.12 to 0.5.19: as before, but a late Failed creates no entry (sglang#24539)."""
    if current is None and incoming == Failed:
        return KEEP
    return failed_else_max(current, incoming)


def nixl_override(current: KVPoll | None, incoming: KVPoll) -> KVPoll | Kept:
    """NIXL 0.5.16 to 0.5.19: Failed is sticky, but late T and S still create an entry (sglang#30352)."""
    if current == Failed:
        return KEEP
    return failed_else_max_if_present(current, incoming)


def sglang_0_5_20(current: KVPoll | None, incoming: KVPoll) -> KVPoll | Kept:
    """Every backend since 0.5.20: Failed is sticky and only an opening status creates; Success yields to Failed."""
    if current is None:
        return incoming if incoming in OPENING else KEEP
    if incoming == Failed:
        return Failed
    if current == Failed:
        return KEEP
    return max(current, incoming)


def mori_override(current: KVPoll | None, incoming: KVPoll) -> KVPoll | Kept:
    """Mori 0.5.12 to 0.5.19, the first backend with the rule that all have had since 0.5.20."""
    return sglang_0_5_20(current, incoming)


def failure_overrides(current: KVPoll | None, incoming: KVPoll) -> KVPoll | Kept:
    """Terminal-sticky, one of two readings: no live status replaces a terminal one, but Failed replaces Success."""
    if current is not None and incoming == Failed:
        return Failed
    if current in TERMINAL:
        return KEEP
    return failed_else_max(current, incoming)


def first_terminal_wins(current: KVPoll | None, incoming: KVPoll) -> KVPoll | Kept:
    """Terminal-sticky, the other reading: whatever terminal status comes first, stays. Fix A, and ``latch``."""
    if current in TERMINAL:
        return KEEP
    return failed_else_max(current, incoming)


MERGES: Final[dict[str, Merge]] = {
    merge.__name__: merge
    for merge in (
        plain_max,
        failed_else_max,
        failed_else_max_if_present,
        nixl_override,
        mori_override,
        sglang_0_5_20,
        failure_overrides,
        first_terminal_wins,
    )
}


def table(merge: Merge) -> Table:
    """All 6 x 5 cells of a merge; raises ValueError naming the cell where it answers with something else."""
    rows = []
    for current in (*KVPoll, None):
        row = []
        for incoming in KVPoll:
            stored = merge(current, incoming)
            if stored != KEEP and stored not in tuple(KVPoll):
                cell = f"{current.name if current is not None else 'Absent'} <- {incoming.name}"
                raise ValueError(f"merge {getattr(merge, '__name__', merge)!s}: {cell} gives {stored!r}, not a KVPoll")
            row.append(stored)
        rows.append(tuple(row))
    return tuple(rows)
