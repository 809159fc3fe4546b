"""A Condition with its default lock, which may be entered again; whoever waits for a change is woken."""

import threading

from rules import Handlers, Request, step


class Adapter(Handlers):
    def __init__(self, probe):
        super().__init__(probe)
        self.changed = threading.Condition()

    def do(self, room, request, event, *details):
        with self.changed:
            now, answer, todo = step(self.get(room, request), event, *details)
            self.put(room, request, now)
            self.effects(room, request, todo)
            self.changed.notify_all()
            return answer

    def get(self, room, request):
        with self.changed:
            return self.requests.get((room, request), Request())

    def put(self, room, request, now):
        with self.changed:
            self.requests[room, request] = now
            self.newest[room] = max(request, self.newest.get(room, 0))

    def wait_for(self, room, request, statuses, timeout):
        """For the scheduler's idle loop."""
        with self.changed:
            return self.changed.wait_for(lambda: self.get(room, request).status in statuses, timeout)
