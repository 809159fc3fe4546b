"""The same manager with the update of the incident: Failed overrides, else max, and nothing is terminal."""

import test_manager
from manager import FAILED, Manager

from kvlatch import Probe
from kvlatch.spec.status import KVPoll


class MaxManager(Manager):
    def update_status(self, room: int, request: int, status: int) -> int | None:
        if (room, request) in self.done or request < self.request_of.get(room, 0):
            return None
        current = self.request_status.get(room) if self.request_of.get(room) == request else None
        current = status if current is None or status == FAILED else max(current, status)
        self.request_of[room] = request
        self.request_status[room] = current
        return current


class Adapter(test_manager.Adapter):
    def __init__(self, probe: Probe) -> None:
        self.manager = MaxManager(
            probe.release, lambda room, request, status: probe.tell(room, request, KVPoll(status))
        )
        self.manager.request_status = probe.table()
