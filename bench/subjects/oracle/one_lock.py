"""One lock around everything, plain dicts, written out by hand."""

import threading
from collections import Counter

from kvlatch.spec.status import KVPoll

FAILED, BOOTSTRAPPING, WAITING, TRANSFERRING, SUCCESS = KVPoll
OVER = (FAILED, SUCCESS)


class Manager:
    """Statuses by (room, request); what has been cleared is never written again."""

    def __init__(self, on_tell, on_release):
        self.on_tell, self.on_release = on_tell, on_release
        self.lock = threading.Lock()
        self.statuses = {}
        self.newest = {}
        self.infos = set()
        self.cleared = set()
        self.told = set()
        self.reading = Counter()
        self.arrived = Counter()
        self.total = {}

    def create(self, room, request):
        key = room, request
        with self.lock:
            self.newest[room] = max(request, self.newest.get(room, 0))
            if key not in self.cleared and key not in self.statuses:
                self.statuses[key] = BOOTSTRAPPING

    def metadata(self, room, request):
        key = room, request
        with self.lock:
            if key in self.cleared:
                return
            self.newest[room] = max(request, self.newest.get(room, 0))
            self.infos.add(key)
            if self.statuses.get(key) in (None, BOOTSTRAPPING):
                self.statuses[key] = WAITING

    def fail(self, room, request):
        key = room, request
        with self.lock:
            current = self.statuses.get(key)
            if current is not None and current not in OVER:
                self.statuses[key] = FAILED

    def start(self, room, request):
        key = room, request
        with self.lock:
            if key not in self.infos or self.statuses.get(key) not in (WAITING, TRANSFERRING):
                return False
            self.statuses[key] = TRANSFERRING
            self.reading[key] += 1
            return True

    def finish(self, room, request, chunk, last, ok):
        key = room, request
        with self.lock:
            self.reading[key] -= 1
            if ok:
                self.arrived[key] += 1
            if last:
                self.total[key] = chunk + 1
            if key not in self.cleared:
                if self.statuses[key] not in OVER:
                    if not ok:
                        self.statuses[key] = FAILED
                    elif self.arrived[key] == self.total.get(key):
                        self.statuses[key] = SUCCESS
                self.tell(key)
            self.drain(key)

    def tell(self, key):
        if self.statuses[key] in OVER and key not in self.told:
            self.told.add(key)
            self.on_tell(*key, self.statuses[key])

    def poll(self, room, request):
        with self.lock:
            return self.statuses.get((room, request))

    def clear(self, room, request):
        key = room, request
        with self.lock:
            self.statuses.pop(key, None)
            self.infos.discard(key)
            self.cleared.add(key)
            self.drain(key)

    def drain(self, key):
        if key in self.cleared and self.reading[key] == 0:
            self.on_release(*key)


class Adapter:
    def __init__(self, probe):
        self.manager = Manager(probe.tell, probe.release)

    def create(self, room, request):
        self.manager.create(room, request)

    def metadata(self, room, request):
        self.manager.metadata(room, request)

    def abort_notice(self, room, request):
        self.manager.fail(room, request)

    def abort(self, room, request):
        self.manager.fail(room, request)

    def start(self, room, request, chunk, last):
        return self.manager.start(room, request)

    def finish(self, room, request, chunk, last, ok):
        self.manager.finish(room, request, chunk, last, ok)

    def poll(self, room, request):
        return self.manager.poll(room, request)

    def clear(self, room, request):
        self.manager.clear(room, request)

    def status(self, room):
        return self.manager.statuses.get((room, self.manager.newest.get(room)))
