"""A room object with a lock of its own; a registry lock only finds or makes the room."""

import threading

from kvlatch.spec.status import KVPoll

F, B, W, T, S = KVPoll


class Sender:
    def __init__(self):
        self.status = None
        self.reading = self.arrived = 0
        self.total = None
        self.cleared = self.told = False


class Room:
    def __init__(self):
        self.lock = threading.Lock()
        self.senders = {}

    def sender(self, request):
        return self.senders.setdefault(request, Sender())


class Adapter:
    def __init__(self, probe):
        self.probe = probe
        self.rooms = {}
        self.registry = threading.Lock()

    def room(self, room):
        with self.registry:
            if room not in self.rooms:
                self.rooms[room] = Room()
            return self.rooms[room]

    def create(self, room, request):
        here = self.room(room)
        with here.lock:
            sender = here.sender(request)
            if sender.status is None and not sender.cleared:
                sender.status = B

    def metadata(self, room, request):
        here = self.room(room)
        with here.lock:
            sender = here.sender(request)
            if sender.status in (None, B) and not sender.cleared:
                sender.status = W

    def abort_notice(self, room, request):
        self.abort(room, request)

    def abort(self, room, request):
        here = self.room(room)
        with here.lock:
            sender = here.senders.get(request)
            if sender is not None and sender.status in (B, W, T):
                sender.status = F

    def start(self, room, request, chunk, last):
        here = self.room(room)
        with here.lock:
            sender = here.sender(request)
            if sender.status not in (W, T):
                return False
            sender.status = T
            sender.reading += 1
            return True

    def finish(self, room, request, chunk, last, ok):
        here = self.room(room)
        with here.lock:
            sender = here.sender(request)
            sender.reading -= 1
            sender.arrived += ok
            if last:
                sender.total = chunk + 1
            if not sender.cleared:
                if sender.status == T and not ok:
                    sender.status = F
                elif sender.status == T and sender.arrived == sender.total:
                    sender.status = S
                if sender.status in (F, S) and not sender.told:
                    sender.told = True
                    self.probe.tell(room, request, sender.status)
            elif sender.reading == 0:
                self.probe.release(room, request)

    def poll(self, room, request):
        here = self.room(room)
        with here.lock:
            return here.sender(request).status

    def clear(self, room, request):
        here = self.room(room)
        with here.lock:
            sender = here.sender(request)
            sender.status = None
            sender.cleared = True
            if sender.reading == 0:
                self.probe.release(room, request)

    def status(self, room):
        if room not in self.rooms:
            return None
        senders = self.rooms[room].senders
        return senders[max(senders)].status if senders else None
