"""Records with __slots__ instead of dict entries, each under its own lock."""

import threading

from kvlatch.spec.status import KVPoll


class Entry:
    __slots__ = ("arrived", "cleared", "lock", "reading", "status", "told", "total")

    def __init__(self):
        self.lock = threading.Lock()
        self.status = None
        self.reading = 0
        self.arrived = 0
        self.total = -1
        self.cleared = False
        self.told = False

    def over(self):
        return self.status in (KVPoll.Failed, KVPoll.Success)


class Adapter:
    __slots__ = ("entries", "lock", "probe")

    def __init__(self, probe):
        self.probe = probe
        self.entries = {}
        self.lock = threading.Lock()

    def entry(self, room, request):
        with self.lock:
            entries = self.entries.setdefault(room, {})
            if request not in entries:
                entries[request] = Entry()
            return entries[request]

    def create(self, room, request):
        entry = self.entry(room, request)
        with entry.lock:
            if entry.status is None and not entry.cleared:
                entry.status = KVPoll.Bootstrapping

    def metadata(self, room, request):
        entry = self.entry(room, request)
        with entry.lock:
            if entry.status in (None, KVPoll.Bootstrapping) and not entry.cleared:
                entry.status = KVPoll.WaitingForInput

    def abort(self, room, request):
        entry = self.entry(room, request)
        with entry.lock:
            if entry.status is not None and not entry.over():
                entry.status = KVPoll.Failed

    abort_notice = abort

    def start(self, room, request, chunk, last):
        entry = self.entry(room, request)
        with entry.lock:
            if entry.status is None or entry.over() or entry.status == KVPoll.Bootstrapping:
                return False
            entry.status = KVPoll.Transferring
            entry.reading += 1
            return True

    def finish(self, room, request, chunk, last, ok):
        entry = self.entry(room, request)
        with entry.lock:
            entry.reading -= 1
            entry.arrived += ok
            if last:
                entry.total = chunk + 1
            if entry.cleared:
                if not entry.reading:
                    self.probe.release(room, request)
                return
            if not entry.over() and not ok:
                entry.status = KVPoll.Failed
            if not entry.over() and entry.arrived == entry.total:
                entry.status = KVPoll.Success
            if entry.over() and not entry.told:
                entry.told = True
                self.probe.tell(room, request, entry.status)

    def poll(self, room, request):
        entry = self.entry(room, request)
        with entry.lock:
            return entry.status

    def clear(self, room, request):
        entry = self.entry(room, request)
        with entry.lock:
            entry.cleared = True
            entry.status = None
            if not entry.reading:
                self.probe.release(room, request)

    def status(self, room):
        entries = self.entries.get(room)
        return entries[max(entries)].status if entries else None
