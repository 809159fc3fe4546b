"""Optimistic: work on a copy, then compare and swap the request's version; begin again if somebody was faster."""

import threading

from rules import Handlers, Request, step


class Adapter(Handlers):
    def __init__(self, probe):
        super().__init__(probe)
        self.versions = {}
        self.swap_lock = threading.Lock()

    def read(self, key):
        with self.swap_lock:
            return self.versions.get(key, 0), self.requests.get(key, Request())

    def swap(self, key, version, now, todo):
        room, request = key
        with self.swap_lock:
            if self.versions.get(key, 0) != version:
                return False
            self.versions[key] = version + 1
            self.requests[key] = now
            self.newest[room] = max(request, self.newest.get(room, 0))
            self.effects(room, request, todo)
            return True

    def do(self, room, request, event, *details):
        while True:
            version, before = self.read((room, request))
            now, answer, todo = step(before, event, *details)
            if self.swap((room, request), version, now, todo):
                return answer
