"""Event sourcing: an event is appended to the log, and the state is the fold of what was appended since."""

import threading

from rules import Handlers, Request, step


class Adapter(Handlers):
    def __init__(self, probe):
        super().__init__(probe)
        self.log = []
        self.folded = 0
        self.lock = threading.Lock()

    def do(self, *event):
        with self.lock:
            self.log.append(event)
            return self.fold()

    def fold(self):
        answer = None
        while self.folded < len(self.log):
            room, request, event, *details = self.log[self.folded]
            self.folded += 1
            now, answer, todo = step(self.requests.get((room, request), Request()), event, *details)
            self.requests[room, request] = now
            self.newest[room] = max(request, self.newest.get(room, 0))
            self.effects(room, request, todo)
        return answer
