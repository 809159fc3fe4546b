"""Events of a status table as one byte each: what was done, and what the table showed."""

from __future__ import annotations

from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from kvlatch.reference.logs.events import STATUSES, TABLE_OPS, Event
from kvlatch.spec.status import KVPoll

Number = TypeVar("Number", int, npt.NDArray[np.uint8])

UNSAID: Final = len(KVPoll)
"""The incoming status of a write that does not say it, as a number beside ``KVPoll``'s."""
UNOBSERVED: Final = len(STATUSES)
"""The observed status of an event that does not say it, as a number beside those of ``STATUSES``."""
_WRITE: Final = TABLE_OPS.index("write")
_ACTIONS: Final = len(TABLE_OPS) + UNSAID
CODES: Final = _ACTIONS * (UNOBSERVED + 1)
SILENT: Final = UNOBSERVED * _ACTIONS + TABLE_OPS.index("poll")
"""Events from this code on say nothing about the room's status. An unobserved create or clear still does."""


def encode(op: Number, incoming: Number, observed: Number) -> Number:
    """Events as bytes, ints and arrays alike: ``op`` indexes ``TABLE_OPS``, ``observed`` is below or UNOBSERVED.

    ``incoming`` (below or UNSAID) counts for a write and is ignored elsewhere.
    """
    code: Number = observed * _ACTIONS + op + (op == _WRITE) * (UNSAID - incoming)
    return code


def decode(code: int) -> Event:
    """The event that a byte stands for, of room 0 on line 0."""
    observed, action = divmod(code, _ACTIONS)
    incoming = KVPoll(UNSAID - (action - _WRITE)).name if action > _WRITE else None
    return Event(0, 0, TABLE_OPS[min(action, _WRITE)], (*STATUSES, None)[observed], incoming)


EVENTS: Final = tuple(decode(code) for code in range(CODES))
