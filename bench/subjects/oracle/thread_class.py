"""A class that is a Thread, one object for each request: it lives until its request is cleared and drained."""

from queue import SimpleQueue
from threading import Lock, Thread

from rules import Handlers, Request, step


class Sender(Thread):
    def __init__(self, perform):
        super().__init__(daemon=True)
        self.inbox = SimpleQueue()
        self.now = Request()
        self.perform = perform
        self.start()

    def run(self):
        while not self.now.released:
            reply, event = self.inbox.get()
            self.now, answer, todo = step(self.now, *event)
            self.perform(todo)
            reply.put(answer)

    def ask(self, *event):
        reply = SimpleQueue()
        self.inbox.put((reply, event))
        return reply.get()


class Adapter(Handlers):
    def __init__(self, probe):
        super().__init__(probe)
        self.lock = Lock()

    def do(self, room, request, *event):
        with self.lock:
            if (room, request) not in self.requests:
                self.requests[room, request] = Sender(lambda todo: self.effects(room, request, todo))
                self.newest[room] = max(request, self.newest.get(room, 0))
            sender = self.requests[room, request]
            if sender.now.released:
                return False if event[0] == "start" else None
            return sender.ask(*event)

    def status(self, room):
        sender = self.requests.get((room, self.newest.get(room)))
        return None if sender is None else sender.now.status
