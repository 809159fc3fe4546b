"""A BoundedSemaphore as the lock, taken and given back by hand."""

import threading

from rules import Handlers, Request, step


class Adapter(Handlers):
    def __init__(self, probe):
        super().__init__(probe)
        self.permit = threading.BoundedSemaphore(1)

    def do(self, room, request, event, *details):
        self.permit.acquire()
        try:
            now, answer, todo = step(self.requests.get((room, request), Request()), event, *details)
            self.requests[room, request] = now
            self.newest[room] = max(request, self.newest.get(room, 0))
            self.effects(room, request, todo)
            return answer
        finally:
            self.permit.release()
