"""Pages go back in batches, by a thread that waits in a Condition of the manager's one lock."""

import threading

from rules import Handlers, Request, step


class Adapter(Handlers):
    def __init__(self, probe):
        super().__init__(probe)
        self.lock = threading.Lock()
        self.more = threading.Condition(self.lock)
        self.due = []
        self.closed = False
        self.thread = threading.Thread(target=self.clean, daemon=True)
        self.thread.start()

    def do(self, room, request, event, *details):
        with self.lock:
            now, answer, todo = step(self.requests.get((room, request), Request()), event, *details)
            self.requests[room, request] = now
            self.newest[room] = max(request, self.newest.get(room, 0))
            self.effects(room, request, [effect for effect in todo if effect != ("release",)])
            if ("release",) in todo:
                self.due.append((room, request))
                self.more.notify()
            return answer

    def clean(self):
        while True:
            with self.more:
                while not self.due and not self.closed:
                    self.more.wait()
                if self.closed:
                    return
                batch, self.due = self.due, []
            for key in batch:
                self.probe.release(*key)

    def close(self):
        with self.more:
            self.closed = True
            self.more.notify_all()
        self.thread.join()
