"""Event sourcing without a state: the log of a request is folded from its beginning whenever somebody asks."""

import threading
from collections import defaultdict

from rules import Handlers, Request, step

from kvlatch.spec.status import KVPoll


class Adapter(Handlers):
    def __init__(self, probe):
        super().__init__(probe)
        self.logs = defaultdict(list)
        self.lock = threading.Lock()

    def fold(self, room, request):
        now, answer, todo = Request(), None, []
        for event in self.logs[room, request]:
            now, answer, todo = step(now, *event)
        return now, answer, todo

    def do(self, room, request, *event):
        with self.lock:
            if event == ("poll",):
                return self.fold(room, request)[0].status
            self.logs[room, request].append(event)
            self.newest[room] = max(request, self.newest.get(room, 0))
            _, answer, todo = self.fold(room, request)
            self.effects(room, request, todo)
            return answer

    def status(self, room):
        if room not in self.newest:
            return None
        status = self.fold(room, self.newest[room])[0].status
        return None if status is None else KVPoll(status)
