"""The event-log engine in numba: the same as ``rooms.py``, one event after the other. Import it late.

The first call of a process compiles, or loads what an earlier process compiled. Plain loops need no grouping: an event
meets the state that the one before it left.
"""

from __future__ import annotations

from typing import Any

import attrs
import numba
import numpy as np

from kvlatch.reference.arrays.device import Array
from kvlatch.reference.logs.laws import SILENT
from kvlatch.reference.logs.rooms import EMPTY, GOLDEN, REVIVED, TERMINALS, Broken, Rooms

_FREE = np.int64(EMPTY)
_SPREAD = np.uint64(GOLDEN)


def find(rooms: Any, keys: Any, shift: int, count: int, slots: Any) -> int:
    """Write the slot of each room into ``slots``; the number of rooms then, or -1 if the table is half full.

    The first loop does not branch, so that many rooms are fetched from memory at once; it guesses each right that is
    in its home slot. The second one looks for the others.
    """
    missed = np.empty(len(rooms), np.int64)
    misses = 0
    for i in range(len(rooms)):
        slot = np.int64((np.uint64(rooms[i]) * _SPREAD) >> np.uint64(shift))
        slots[i] = slot
        missed[misses] = i
        misses += keys[slot] != rooms[i]
    for j in range(misses):
        i = missed[j]
        slot = np.int64(slots[i])
        while keys[slot] != rooms[i]:
            if keys[slot] == _FREE:
                if 2 * (count + 1) > len(keys):
                    return -1
                keys[slot] = rooms[i]
                count += 1
            else:
                slot = (slot + 1) & (len(keys) - 1)
        slots[i] = slot
    return count


def fold(
    slots: Any, codes: Any, line: int, state: Any, violated: Any, last: Any,
    left: Any, broken: Any, carry: Any, hits: Any, before: Any,
) -> int:  # fmt: skip
    """Fold in events; the number of rooms first broken, their events' positions in ``hits``, states in ``before``."""
    found = 0
    for i in range(len(slots)):
        slot, code = slots[i], codes[i]
        if len(last):
            last[slot] = line + i
        if code >= SILENT:
            continue
        known = state[slot]
        now = left[code] | (known & carry[code])
        if known & broken[code]:
            if known & TERMINALS:
                now |= carry[code]
            if not violated[slot]:
                violated[slot] = True
                hits[found] = i
                before[found] = known & (REVIVED - 1)
                found += 1
        state[slot] = now
    return found


_find = numba.njit(cache=True, nogil=True)(find)
_fold = numba.njit(cache=True, nogil=True)(fold)


@attrs.define(eq=False)
class FastRooms(Rooms):
    """``Rooms`` with both inner loops compiled."""

    def _find(self, rooms: Array) -> Array | None:
        slots = np.empty(len(rooms), np.int32)
        shift = 64 - (len(self.keys).bit_length() - 1)
        count = int(_find(rooms, self.keys, shift, self.count, slots))
        if count < 0:
            return None
        self.count = count
        return slots

    def fold(self, slots: Array, codes: Array, line: int) -> Broken:
        hits = np.empty(len(slots), np.int64)
        before = np.empty(len(slots), np.uint8)
        tables = self.tables
        found = int(
            _fold(slots, codes, line, self.state, self.violated, self.last,
                  tables.left, tables.broken, tables.carry, hits, before)
        )  # fmt: skip
        hits = hits[:found]
        broken = slots[hits]
        return Broken(self.keys[broken], line + hits, before[:found], codes[hits])
