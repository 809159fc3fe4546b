"""Flat combining: a call is put on a deque, and whoever has the lock does all that lie there."""

import threading
from collections import deque

from rules import Handlers, Request, step


class Adapter(Handlers):
    def __init__(self, probe):
        super().__init__(probe)
        self.waiting = deque()
        self.lock = threading.Lock()

    def do(self, *call):
        answers = []
        self.waiting.append((call, answers))
        with self.lock:
            while self.waiting:
                (room, request, event, *details), to = self.waiting.popleft()
                now, answer, todo = step(self.requests.get((room, request), Request()), event, *details)
                self.requests[room, request] = now
                self.newest[room] = max(request, self.newest.get(room, 0))
                self.effects(room, request, todo)
                to.append(answer)
        return answers[0]
