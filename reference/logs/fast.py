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
from kvlatch.reference.arrays.kernels import AGAIN, CLEARED, SUSPECT
from kvlatch.reference.logs.codes import SILENT
from kvlatch.reference.logs.rooms import EMPTY, GOLDEN, Rooms

_FREE = np.int64(EMPTY)
_LOOKED = CLEARED - 1
_AGAIN, _CLEARED, _SUSPECT = np.uint32(AGAIN), np.uint32(CLEARED), np.uint32(SUSPECT)
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
    slots: Any, codes: Any, times: Any, state: Any, marks: Any, moved: Any, clock: Any,
    left: Any, suspicious: Any, again: Any, clears: Any, polls: Any,
) -> None:  # fmt: skip
    """Fold in events; ``times`` and ``moved`` are empty if nobody asks when. NaN is no time."""
    timed = len(times) > 0
    for i in range(len(slots)):
        slot, code = slots[i], codes[i]
        known = state[slot]
        now = left[code] if code < SILENT else known
        if timed and times[i] == times[i]:
            if times[i] < clock[slot]:
                marks[slot] |= _SUSPECT
            clock[slot] = times[i]
            if (now != known or not polls[code]) and times[i] > moved[slot]:
                moved[slot] = times[i]
        if code >= SILENT:
            continue
        past = marks[slot] | np.uint32(known & _LOOKED)
        if known & suspicious[code]:
            past |= _SUSPECT
        if clears[code]:
            past |= _CLEARED
        if known & again[code]:
            past |= _AGAIN
        marks[slot] = past
        state[slot] = now


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

    def fold(self, slots: Array, codes: Array, times: Array | None = None) -> None:
        tables = self.tables
        _fold(slots, codes, _NO_TIMES if times is None else times, self.state, self.marks, self.moved,
              self.clock, tables.left, tables.suspicious, tables.again, tables.clears, tables.polls)  # fmt: skip


_NO_TIMES = np.empty(0)
