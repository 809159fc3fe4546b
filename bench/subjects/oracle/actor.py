"""An actor: one thread owns the tables and serves a queue; a caller waits for its answer."""

import queue
import threading
from concurrent.futures import Future

from rules import Handlers, Request, step


class Adapter(Handlers):
    def __init__(self, probe):
        super().__init__(probe)
        self.inbox = queue.Queue()
        self.thread = threading.Thread(target=self.serve, name="status-actor", daemon=True)
        self.thread.start()

    def serve(self):
        while (message := self.inbox.get()) is not None:
            future, call = message
            try:
                future.set_result(self.handle(*call))
            except Exception as error:  # noqa: BLE001  # it is the caller's
                future.set_exception(error)

    def handle(self, room, request, event, *details):
        now, answer, todo = step(self.requests.get((room, request), Request()), event, *details)
        self.requests[room, request] = now
        self.newest[room] = max(request, self.newest.get(room, 0))
        self.effects(room, request, todo)
        return answer

    def do(self, *call):
        future = Future()
        self.inbox.put((future, call))
        return future.result()

    def close(self):
        self.inbox.put(None)
        self.thread.join()
