"""A small status manager, as somebody might have written it. It knows nothing of kvlatch."""

import threading
from collections import Counter
from collections.abc import Callable

FAILED, BOOTSTRAPPING, WAITING, TRANSFERRING, SUCCESS = range(5)


class Manager:
    """The status of each room: the first terminal one stays, and all is under one lock."""

    def __init__(self, on_release: Callable[[int, int], None], on_end: Callable[[int, int, int], None]) -> None:
        self.request_status: dict[int, int] = {}
        self.request_of: dict[int, int] = {}
        self.lock = threading.Lock()
        self.on_release, self.on_end = on_release, on_end
        self.done: set[tuple[int, int]] = set()
        self.told: set[tuple[int, int]] = set()
        self.reading: Counter[tuple[int, int]] = Counter()
        self.arrived: Counter[tuple[int, int]] = Counter()
        self.chunks: dict[tuple[int, int], int] = {}

    def update_status(self, room: int, request: int, status: int) -> int | None:
        """Write a status, unless the request is over; returns what stands."""
        if (room, request) in self.done or request < self.request_of.get(room, 0):
            return None
        current = self.request_status.get(room) if self.request_of.get(room) == request else None
        if current not in (FAILED, SUCCESS):
            current = status if current is None or status == FAILED else max(current, status)
        self.request_of[room] = request
        self.request_status[room] = current
        return current

    def write(self, room: int, request: int, status: int) -> None:
        with self.lock:
            self.update_status(room, request, status)

    def abort_notice(self, room: int, request: int) -> None:
        with self.lock:
            if room in self.request_status and self.request_of[room] == request:
                self.update_status(room, request, FAILED)

    def start_transfer(self, room: int, request: int) -> bool:
        with self.lock:
            if self.update_status(room, request, TRANSFERRING) != TRANSFERRING:
                return False
            self.reading[room, request] += 1
            return True

    def end_transfer(self, room: int, request: int, chunk: int, last: bool, ok: bool) -> None:
        with self.lock:
            self.reading[room, request] -= 1
            self.arrived[room, request] += ok
            if last:
                self.chunks[room, request] = chunk + 1
            status = None
            if not ok:
                status = self.update_status(room, request, FAILED)
            elif self.arrived[room, request] == self.chunks.get((room, request)):
                status = self.update_status(room, request, SUCCESS)
            if status in (FAILED, SUCCESS) and (room, request) not in self.told:
                self.told.add((room, request))
                self.on_end(room, request, status)
            self.release_if_drained(room, request)

    def poll(self, room: int, request: int) -> int | None:
        with self.lock:
            return self.request_status.get(room) if self.request_of.get(room) == request else None

    def clear(self, room: int, request: int) -> None:
        with self.lock:
            self.done.add((room, request))
            if self.request_of.get(room) == request:
                self.request_status.pop(room, None)
            self.release_if_drained(room, request)

    def release_if_drained(self, room: int, request: int) -> None:
        if (room, request) in self.done and not self.reading[room, request]:
            self.on_release(room, request)
