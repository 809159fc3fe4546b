"""A sequence lock: writers count up before and after, and a poll that has seen an odd or another count looks again."""

import threading
import time

from rules import Handlers, Request, step

from kvlatch.spec.status import KVPoll


class Adapter(Handlers):
    def __init__(self, probe):
        super().__init__(probe)
        self.lock = threading.Lock()
        self.count = 0
        self.shown = {}

    def do(self, room, request, event, *details):
        with self.lock:
            now, answer, todo = step(self.requests.get((room, request), Request()), event, *details)
            self.count += 1
            self.requests[room, request] = now
            self.newest[room] = max(request, self.newest.get(room, 0))
            self.shown[room, request] = now.status
            self.count += 1
            self.effects(room, request, todo)
            return answer

    def poll(self, room, request):
        while True:
            count = self.count
            status = self.shown.get((room, request))
            if count % 2 == 0 and self.count == count:
                return None if status is None else KVPoll(status)
            time.sleep(0)  # another thread is to come in: what this manager is about
