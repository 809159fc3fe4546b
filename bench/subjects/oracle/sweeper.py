"""A sweeper of the manager's own looks every ten milliseconds what can be given back, for ever."""

import threading
import time

from rules import Handlers, Request, step


class Adapter(Handlers):
    def __init__(self, probe):
        super().__init__(probe)
        self.lock = threading.Lock()
        self.due = set()
        threading.Thread(target=self.sweep, name="sweeper", daemon=True).start()

    def do(self, room, request, event, *details):
        with self.lock:
            now, answer, todo = step(self.requests.get((room, request), Request()), event, *details)
            self.requests[room, request] = now
            self.newest[room] = max(request, self.newest.get(room, 0))
            self.effects(room, request, [effect for effect in todo if effect != ("release",)])
            if ("release",) in todo:
                self.due.add((room, request))
            return answer

    def sweep(self):
        while True:
            time.sleep(0.01)  # what this manager is about: it sweeps now and then
            with self.lock:
                for key in self.due:
                    self.probe.release(*key)
                self.due.clear()
