"""The five statuses of a room, and the two ways of having none.

The numbers are those of SGLang's ``KVPoll`` (``disaggregation/base/conn.py``), the same in every published version.
They carry two orders at once, and no numbering can serve both: over time an update wants Failed to win over
everything before it (``max`` puts it at the bottom), over ranks a reduction wants Failed to win as the minimum.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class KVPoll(IntEnum):
    """Status of one request (*room*) while its KV cache moves from prefill to decode."""

    Failed = 0
    Bootstrapping = 1
    WaitingForInput = 2
    Transferring = 3
    Success = 4


TERMINAL: Final = (KVPoll.Failed, KVPoll.Success)
"""A room that reaches one of these is over: nothing that happens later may change what was said."""

ABSENT: Final = "Absent"
"""The table has no entry for the room."""

TOMBSTONE: Final = "Tombstone"
"""The entry was cleared, and the table remembers for which request (its *stamp*)."""

STATUS: Final = (*(status.name for status in KVPoll), ABSENT, TOMBSTONE)
"""Every value that an entry of the status table can have, by name; the first five indices are ``KVPoll``'s."""

F, B, W, T, S = (status.name for status in KVPoll)
"""Names for the rows of the protocol: Failed, Bootstrapping, WaitingForInput, Transferring, Success."""
