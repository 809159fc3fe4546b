"""A part of the rooms of a log, for one of several processes that check it together.

Each process reads the whole log, judges the rooms of its part, and of all others takes in only what concerns a table as
a whole: what is logged there, and how long (``Glimpse``). No law is about two rooms, so the answers of the parts add up
to those of the whole (``report.py``).
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Final, NamedTuple

import attrs
import numpy as np
import numpy.typing as npt

from kvlatch.reference.logs.events import Event, Room

_SPREAD: Final = 0x9E3779B97F4A7C15
"""2**64 over the golden ratio, as in ``rooms.py``: the middle bits of a product with it are spread well."""
_BITS, _SHIFT = (1 << 64) - 1, 24
_KEPT: Final = (1 << 31) - 1


class Glimpse(NamedTuple):
    """What an event of another part says of its table.

    ``status`` is what the table showed, ``incoming`` what was written, told or concluded, ``time`` in seconds. One of
    several events has the latest of their times, and ``at``, the time of the last one, which is on ``line``.
    """

    node: str | None
    rank: str | None
    op: str
    status: str | None
    incoming: str | None
    time: float | None
    line: int
    at: float | None


class Batch(NamedTuple):
    """Events read together, what others say of their tables, and how much of the log has been read by then."""

    events: list[Event]
    others: list[Glimpse]
    done: int


class Stop(NamedTuple):
    """Where a check has ended: at this line (or row) of that log, counted from 0, because of this fault."""

    log: int
    line: int
    fault: str


@attrs.frozen
class Part:
    """The rooms of part ``number`` (from 0) of ``of``."""

    number: int = attrs.field()
    of: int = attrs.field()

    @number.validator
    def _is_one(self, _attribute: object, value: int) -> None:
        if not 0 <= value < self.of:
            raise ValueError(f"parts are numbered from 0: there is no part {value} of {self.of}")

    def __contains__(self, room: Room) -> bool:
        if isinstance(room, str):
            return zlib.crc32(room.encode("utf-8", "surrogatepass")) % self.of == self.number
        return (((room * _SPREAD & _BITS) >> _SHIFT) & _KEPT) % self.of == self.number

    def of_keys(self, rooms: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which rooms are in it; int64 of shape (n,), the bits of unsigned ids."""
        spread = (rooms.view(np.uint64) * np.uint64(_SPREAD)) >> np.uint64(_SHIFT)
        mine: npt.NDArray[np.bool_] = (spread & np.uint64(_KEPT)) % np.uint64(self.of) == np.uint64(self.number)
        return mine

    def of_names(self, rooms: Sequence[str | None]) -> npt.NDArray[np.bool_]:
        """Which rooms are in it, where ids are strings; None, which is no id, is in the first part."""
        known = {room: (self.number == 0 if room is None else room in self) for room in set(rooms)}
        return np.fromiter((known[room] for room in rooms), bool, len(rooms))
