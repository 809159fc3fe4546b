"""Other threads' notices lie in an inbox until somebody with the lock, or the scheduler's round, takes them out."""

import threading
from collections import deque

from rules import Handlers, Request, step


class Adapter(Handlers):
    def __init__(self, probe):
        super().__init__(probe)
        self.lock = threading.Lock()
        self.inbox = deque()

    def handle(self, room, request, event, *details):
        now, answer, todo = step(self.requests.get((room, request), Request()), event, *details)
        self.requests[room, request] = now
        self.newest[room] = max(request, self.newest.get(room, 0))
        self.effects(room, request, todo)
        return answer

    def drain(self):
        while self.inbox:
            self.handle(*self.inbox.popleft())

    def do(self, *call):
        if call[2] in ("metadata", "abort_notice"):
            self.inbox.append(call)
            return None
        with self.lock:
            self.drain()
            return self.handle(*call)

    def tick(self):
        with self.lock:
            self.drain()
