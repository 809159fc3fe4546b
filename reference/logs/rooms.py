"""What a log says of each room so far, folded in block by block: NumPy and CuPy by array code, numba beside it.

Room ids are arbitrary 63-bit numbers, in any order. A room's *slot* is its place in an open-addressing hash table, and
everything known of it stands in arrays under that slot: 10 bytes, 20 to 40 a room with the free slots. A block is
grouped by room, and each event then held against the one before it; only the first event of a room in a block needs
what was known before. So a block does not care how much came before it, and any division into blocks gives the same.

The status last observed is kept as a bit, and each event has the set of statuses after which it breaks a law: whether
one does is a single ``&``.
"""

from __future__ import annotations

from types import ModuleType
from typing import Final

import attrs
import numpy as np
import numpy.typing as npt

from kvlatch.reference.arrays.device import Array, scatter_max, to_host
from kvlatch.reference.logs.laws import CODES, EVENTS, LIVE, SILENT, STATUSES, Laws
from kvlatch.spec.status import TERMINAL

REVIVED: Final = 0x80
"""Bit of a room's state: live, and before that terminal, with no create between. The other bits say the status."""
EMPTY: Final = -1
"""The key of a free slot; no room has it."""
BLOCK: Final = 1 << 16
"""Events in a block of the NumPy engine: a block and its keys stay in the second-level cache."""
GPU_BLOCK: Final = 1 << 22
TERMINALS: Final = sum(1 << status for status in TERMINAL)
"""Bits of a terminal state."""
_FEWEST_SLOTS: Final = 1 << 11
GOLDEN: Final = 0x9E3779B97F4A7C15
"""2**64 over the golden ratio: multiplying by it spreads ids, and consecutive ones hardly ever collide."""


@attrs.frozen(eq=False)
class Tables:
    """Three bytes an event, each table uint8 of shape (256,).

    ``left``: the state that the event leaves, 0 if it makes it unknown. ``broken``: the set of states after which it
    breaks a law. ``carry``: REVIVED if the event shows the same request live, and so leaves that bit alone.
    """

    left: npt.NDArray[np.uint8]
    broken: npt.NDArray[np.uint8]
    carry: npt.NDArray[np.uint8]

    @classmethod
    def of(cls, laws: Laws) -> Tables:
        """The tables of these laws; bytes that are no event stand for silent ones."""
        left, broken, carry = np.zeros((3, 256), np.uint8)
        for code, event in enumerate(EVENTS):
            if event.after:
                left[code] = 1 << STATUSES.index(event.after)
            broken[code] = sum(1 << before for before, row in enumerate(laws.broken) if row[code])
            carry[code] = REVIVED if event.observed in LIVE and event.op != "create" else 0
        return cls(left, broken, carry)


@attrs.frozen(eq=False)
class Broken:
    """The first violations of some rooms, as arrays of one length, on the CPU."""

    rooms: npt.NDArray[np.int64]
    lines: npt.NDArray[np.int64]
    before: npt.NDArray[np.uint8]
    """The state that the event met."""
    codes: npt.NDArray[np.uint8]


@attrs.define(eq=False)
class Rooms:
    """The rooms of a log so far, on ``xp`` (NumPy or CuPy). The CuPy side has not been run on a GPU yet.

    With ``quiet`` it also keeps the line of each room's last event: 8 more bytes a slot, and a slower fold.
    """

    tables: Tables
    xp: ModuleType = np
    quiet: bool = False
    block: int = BLOCK
    count: int = attrs.field(init=False, default=0)
    keys: Array = attrs.field(init=False)
    state: Array = attrs.field(init=False)
    violated: Array = attrs.field(init=False)
    last: Array = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._allocate(_FEWEST_SLOTS)

    def _allocate(self, slots: int) -> None:
        self.keys = self.xp.full(slots, EMPTY, np.int64)
        self.state = self.xp.zeros(slots, np.uint8)
        self.violated = self.xp.zeros(slots, bool)
        self.last = self.xp.zeros(slots if self.quiet else 0, np.uint64)

    def feed(self, rooms: npt.NDArray[np.int64], codes: npt.NDArray[np.uint8], line: int) -> list[Broken]:
        """Fold in events on consecutive lines, the first on ``line``; the rooms that they are the first to break.

        ``rooms`` are int64 and not negative, ``codes`` uint8 below ``CODES``; else ValueError, and nothing changes.
        """
        if len(rooms) != len(codes):
            raise ValueError(f"{len(rooms)} rooms and {len(codes)} codes: an event has one of each")
        if rooms.dtype != np.int64 or codes.dtype != np.uint8:
            raise ValueError(f"rooms are int64 and codes uint8, not {rooms.dtype} and {codes.dtype}")
        if len(rooms) and (rooms.min() < 0 or codes.max() >= CODES):
            raise ValueError(f"rooms are not negative and codes are below {CODES}")
        found = []
        for start in range(0, len(rooms), self.block):
            part = self.xp.asarray(rooms[start : start + self.block])
            events = self.xp.asarray(codes[start : start + self.block])
            broken = self.fold(self.number(part), events, line + start)
            if len(broken.rooms):
                found.append(broken)
        return found

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
        new = _new(xp, rooms)
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
        rooms, state, violated = self.keys[old], self.state[old], self.violated[old]
        last = self.last[old] if self.quiet else self.last
        self._allocate(2 * len(self.keys))
        self.count = 0
        slots = self.number(rooms)
        self.state[slots] = state
        self.violated[slots] = violated
        if self.quiet:
            self.last[slots] = last

    # ----------------------------------------------------------------------------------------------------------------
    # Folding

    def fold(self, slots: Array, codes: Array, line: int) -> Broken:
        """Fold in one block of events whose rooms have been numbered; the rooms that it is the first to break."""
        xp = self.xp
        if self.quiet:
            scatter_max(xp, self.last, slots, xp.arange(line, line + len(slots), dtype=np.uint64))
        position = None
        if bool((codes >= SILENT).any()):
            position = xp.flatnonzero(codes < SILENT)
            slots, codes = slots[position], codes[position]
        if not len(codes):
            return _NONE
        starts = xp.flatnonzero(_new(xp, slots))
        if not _grouped(xp, slots, starts):
            slots, order = self._group(slots)
            codes = codes[order]
            position = order if position is None else position[order]
            starts = xp.flatnonzero(_new(xp, slots))
        ends = xp.zeros(len(starts), np.int64)
        ends[:-1] = starts[1:] - 1
        ends[-1] = len(slots) - 1
        rooms = slots[starts]
        known = self.state[rooms]
        left = self._lookup(self.tables.left, codes)
        before = xp.zeros(len(left), np.uint8)
        before[1:] = left[:-1]
        before[starts] = known & (REVIVED - 1)
        broken = before & self._lookup(self.tables.broken, codes)
        hits = xp.flatnonzero(broken != 0)
        now = left[ends]
        revivals = hits[broken[hits] & TERMINALS != 0]
        revived = xp.flatnonzero(known & REVIVED)
        if len(revivals) or len(revived):
            now |= self._revive(codes, starts, ends, revived, revivals)
        self.state[rooms] = now
        return self._first(hits, slots, codes, before, line, position) if len(hits) else _NONE

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

    def _lookup(self, table: npt.NDArray[np.uint8], codes: Array) -> Array:
        if self.xp is np:  # three times as fast as indexing
            return np.frombuffer(codes.tobytes().translate(table.tobytes()), np.uint8)
        return self.xp.asarray(table)[codes]

    def _revive(self, codes: Array, starts: Array, ends: Array, revived: Array, revivals: Array) -> Array:
        """The bit REVIVED for each run, given those that had it, and the events that broke a terminal status.

        A run ends with it if it came with it, or had such an event, and no event from there on drops it: the breaking
        event itself drops it where it is a create or shows a terminal status. Only these few runs are gone through.
        """
        xp = self.xp
        runs_of = xp.searchsorted(starts, revivals, side="right") - 1
        last = xp.flatnonzero(_new(xp, runs_of[::-1])[::-1])
        since = xp.zeros(len(starts), np.int64)
        since[runs_of[last]] = revivals[last]
        since = xp.maximum(since, starts)
        may = xp.zeros(len(starts), bool)
        may[revived] = may[runs_of] = True
        runs = xp.flatnonzero(may)
        lengths = ends[runs] + 1 - since[runs]
        stops = xp.cumsum(lengths)
        steps = xp.arange(int(stops[-1]))
        run = xp.searchsorted(stops, steps, side="right")
        at = since[runs][run] + steps - (stops - lengths)[run]
        dropped = xp.asarray(self.tables.carry)[codes[at]] == 0
        may[runs[run[dropped]]] = False
        return may.astype(np.uint8) * np.uint8(REVIVED)

    def _first(
        self, hits: Array, slots: Array, codes: Array, before: Array, line: int, position: Array | None
    ) -> Broken:
        """The first hit of each room that was not broken before; marks it."""
        hits = hits[_new(self.xp, slots[hits])]
        hits = hits[~self.violated[slots[hits]]]
        broken = slots[hits]
        self.violated[broken] = True
        lines = line + (hits if position is None else position[hits]).astype(np.int64)
        return Broken(*(to_host(array) for array in (self.keys[broken], lines, before[hits], codes[hits])))

    # ----------------------------------------------------------------------------------------------------------------
    # What stands at the end

    def final(self) -> dict[str | None, int]:
        """How many rooms were last observed in each status; None: in none, or not since their last create."""
        known = self.state[self.keys != EMPTY] & (REVIVED - 1)
        counts = to_host(self.xp.bincount(known, minlength=1 << len(STATUSES)))
        return {None: int(counts[0])} | {status: int(counts[1 << bit]) for bit, status in enumerate(STATUSES)}

    def live(self, revived: bool, before: int | None = None) -> tuple[Array, Array, Array]:
        """Rooms that end live, by id: their ids, states and last lines (0 unless ``quiet``).

        Those that were terminal, if ``revived``; and those whose last event is on a line before ``before``, if given.
        """
        xp = self.xp
        state = self.state
        chosen = (state & REVIVED != 0) & revived
        if before is not None:
            chosen |= self.last < before
        live = sum(1 << STATUSES.index(status) for status in LIVE)
        slots = xp.flatnonzero(chosen & (state & live != 0))
        lines = self.last[slots] if self.quiet else xp.zeros(len(slots), np.uint64)
        ids, states, lines = (to_host(array) for array in (self.keys[slots], state[slots], lines))
        order = np.argsort(ids)
        return ids[order], states[order], lines[order]


_NONE: Final = Broken(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.uint8), np.empty(0, np.uint8))


def _new(xp: ModuleType, values: Array) -> Array:
    """Which values differ from the one before them; the first one does."""
    new = xp.ones(len(values), bool)
    new[1:] = values[1:] != values[:-1]
    return new


def _grouped(xp: ModuleType, slots: Array, starts: Array) -> bool:
    """Whether no room has two runs; not looked for where runs are so short that sorting is as quick."""
    if 2 * len(starts) > len(slots):
        return False
    return bool(_new(xp, xp.sort(slots[starts])).all())
