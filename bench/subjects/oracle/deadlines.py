"""Requests that wait too long for decode fail by themselves: poll looks at the clock, as a scheduler's loop does."""

import threading
import time

from kvlatch.spec.status import KVPoll

LIMIT = 300.0  # seconds from creation to decode's metadata


class Request:
    def __init__(self):
        self.status = None
        self.born = time.monotonic()
        self.reading = self.arrived = 0
        self.total = None
        self.cleared = self.told = False

    def fail(self):
        if self.status not in (None, KVPoll.Failed, KVPoll.Success):
            self.status = KVPoll.Failed


class Adapter:
    def __init__(self, probe):
        self.probe = probe
        self.lock = threading.Lock()
        self.requests = {}
        self.newest = {}

    def of(self, room, request):
        if (room, request) not in self.requests:
            self.requests[room, request] = Request()
            self.newest[room] = max(request, self.newest.get(room, 0))
        return self.requests[room, request]

    def create(self, room, request):
        with self.lock:
            it = self.of(room, request)
            if it.status is None and not it.cleared:
                it.status, it.born = KVPoll.Bootstrapping, time.monotonic()

    def metadata(self, room, request):
        with self.lock:
            it = self.of(room, request)
            if it.status in (None, KVPoll.Bootstrapping) and not it.cleared:
                it.status = KVPoll.WaitingForInput

    def abort_notice(self, room, request):
        with self.lock:
            self.of(room, request).fail()

    def abort(self, room, request):
        with self.lock:
            self.of(room, request).fail()

    def start(self, room, request, chunk, last):
        with self.lock:
            it = self.of(room, request)
            if it.status not in (KVPoll.WaitingForInput, KVPoll.Transferring):
                return False
            it.status = KVPoll.Transferring
            it.reading += 1
            return True

    def finish(self, room, request, chunk, last, ok):
        with self.lock:
            it = self.of(room, request)
            it.reading -= 1
            it.arrived += ok
            if last:
                it.total = chunk + 1
            if it.cleared:
                self.drain(room, request)
                return
            if not ok:
                it.fail()
            elif it.arrived == it.total and it.status == KVPoll.Transferring:
                it.status = KVPoll.Success
            if it.status in (KVPoll.Failed, KVPoll.Success) and not it.told:
                it.told = True
                self.probe.tell(room, request, it.status)

    def poll(self, room, request):
        with self.lock:
            it = self.of(room, request)
            if it.status == KVPoll.Bootstrapping and time.monotonic() - it.born > LIMIT:
                it.fail()
            return it.status

    def clear(self, room, request):
        with self.lock:
            it = self.of(room, request)
            it.status, it.cleared = None, True
            self.drain(room, request)

    def drain(self, room, request):
        if not self.of(room, request).reading:
            self.probe.release(room, request)

    def status(self, room):
        it = self.requests.get((room, self.newest.get(room)))
        return None if it is None else it.status
