"""Fire and forget: handlers post to the manager's thread and go on; only poll and start wait for their answers."""

import queue
import threading

from rules import Handlers, Request, step


class Adapter(Handlers):
    def __init__(self, probe):
        super().__init__(probe)
        self.inbox = queue.SimpleQueue()
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            reply, (room, request, event, *details) = self.inbox.get()
            now, answer, todo = step(self.requests.get((room, request), Request()), event, *details)
            self.requests[room, request] = now
            self.newest[room] = max(request, self.newest.get(room, 0))
            self.effects(room, request, todo)
            if reply is not None:
                reply.put(answer)

    def do(self, *call):
        reply = queue.SimpleQueue() if call[2] in ("poll", "start") else None
        self.inbox.put((reply, call))
        return None if reply is None else reply.get()
