"""A generator for each request is its state machine: events are sent into it, under the lock of its room."""

import threading
from collections import defaultdict

from rules import Handlers, Request, step

from kvlatch.spec.status import KVPoll


def machine():
    now, out = Request(), None
    while True:
        event = yield out, now.status
        now, answer, todo = step(now, *event)
        out = answer, todo


class Adapter(Handlers):
    def __init__(self, probe):
        super().__init__(probe)
        self.guard = threading.Lock()
        self.locks = defaultdict(threading.Lock)
        self.machines = {}
        self.shown = {}

    def do(self, room, request, event, *details):
        with self.guard:
            lock = self.locks[room]
        with lock:
            one = self.machines.get((room, request))
            if one is None:
                one = self.machines[room, request] = machine()
                next(one)
            (answer, todo), status = one.send((event, *details))
            self.newest[room] = max(request, self.newest.get(room, 0))
            self.shown[room, request] = status
            self.effects(room, request, todo)
            return answer

    def status(self, room):
        status = self.shown.get((room, self.newest.get(room)))
        return None if status is None else KVPoll(status)
