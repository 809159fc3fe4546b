"""A ThreadPoolExecutor with four threads, and a lock between them."""

import threading
from concurrent.futures import ThreadPoolExecutor

from rules import Handlers, Request, step


class Adapter(Handlers):
    def __init__(self, probe):
        super().__init__(probe)
        self.lock = threading.Lock()
        self.pool = ThreadPoolExecutor(max_workers=4, thread_name_prefix="status")

    def handle(self, room, request, event, *details):
        with self.lock:
            now, answer, todo = step(self.requests.get((room, request), Request()), event, *details)
            self.requests[room, request] = now
            self.newest[room] = max(request, self.newest.get(room, 0))
            self.effects(room, request, todo)
            return answer

    def do(self, *call):
        return self.pool.submit(self.handle, *call).result()

    def close(self):
        self.pool.shutdown()
