"""Pages go back when the next request is made, not before: there is no other round of the scheduler."""

import threading

from rules import Handlers, Request, step


class Adapter(Handlers):
    def __init__(self, probe):
        super().__init__(probe)
        self.lock = threading.Lock()
        self.due = []

    def do(self, room, request, event, *details):
        with self.lock:
            now, answer, todo = step(self.requests.get((room, request), Request()), event, *details)
            self.requests[room, request] = now
            self.newest[room] = max(request, self.newest.get(room, 0))
            self.effects(room, request, [effect for effect in todo if effect != ("release",)])
            if ("release",) in todo:
                self.due.append((room, request))
            return answer

    def create(self, room, request):
        with self.lock:
            due, self.due = self.due, []
        for key in due:
            self.probe.release(*key)
        super().create(room, request)
