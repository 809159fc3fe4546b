"""A lock for each room, made when the room is first heard of, and found under a lock of its own."""

import threading

from rules import Handlers, Request, step


class Adapter(Handlers):
    def __init__(self, probe):
        super().__init__(probe)
        self.locks = {}
        self.guard = threading.Lock()

    def lock_of(self, room):
        with self.guard:
            if room not in self.locks:
                self.locks[room] = threading.Lock()
            return self.locks[room]

    def do(self, room, request, event, *details):
        with self.lock_of(room):
            now, answer, todo = step(self.requests.get((room, request), Request()), event, *details)
            self.requests[room, request] = now
            self.newest[room] = max(request, self.newest.get(room, 0))
            self.effects(room, request, todo)
            return answer
