"""Work goes to a pool of two; pages and words to decode go out in a Future's done callback."""

import threading
from concurrent.futures import ThreadPoolExecutor

from rules import Handlers, Request, step


class Adapter(Handlers):
    def __init__(self, probe):
        super().__init__(probe)
        self.lock = threading.Lock()
        self.pool = ThreadPoolExecutor(max_workers=2)

    def handle(self, room, request, event, *details):
        with self.lock:
            now, answer, todo = step(self.requests.get((room, request), Request()), event, *details)
            self.requests[room, request] = now
            self.newest[room] = max(request, self.newest.get(room, 0))
            return answer, todo

    def do(self, room, request, event, *details):
        future = self.pool.submit(self.handle, room, request, event, *details)
        future.add_done_callback(lambda done: self.effects(room, request, done.result()[1]))
        return future.result()[0]

    def close(self):
        self.pool.shutdown()
