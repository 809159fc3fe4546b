"""Immutable snapshots: a writer makes a new mapping under the lock and swaps it in; readers take no lock."""

import threading
from types import MappingProxyType

from rules import Handlers, Request, step


class Adapter(Handlers):
    def __init__(self, probe):
        super().__init__(probe)
        self.requests = MappingProxyType({})
        self.newest = MappingProxyType({})
        self.writing = threading.Lock()

    def do(self, room, request, event, *details):
        if event == "poll":
            snapshot = self.requests
            return snapshot[room, request].status if (room, request) in snapshot else None
        with self.writing:
            now, answer, todo = step(self.requests.get((room, request), Request()), event, *details)
            self.effects(room, request, todo)
            newest = max(request, self.newest.get(room, 0))
            self.newest = MappingProxyType(dict(self.newest) | {room: newest})
            self.requests = MappingProxyType(dict(self.requests) | {(room, request): now})
            return answer
