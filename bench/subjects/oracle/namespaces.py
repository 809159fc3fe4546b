"""No dict at all: rooms and requests are attributes, as in a manager that grew out of a script."""

import threading
from types import SimpleNamespace

from kvlatch.spec.status import KVPoll


class Adapter:
    lock = None

    def __init__(self, probe):
        self.probe = probe
        self.lock = threading.RLock()
        self.rooms = SimpleNamespace()

    def of(self, room, request):
        name = f"request_{room}_{request}"
        if not hasattr(self.rooms, name):
            fresh = SimpleNamespace(status=None, running=0, good=0, chunks=None, gone=False, informed=False)
            setattr(self.rooms, name, fresh)
        last = f"last_{room}"
        setattr(self.rooms, last, max(request, getattr(self.rooms, last, 0)))
        return getattr(self.rooms, name)

    def set_status(self, room, request, status, only_from):
        with self.lock:
            it = self.of(room, request)
            if not it.gone and it.status in only_from:
                it.status = status
            return it.status

    def create(self, room, request):
        self.set_status(room, request, KVPoll.Bootstrapping, [None])

    def metadata(self, room, request):
        self.set_status(room, request, KVPoll.WaitingForInput, [None, KVPoll.Bootstrapping])

    def abort(self, room, request):
        live = [KVPoll.Bootstrapping, KVPoll.WaitingForInput, KVPoll.Transferring]
        self.set_status(room, request, KVPoll.Failed, live)

    def abort_notice(self, room, request):
        self.abort(room, request)

    def start(self, room, request, chunk, last):
        with self.lock:
            may = [KVPoll.WaitingForInput, KVPoll.Transferring]
            if self.set_status(room, request, KVPoll.Transferring, may) != KVPoll.Transferring:
                return False
            self.of(room, request).running += 1
            return True

    def finish(self, room, request, chunk, last, ok):
        with self.lock:
            it = self.of(room, request)
            it.running -= 1
            it.good += ok
            it.chunks = chunk + 1 if last else it.chunks
            if it.gone:
                self.release_if_idle(room, request)
                return
            status = KVPoll.Transferring
            if not ok:
                status = KVPoll.Failed
            elif it.good == it.chunks:
                status = KVPoll.Success
            self.set_status(room, request, status, [KVPoll.Transferring])
            if it.status != KVPoll.Transferring and not it.informed:
                it.informed = True
                self.probe.tell(room, request, it.status)

    def release_if_idle(self, room, request):
        if not self.of(room, request).running:
            self.probe.release(room, request)

    def poll(self, room, request):
        with self.lock:
            return self.of(room, request).status

    def clear(self, room, request):
        with self.lock:
            it = self.of(room, request)
            it.gone = True
            it.status = None
            self.release_if_idle(room, request)

    def status(self, room):
        last = getattr(self.rooms, f"last_{room}", None)
        it = getattr(self.rooms, f"request_{room}_{last}", None)
        return None if it is None else it.status
