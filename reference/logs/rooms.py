"""The screen: which rooms of a log of one table could have broken a law, folded in block by block.

A screen accuses nobody. It keeps a byte or two of each room and says which rooms the judge (``judge.py``) has to look
at: a superset of those that break a law, so that of a long log only a few rooms are judged event by event. NumPy and
CuPy run the same array code; numba has loops beside it (``fast.py``).

Room ids are arbitrary 64-bit numbers, in any order. A room's *slot* is its place in an open-addressing hash table, and
everything known of it stands in arrays under that slot. A block is grouped by room, and each event then held against
the one before it; only the first event of a room in a block needs what was known before. So a block does not care how
much came before it, and any division into blocks gives the same.

The status last observed is kept as a bit, and each event has the set of statuses after which it is suspicious: whether
it is one is a single ``&``.
"""

from __future__ import annotations

from types import ModuleType
from typing import Final

import attrs
import numpy as np
import numpy.typing as npt

from kvlatch.reference.arrays.device import Array, lookup, scatter_max, to_host
from kvlatch.reference.arrays.kernels import AGAIN, CLEARED, SUSPECT, mark_rooms, openings
from kvlatch.reference.logs.codes import CODES, EVENTS, SILENT
from kvlatch.reference.logs.events import STATUSES, Event
from kvlatch.reference.logs.laws import Seen, broken_in
from kvlatch.spec.status import ABSENT, TERMINAL, B, F, S, T, W

UNKNOWN: Final = 0x40
"""The state of a room whose status nobody knows ..."""
UNSAID: Final = 0x80
"""... and of one that was created, and the log does not say what came of it; the other bits are statuses."""
EMPTY: Final = -1
"""The key of a free slot: the room with that id, 2**64 - 1, is always suspect."""
BLOCK: Final = 1 << 16
"""Events in a block on a CPU: a block and its keys stay in the second-level cache."""
DEVICE_BLOCK: Final = 1 << 22
"""Events in a block on a GPU, and rows that are read at a time for it: some milliseconds of the transfer to it."""
TERMINALS: Final = sum(1 << status for status in TERMINAL)
"""Bits of a terminal state."""
_PRESENT: Final = CLEARED - 1
_WAITING: Final = (1 << STATUSES.index(W)) | (1 << STATUSES.index(T))
_FEWEST_SLOTS: Final = 1 << 11
GOLDEN: Final = 0x9E3779B97F4A7C15
"""2**64 over the golden ratio: multiplying by it spreads ids, and consecutive ones hardly ever collide."""


@attrs.frozen(eq=False)
class Tables:
    """A byte an event each, uint8 of shape (256,); bytes that are no event stand for silent ones.

    ``left``: the state that the event leaves. ``suspicious``: the set of states after which it may break a law.
    ``again``: the set of states after which it is the second use of the id. ``clears`` and ``polls``: 1 for such an op.
    """

    left: npt.NDArray[np.uint8]
    suspicious: npt.NDArray[np.uint8]
    again: npt.NDArray[np.uint8]
    clears: npt.NDArray[np.uint8]
    polls: npt.NDArray[np.uint8]

    @classmethod
    def of(cls) -> Tables:
        """The tables for the laws of either profile."""
        left, suspicious, again, clears, polls = np.zeros((5, 256), np.uint8)
        left[:] = UNKNOWN
        for code, event in enumerate(EVENTS):
            if event.after:
                left[code] = 1 << STATUSES.index(event.after)
            states = {1 << bit: before for bit, before in enumerate(STATUSES)} | {UNKNOWN: None, UNSAID: None}
            suspicious[code] = sum(bit for bit, before in states.items() if _suspicious(before, event))
            if event.op == "create":
                left[code] = left[code] if event.after else UNSAID
                suspicious[code] |= UNSAID
            again[code] = CLEARED if event.op == "create" else 0
            clears[code] = event.op == "clear"
            polls[code] = event.op == "poll"
        return cls(left, suspicious, again, clears, polls)


def _suspicious(before: str | None, event: Event) -> bool:
    """Whether the judge could find a law broken by this event, whatever came before that status."""
    after = event.after
    if event.op == "create":
        return before not in (None, ABSENT) or (before == ABSENT and after not in (None, B))
    if after is None:
        return False
    if event.op == "clear" and after != ABSENT:
        return True
    if before is None:
        return False
    if before == after:
        return False
    if before == ABSENT or (before in (W, T) and after == B) or (event.op == "write" and (before, after) == (B, S)):
        return True
    return before in (F, S) and bool(broken_in(Seen(after, before)))


@attrs.define(eq=False)
class Rooms:
    """The rooms of a log so far, on ``xp`` (NumPy or CuPy).

    It has not run on a GPU: only on a façade of CuPy, and its kernel in an interpreter.
    With ``timed`` it also keeps when anything happened last to each room: 16 more bytes a slot, and a slower fold.
    """

    tables: Tables
    xp: ModuleType = np
    timed: bool = False
    block: int = attrs.field()
    count: int = attrs.field(init=False, default=0)
    keys: Array = attrs.field(init=False)
    state: Array = attrs.field(init=False)
    marks: Array = attrs.field(init=False)
    """uint32: the history of each room in the lower bits, and whether it is suspect; see ``mark_rooms``."""
    moved: Array = attrs.field(init=False)
    """If timed: when anything happened to each room last."""
    clock: Array = attrs.field(init=False)
    """If timed: the time of its last event."""
    _tables: Tables = attrs.field(init=False)
    """The tables in the memory of ``xp``."""
    no_key: bool = attrs.field(init=False, default=False)
    """The room whose id is the key of free slots has been seen."""

    @block.default
    def _of_device(self) -> int:
        return BLOCK if self.xp is np else DEVICE_BLOCK

    def __attrs_post_init__(self) -> None:
        self._tables = Tables(*map(self.xp.asarray, attrs.astuple(self.tables, recurse=False)))
        self._allocate(_FEWEST_SLOTS)

    def _allocate(self, slots: int) -> None:
        self.keys = self.xp.full(slots, EMPTY, np.int64)
        self.state = self.xp.full(slots, UNKNOWN, np.uint8)
        self.marks = self.xp.zeros(slots, np.uint32)
        self.moved = self.xp.full(slots if self.timed else 0, -np.inf, np.float64)
        self.clock = self.xp.full(slots if self.timed else 0, -np.inf, np.float64)

    def feed(
        self, rooms: npt.NDArray[np.int64], codes: npt.NDArray[np.uint8], times: npt.NDArray[np.float64] | None = None
    ) -> None:
        """Fold in consecutive events: ``rooms`` int64, ``codes`` uint8 below ``CODES``, ``times`` float64 if timed.

        ValueError, and nothing changes, for arrays that are not like that.
        """
        if len(rooms) != len(codes) or (times is not None and len(times) != len(codes)):
            raise ValueError(f"{len(rooms)} rooms and {len(codes)} codes: an event has one of each")
        if rooms.dtype != np.int64 or codes.dtype != np.uint8:
            raise ValueError(f"rooms are int64 and codes uint8, not {rooms.dtype} and {codes.dtype}")
        if len(rooms) and codes.max() >= CODES:
            raise ValueError(f"codes are below {CODES}")
        if len(rooms) and rooms.min() < 0 and (rooms == EMPTY).any():
            self.no_key = True
            mine = rooms != EMPTY
            rooms, codes, times = rooms[mine], codes[mine], None if times is None else times[mine]
        for start in range(0, len(rooms), self.block):
            part = slice(start, start + self.block)
            clock = self.xp.asarray(times[part]) if self.timed and times is not None else None
            self.fold(self.number(self.xp.asarray(rooms[part])), self.xp.asarray(codes[part]), clock)

    # ----------------------------------------------------------------------------------------------------------------
    # Numbering

    def number(self, rooms: Array) -> Array:
        """The slot of each room, int32, new rooms included; all slots change when the table grows."""
        while (slots := self._find(rooms)) is None:
            self._grow()
        return slots

    def _find(self, rooms: Array) -> Array | None:
        """The slots, or None if the table would be more than half full. Long runs of a room are looked up once."""
        xp = self.xp
        new = openings(xp, rooms)
        starts = xp.flatnonzero(new)
        runs = 2 * len(starts) < len(rooms)
        wanted = rooms[starts] if runs else rooms
        slots = self._home(wanted)
        missed = xp.flatnonzero(self.keys[slots] != wanted)
        while len(missed):
            at, sought = slots[missed], wanted[missed]
            free = self.keys[at] == EMPTY
            if bool(free.any()):
                claims = sought[free]
                if 2 * (self.count + len(xp.unique(claims))) > len(self.keys):
                    return None
                claimed, first = xp.unique(at[free], return_index=True)
                self.keys[claimed] = claims[first]  # of several rooms that claim a slot, one gets it
                self.count += len(claimed)
            missed = missed[self.keys[at] != sought]
            slots[missed] = (slots[missed] + 1) & (len(self.keys) - 1)
        return slots[xp.cumsum(new) - 1] if runs else slots

    def _home(self, rooms: Array) -> Array:
        """Where to look for a room first: the upper bits of a product."""
        bits = len(self.keys).bit_length() - 1
        return ((rooms.view(np.uint64) * np.uint64(GOLDEN)) >> np.uint64(64 - bits)).astype(np.int32)

    def _grow(self) -> None:
        """Double the table; every room moves to its new slot with all that is known of it."""
        old = self.xp.flatnonzero(self.keys != EMPTY)
        rooms, state, marks = self.keys[old], self.state[old], self.marks[old]
        times = (self.moved[old], self.clock[old]) if self.timed else None
        self._allocate(2 * len(self.keys))
        self.count = 0
        slots = self.number(rooms)
        self.state[slots], self.marks[slots] = state, marks
        if times is not None:
            self.moved[slots], self.clock[slots] = times

    # ----------------------------------------------------------------------------------------------------------------
    # Folding

    def fold(self, slots: Array, codes: Array, times: Array | None = None) -> None:
        """Fold in one block of events whose rooms have been numbered."""
        xp = self.xp
        if times is not None:
            slots, order = self._group(slots)
            codes, times = codes[order], times[order]
            self._follow(slots, codes, times)
        if bool((codes >= SILENT).any()):
            position = xp.flatnonzero(codes < SILENT)
            slots, codes = slots[position], codes[position]
            times = None if times is None else times[position]
        if not len(codes):
            return
        starts = xp.flatnonzero(openings(xp, slots))
        if not _grouped(xp, slots, starts):
            slots, order = self._group(slots)
            codes = codes[order]
            times = None if times is None else times[order]
            starts = xp.flatnonzero(openings(xp, slots))
        t = self._tables
        looked = TERMINALS | (_WAITING if self.timed else 0)
        slots = slots.astype(np.int32, copy=False)
        mark_rooms(xp, self.marks, self.state, (t.left, t.suspicious, t.again, t.clears), slots, codes, looked)
        left = lookup(xp, t.left, codes)
        if times is not None:
            before = xp.zeros(len(left), np.uint8)
            before[1:] = left[:-1]
            before[starts] = self.state[slots[starts]]
            changed = xp.flatnonzero((left != before) & (times == times))
            scatter_max(xp, self.moved, slots[changed], times[changed])
        self.state[slots[starts]] = left[_ends(xp, starts, len(slots))]

    def _follow(self, slots: Array, codes: Array, times: Array) -> None:
        """When something was done to each room, given the events room by room.

        A room with a time before the one of an earlier line is suspect: the judge decides which order counts.
        """
        xp = self.xp
        acted = xp.flatnonzero((lookup(xp, self._tables.polls, codes) == 0) & (times == times))
        scatter_max(xp, self.moved, slots[acted], times[acted])
        known = xp.flatnonzero(times == times)
        slots, times = slots[known], times[known]
        starts = xp.flatnonzero(openings(xp, slots))
        if not len(starts):
            return
        before = xp.zeros(len(times), np.float64)
        before[1:] = times[:-1]
        before[starts] = self.clock[slots[starts]]
        back = slots[xp.flatnonzero(times < before)]
        self.marks[back[openings(xp, back)]] |= np.uint32(SUSPECT)
        self.clock[slots[starts]] = times[_ends(xp, starts, len(times))]

    def _group(self, slots: Array) -> tuple[Array, Array]:
        """The slots in order, and the positions that they come from; events of one room stay in order."""
        bits = (len(slots) - 1).bit_length()
        narrow = len(self.keys) << bits <= 1 << 32
        dtype = np.uint32 if narrow else np.uint64  # half the width sorts in half the time
        key = slots.astype(dtype)
        key <<= dtype(bits)
        key |= self.xp.arange(len(slots), dtype=dtype)
        key = self.xp.sort(key)
        order = key & dtype((1 << bits) - 1)
        key >>= dtype(bits)
        return key.astype(np.int64), order.astype(np.int64)

    # ----------------------------------------------------------------------------------------------------------------
    # What stands at the end

    def silent_since(self, time: float) -> None:
        """Rooms that still have an entry, and to which nothing has happened after that time, are suspect."""
        silent = (self.moved <= time) & (self.state & np.uint8(_PRESENT) != 0) & (self.keys != EMPTY)
        self.marks[silent] |= np.uint32(SUSPECT)

    def is_suspect(self, rooms: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which rooms, all of them seen before, have to be judged."""
        if self.no_key:
            found: npt.NDArray[np.bool_] = rooms == EMPTY
            found[~found] = self._are_suspect(rooms[~found])
            return found
        return self._are_suspect(rooms)

    def _are_suspect(self, rooms: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        found = np.zeros(len(rooms), bool)
        for start in range(0, len(rooms), self.block):
            part = slice(start, start + self.block)
            found[part] = to_host(self.marks[self.number(self.xp.asarray(rooms[part]))]) >= SUSPECT
        return found

    def suspects(self) -> npt.NDArray[np.int64]:
        """The keys of the rooms that have to be judged, in order."""
        found: npt.NDArray[np.int64] = to_host(self.keys[self.xp.flatnonzero(self.marks >= SUSPECT)])
        return np.sort(np.append(found, np.int64(EMPTY)) if self.no_key else found)

    def final(self) -> dict[str | None, int]:
        """How many rooms were last observed in each status; None: in none, or not since their last create.

        Suspects are left to the judge.
        """
        mine = (self.keys != EMPTY) & (self.marks < SUSPECT)
        counts = to_host(self.xp.bincount(self.state[mine], minlength=UNSAID + 1))
        return {None: int(counts[UNKNOWN] + counts[UNSAID])} | {
            status: int(counts[1 << bit]) for bit, status in enumerate(STATUSES)
        }

    def looks(self) -> dict[str, int]:
        """By law, the rooms in which it could have been broken; suspects are left to the judge."""
        mine = (self.keys != EMPTY) & (self.marks < SUSPECT)
        history, state = self.marks[mine].astype(np.uint8), self.state[mine]
        failed = 1 << TERMINAL[0]
        settled = (history & np.uint8(CLEARED) != 0) & (state == np.uint8(CLEARED))
        found = {
            "terminal-sticky": history & np.uint8(TERMINALS), "no-resurrection": history & np.uint8(failed),
            "success-not-overwritten": history & np.uint8(TERMINALS ^ failed),
            "room-reusable": history & np.uint8(AGAIN),
            "no-ghost": history & np.uint8(CLEARED), "settlement": settled,
        }  # fmt: skip
        if self.timed:
            ended = settled | (state & np.uint8(TERMINALS) != 0)
            found["no-pin"] = ended & (history & np.uint8(_WAITING) != 0) & (self.moved[mine] > -np.inf)
        counts = {law: int((rooms != 0).sum()) for law, rooms in found.items()}
        return {law: count for law, count in counts.items() if count}


def _ends(xp: ModuleType, starts: Array, count: int) -> Array:
    """Where runs end that begin there."""
    ends = xp.zeros(len(starts), np.int64)
    ends[:-1] = starts[1:] - 1
    ends[-1] = count - 1
    return ends


def _grouped(xp: ModuleType, slots: Array, starts: Array) -> bool:
    """Whether no room has two runs; not looked for where runs are so short that sorting is as quick."""
    if 2 * len(starts) > len(slots):
        return False
    return bool(openings(xp, xp.sort(slots[starts])).all())
