"""A thread and a queue for each room, made when the room is first heard of; callers wait for a Future."""

import queue
import threading
from concurrent.futures import Future

from rules import Handlers, Request, step


class Adapter(Handlers):
    def __init__(self, probe):
        super().__init__(probe)
        self.lock = threading.Lock()
        self.inboxes = {}

    def inbox(self, room):
        with self.lock:
            if room not in self.inboxes:
                self.inboxes[room] = queue.Queue()
                threading.Thread(target=self.serve, args=(self.inboxes[room],), daemon=True).start()
            return self.inboxes[room]

    def serve(self, inbox):
        while True:
            future, call = inbox.get()
            future.set_result(self.handle(*call))

    def handle(self, room, request, event, *details):
        now, answer, todo = step(self.requests.get((room, request), Request()), event, *details)
        self.requests[room, request] = now
        self.newest[room] = max(request, self.newest.get(room, 0))
        self.effects(room, request, todo)
        return answer

    def do(self, *call):
        future = Future()
        self.inbox(call[0]).put((future, call))
        return future.result()
