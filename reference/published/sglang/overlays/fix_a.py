"""Fix A of the incident: a terminal status is sticky. Once Failed or Success is set, no write replaces it.

The rule of the design `fix-a`. Without a lock it is a read and then upstream's own read and store: `+lock` joins them.
"""

from __future__ import annotations

from typing import Any

from sglang.srt.disaggregation.base.conn import KVPoll

TERMINAL = (KVPoll.Failed, KVPoll.Success)


class Manager:
    """First terminal wins."""

    request_status: dict[int, int]

    def update_status(self, bootstrap_room: int, status: int) -> None:
        if self.request_status.get(bootstrap_room) not in TERMINAL:
            parent: Any = super()
            parent.update_status(bootstrap_room, status)
