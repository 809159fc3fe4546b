"""Many readers or one writer, by a lock made by hand of a Condition."""

import threading
from contextlib import contextmanager

from rules import Handlers, Request, step


class ReadersWriter:
    def __init__(self):
        self.free = threading.Condition(threading.Lock())
        self.readers = 0
        self.writer = False

    @contextmanager
    def reading(self):
        with self.free:
            self.free.wait_for(lambda: not self.writer)
            self.readers += 1
        try:
            yield
        finally:
            with self.free:
                self.readers -= 1
                self.free.notify_all()

    @contextmanager
    def writing(self):
        with self.free:
            self.free.wait_for(lambda: not self.writer and not self.readers)
            self.writer = True
        try:
            yield
        finally:
            with self.free:
                self.writer = False
                self.free.notify_all()


class Adapter(Handlers):
    def __init__(self, probe):
        super().__init__(probe)
        self.lock = ReadersWriter()

    def do(self, room, request, event, *details):
        if event == "poll":
            with self.lock.reading():
                return self.requests.get((room, request), Request()).status
        with self.lock.writing():
            now, answer, todo = step(self.requests.get((room, request), Request()), event, *details)
            self.requests[room, request] = now
            self.newest[room] = max(request, self.newest.get(room, 0))
            self.effects(room, request, todo)
            return answer
