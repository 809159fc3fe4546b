"""Pages are given back by a janitor, a thread of the manager's own that waits for work on an Event."""

import threading
from collections import deque

from rules import Handlers, Request, step


class Adapter(Handlers):
    def __init__(self, probe):
        super().__init__(probe)
        self.lock = threading.Lock()
        self.due = deque()
        self.work = threading.Event()
        self.closed = False
        self.thread = threading.Thread(target=self.clean, name="janitor", daemon=True)
        self.thread.start()

    def do(self, room, request, event, *details):
        with self.lock:
            now, answer, todo = step(self.requests.get((room, request), Request()), event, *details)
            self.requests[room, request] = now
            self.newest[room] = max(request, self.newest.get(room, 0))
            self.effects(room, request, [effect for effect in todo if effect != ("release",)])
            if ("release",) in todo:
                self.due.append((room, request))
                self.work.set()
            return answer

    def clean(self):
        while not self.closed:
            self.work.wait()
            self.work.clear()
            while self.due:
                self.probe.release(*self.due.popleft())

    def close(self):
        self.closed = True
        self.work.set()
        self.thread.join()
