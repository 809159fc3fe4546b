"""Tickets: what is known of one request; a shelf finds them."""

import threading

from shop.state import Stage


class Ticket:
    def __init__(self, on_end, on_free):
        self._lock = threading.Lock()
        self._stage = None
        self._moving = 0
        self._moved = set()
        self._chunks = None
        self._ended = False
        self._on_end, self._on_free = on_end, on_free

    @property
    def stage(self):
        return self._stage

    def open(self):
        with self._lock:
            self._stage = self._stage or Stage.NEW

    def ready(self):
        with self._lock:
            if self._stage in (None, Stage.NEW):
                self._stage = Stage.READY

    def give_up(self):
        with self._lock:
            if self._stage is not None and not self._stage.final:
                self._stage = Stage.BROKEN

    def take(self):
        with self._lock:
            if self._stage not in (Stage.READY, Stage.MOVING):
                return False
            self._stage = Stage.MOVING
            self._moving += 1
            return True

    def put(self, chunk, last, ok):
        with self._lock:
            self._moving -= 1
            if ok:
                self._moved.add(chunk)
            if last:
                self._chunks = chunk + 1
            if self._stage is Stage.MOVING:
                if not ok:
                    self._stage = Stage.BROKEN
                elif len(self._moved) == self._chunks:
                    self._stage = Stage.DONE
            if self._stage in (Stage.DONE, Stage.BROKEN) and not self._ended:
                self._ended = True
                self._on_end(self._stage)
            self._free()

    def close(self):
        with self._lock:
            self._stage = Stage.GONE
            self._free()

    def _free(self):
        if self._stage is Stage.GONE and not self._moving:
            self._on_free()


class Shelf:
    def __init__(self, on_end, on_free):
        self._tickets = {}
        self._lock = threading.Lock()
        self._on_end, self._on_free = on_end, on_free

    def ticket(self, room, request):
        key = room, request
        with self._lock:
            if key not in self._tickets:
                self._tickets[key] = Ticket(lambda stage: self._on_end(*key, stage), lambda: self._on_free(*key))
            return self._tickets[key]

    def newest(self, room):
        mine = [request for number, request in list(self._tickets) if number == room]
        return self._tickets[room, max(mine)] if mine else None
