"""Arrays with a slot for each request, as a manager has them that is to be copied to a GPU. Ids are integers."""

import threading
from array import array

from kvlatch.spec.status import KVPoll

ABSENT, CLEARED = 5, 6
MASK = (1 << 64) - 1


class Adapter:
    def __init__(self, probe):
        self.probe = probe
        self.lock = threading.Lock()
        self.slots = {}
        self.statuses = bytearray()
        self.reading = array("h")
        self.arrived = array("h")
        self.total = array("h")
        self.told = bytearray()

    def slot(self, room, request):
        key = (int(room) & MASK, request)
        if key not in self.slots:
            self.slots[key] = len(self.statuses)
            self.statuses.append(ABSENT)
            self.told.append(0)
            for column in (self.reading, self.arrived):
                column.append(0)
            self.total.append(-1)
        return self.slots[key]

    def create(self, room, request):
        with self.lock:
            slot = self.slot(room, request)
            if self.statuses[slot] == ABSENT:
                self.statuses[slot] = KVPoll.Bootstrapping

    def metadata(self, room, request):
        with self.lock:
            slot = self.slot(room, request)
            if self.statuses[slot] in (ABSENT, KVPoll.Bootstrapping):
                self.statuses[slot] = KVPoll.WaitingForInput

    def abort(self, room, request):
        with self.lock:
            slot = self.slot(room, request)
            if KVPoll.Failed < self.statuses[slot] < KVPoll.Success:
                self.statuses[slot] = KVPoll.Failed

    def abort_notice(self, room, request):
        self.abort(room, request)

    def start(self, room, request, chunk, last):
        with self.lock:
            slot = self.slot(room, request)
            if self.statuses[slot] not in (KVPoll.WaitingForInput, KVPoll.Transferring):
                return False
            self.statuses[slot] = KVPoll.Transferring
            self.reading[slot] += 1
            return True

    def finish(self, room, request, chunk, last, ok):
        with self.lock:
            slot = self.slot(room, request)
            self.reading[slot] -= 1
            self.arrived[slot] += ok
            if last:
                self.total[slot] = chunk + 1
            if self.statuses[slot] == CLEARED:
                self.drain(slot, room, request)
                return
            if self.statuses[slot] == KVPoll.Transferring:
                if not ok:
                    self.statuses[slot] = KVPoll.Failed
                elif self.arrived[slot] == self.total[slot]:
                    self.statuses[slot] = KVPoll.Success
            if self.statuses[slot] != KVPoll.Transferring and not self.told[slot]:
                self.told[slot] = 1
                self.probe.tell(room, request, KVPoll(self.statuses[slot]))

    def poll(self, room, request):
        with self.lock:
            return self.read(self.slot(room, request))

    def read(self, slot):
        return None if self.statuses[slot] >= ABSENT else KVPoll(self.statuses[slot])

    def clear(self, room, request):
        with self.lock:
            slot = self.slot(room, request)
            self.statuses[slot] = CLEARED
            self.drain(slot, room, request)

    def drain(self, slot, room, request):
        if not self.reading[slot]:
            self.probe.release(room, request)

    def status(self, room):
        mine = [request for number, request in self.slots if number == int(room) & MASK]
        return self.read(self.slots[int(room) & MASK, max(mine)]) if mine else None
