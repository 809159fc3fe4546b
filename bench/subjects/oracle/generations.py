"""One entry for each room, with a generation; a newer request takes the room over, and the older one has failed.

What the older one still has to see to the end (transfers that run, pages) is kept beside the table.
"""

import threading
from dataclasses import dataclass

from kvlatch.spec.status import KVPoll

OVER = (KVPoll.Failed, KVPoll.Success)


@dataclass
class Entry:
    generation: int
    status: KVPoll | None


@dataclass
class Job:
    reading: int = 0
    arrived: int = 0
    total: int | None = None
    cleared: bool = False
    told: bool = False


class Adapter:
    def __init__(self, probe):
        self.probe = probe
        self.lock = threading.Lock()
        self.table = {}
        self.jobs = {}

    def job(self, room, generation):
        return self.jobs.setdefault((room, generation), Job())

    def standing(self, room, generation):
        """What the table says of this generation: Failed once a newer one has the room."""
        entry = self.table.get(room)
        if self.job(room, generation).cleared or entry is None or entry.generation < generation:
            return None
        return entry.status if entry.generation == generation else KVPoll.Failed

    def update(self, room, generation, status):
        """Write, unless the room belongs to somebody newer, or this request is over."""
        if self.job(room, generation).cleared:
            return
        entry = self.table.get(room)
        if entry is None or entry.generation < generation:
            self.table[room] = Entry(generation, status)
        elif entry.generation == generation and entry.status not in OVER:
            entry.status = status

    def create(self, room, generation):
        with self.lock:
            if self.standing(room, generation) is None:
                self.update(room, generation, KVPoll.Bootstrapping)

    def metadata(self, room, generation):
        with self.lock:
            if self.standing(room, generation) in (None, KVPoll.Bootstrapping):
                self.update(room, generation, KVPoll.WaitingForInput)

    def abort(self, room, generation):
        with self.lock:
            if self.standing(room, generation) is not None:
                self.update(room, generation, KVPoll.Failed)

    abort_notice = abort

    def start(self, room, generation, chunk, last):
        with self.lock:
            if self.standing(room, generation) not in (KVPoll.WaitingForInput, KVPoll.Transferring):
                return False
            self.update(room, generation, KVPoll.Transferring)
            self.job(room, generation).reading += 1
            return True

    def finish(self, room, generation, chunk, last, ok):
        with self.lock:
            job = self.job(room, generation)
            job.reading -= 1
            job.arrived += ok
            if last:
                job.total = chunk + 1
            if not ok:
                self.update(room, generation, KVPoll.Failed)
            elif job.arrived == job.total:
                self.update(room, generation, KVPoll.Success)
            status = self.standing(room, generation)
            if status in OVER and not job.told:
                job.told = True
                self.probe.tell(room, generation, status)
            self.drain(room, generation)

    def poll(self, room, generation):
        with self.lock:
            return self.standing(room, generation)

    def clear(self, room, generation):
        with self.lock:
            self.job(room, generation).cleared = True
            if room in self.table and self.table[room].generation == generation:
                self.table[room].status = None
            self.drain(room, generation)

    def drain(self, room, generation):
        job = self.job(room, generation)
        if job.cleared and job.reading == 0:
            self.probe.release(room, generation)

    def status(self, room):
        return self.table[room].status if room in self.table else None
