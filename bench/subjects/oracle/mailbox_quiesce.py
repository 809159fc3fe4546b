"""Fire and forget, and a way to wait until all that was posted is done."""

import queue
import threading

from rules import Handlers, Request, step


class Adapter(Handlers):
    def __init__(self, probe):
        super().__init__(probe)
        self.inbox = queue.Queue()
        self.starting = threading.Lock()
        self.thread = None

    def serve(self):
        while True:
            reply, (room, request, event, *details) = self.inbox.get()
            now, answer, todo = step(self.requests.get((room, request), Request()), event, *details)
            self.requests[room, request] = now
            self.newest[room] = max(request, self.newest.get(room, 0))
            self.effects(room, request, todo)
            if reply is not None:
                reply.put(answer)
            self.inbox.task_done()

    def do(self, *call):
        with self.starting:
            if self.thread is None:
                self.thread = threading.Thread(target=self.serve, daemon=True)
                self.thread.start()
        reply = queue.Queue(1) if call[2] in ("poll", "start") else None
        self.inbox.put((reply, call))
        return None if reply is None else reply.get()

    def quiesce(self):
        self.inbox.join()
