"""What the steps of the reference manager are made of: polls, status updates, queues, workers, pages.

Every function takes the operations at hand (:class:`At`) as arrays and treats all of them at once; no two of them are
about the same room or the same worker.
"""

from __future__ import annotations

from types import ModuleType

import attrs

from kvlatch.reference.arrays.device import Array
from kvlatch.reference.arrays.kernels import KEEPS, NOW, write_entry
from kvlatch.reference.arrays.tables import (
    ABSENT,
    NOBODY,
    NOTHING,
    TOMBSTONE,
    Chunk,
    Column,
    Pages,
    S,
    T,
    Tables,
    Worker,
)
from kvlatch.spec.designs import Design
from kvlatch.spec.merges import KEEP, table
from kvlatch.spec.schema import Network
from kvlatch.spec.status import KVPoll


@attrs.frozen(eq=False)
class At:
    """The operations at hand, all of one kind: their rooms, workers, chunks, and the part of an update they are."""

    room: Array
    worker: Array
    chunk: Array
    part: str


@attrs.frozen(eq=False)
class Thread:
    """The threads that take the operations at hand: their columns, their rows, the requests that they act for."""

    pc: Column
    seen: Column
    row: Array
    gen: Array
    mine: Array | bool = True
    """For workers: the worker's chunk is one of the room."""


@attrs.frozen(eq=False)
class Core:
    """The tables, and the rules of one design in one network."""

    xp: ModuleType
    tables: Tables
    design: Design
    network: Network
    merge: Array
    """(7, 5) uint8: entry, incoming status -> what is stored, or KEEPS."""
    is_outstanding: Array
    """int32 by program counter of a worker: 1 for each of :attr:`Worker.OUTSTANDING`."""

    @classmethod
    def of(cls, xp: ModuleType, tables: Tables, design: Design, network: Network) -> Core:
        """The rules of a design: its merge as an array, in which a tombstone is what no entry is."""
        rows = [[KEEPS if cell == KEEP else int(cell) for cell in row] for row in table(design.merge)]
        outstanding = [int(pc in Worker.OUTSTANDING) for pc in range(16)]
        return cls(
            xp, tables, design, network, xp.asarray([*rows, rows[-1]], "uint8"), xp.asarray(outstanding, "int32")
        )

    @property
    def tombstones(self) -> bool:
        """A cleared entry remembers its request, and every write carries its own."""
        return self.design.clear == "tombstone"

    @property
    def doubles(self) -> bool:
        """Each of decode's messages may come a second time."""
        return self.may("doubling") and self.design.transport == "any"

    def may(self, fault: Network) -> bool:
        """The network has this fault."""
        return self.network in (fault, "disorderly")

    @property
    def mistaken(self) -> bool:
        """Nobody can tell a message about an older request from one about the newest."""
        return self.tombstones and self.design.nonce == "none"

    # ----------------------------------------------------------------------------------------------------------------
    # Questions

    def present(self, room: Array) -> Array:
        """The table has an entry for the room."""
        return self.tables.status[room] < ABSENT

    def counts(self, room: Array, gen: Array) -> Array:
        """A write for this request may touch the entry: with tombstones, not if it is about a newer or cleared one."""
        t = self.tables
        if not self.tombstones:
            return self.xp.ones(len(room), bool)
        stamp = t.stamp[room]
        return (gen > stamp) | ((gen == stamp) & (t.status[room] != TOMBSTONE))

    def hears(self, room: Array, gen: Array) -> Array:
        """Metadata of this request is taken in; at a tombstone it is not, if nobody can tell whose it is."""
        counts = self.counts(room, gen)
        return counts & (self.tables.status[room] != TOMBSTONE) if self.mistaken else counts

    def has_infos(self, room: Array, gen: Array) -> Array:
        """There are transfer infos for this request; without tombstones nobody asks whose they are."""
        infos = self.tables.infos[room]
        return infos == gen if self.tombstones else infos != NOBODY

    def poll(self, room: Array) -> Array:
        """The status that ``sender.poll()`` returns: the latch, or what the table shows."""
        xp, t, design = self.xp, self.tables, self.design
        entry = t.status[room]
        shown = xp.where(entry < ABSENT, entry, int(KVPoll[design.poll_absent]))
        if design.poll_hold == "yes":
            shown = xp.where((entry == S) & (t.outstanding[room] > 0), T, shown)
        if design.poll_latch == "honoured":
            latch = t.latch[room]
            shown = xp.where(latch == NOTHING, shown, latch)
        return shown

    def drained(self, room: Array) -> Array:
        """The pages may be released: no worker serves the request any more, if the design waits for that."""
        t = self.tables
        if self.design.release == "at once":
            return self.xp.ones(len(room), bool)
        return t.serving[room, t.gen[room]] == 0

    # ----------------------------------------------------------------------------------------------------------------
    # Status updates

    def scheduler(self, at: At) -> Thread:
        """The schedulers of the rooms."""
        t = self.tables
        return Thread(t.scheduler, t.scheduler_seen, at.room, t.gen[at.room])

    def bootstrap(self, at: At) -> Thread:
        """The bootstrap threads of the rooms."""
        t = self.tables
        return Thread(t.bootstrap, t.bootstrap_seen, at.room, t.bootstrap_gen[at.room])

    def worker(self, at: At) -> Thread:
        """The transfer workers, as far as they serve the rooms."""
        t = self.tables
        mine = t.job_room[at.worker] == at.room
        return Thread(t.worker, t.worker_seen, at.worker, t.job_gen[at.worker], mine)

    def may_update(self, at: At, thread: Thread, before: int, between: int, when: Array | bool = True) -> Array:
        """The threads stand where this part of an update begins.

        ``when`` is asked before the read only: a thread that has read goes on, whatever has happened since.
        """
        stands = thread.mine & (thread.pc[thread.row] == (before if at.part in ("whole", "read") else between))
        if at.part in ("whole", "read"):
            return stands & when
        if at.part == "store":
            return stands
        same = self.tables.status[at.room] == thread.seen[thread.row]
        return stands & (same if at.part == "swap" else ~same)

    def update(self, at: At, thread: Thread, incoming: int, between: int) -> Array | None:
        """One part of ``update_status(room, incoming)``; what stands at its end, None if a store is to come."""
        if at.part in ("read", "retry"):
            thread.seen[thread.row] = self.tables.status[at.room]
            thread.pc[thread.row] = between
            return None
        whole = at.part == "whole"
        read = self.xp.full(len(at.room), NOW, "uint8") if whole else thread.seen[thread.row]
        stands = self._store(at.room, read, incoming, thread.gen)
        thread.seen[thread.row] = ABSENT
        return stands

    def _store(self, room: Array, read: Array, incoming: int, gen: Array) -> Array:
        """Write a status into the entries of distinct rooms; what stands there then."""
        t, full = self.tables, self.xp.full
        t.entry.keep(room)
        writes = full(len(room), incoming, "uint8")
        return write_entry(
            self.xp, t.entry.array, self.merge.reshape(-1), room, read, writes, gen, tombstones=self.tombstones
        )

    # ----------------------------------------------------------------------------------------------------------------
    # Workers and queues

    def stands(self, at: At, pc: int) -> Array:
        """The workers stand there, and serve these rooms."""
        return (self.tables.worker[at.worker] == pc) & (self.tables.job_room[at.worker] == at.room)

    def has_chunk(self, at: At, pc: int) -> Array:
        """The workers stand there with these very chunks."""
        return self.stands(at, pc) & (self.tables.job[at.worker] == at.chunk)

    def own(self, at: At) -> Array:
        """The workers' chunks belong to the requests that the rooms have now, not to earlier ones."""
        return self.tables.job_gen[at.worker] == self.tables.gen[at.room]

    def take(self, at: At, gen: Array | int) -> None:
        """Idle workers take chunks."""
        t = self.tables
        t.job[at.worker], t.job_room[at.worker], t.job_gen[at.worker] = at.chunk, at.room, gen
        t.serving[at.room, t.job_gen[at.worker]] += 1
        t.worker[at.worker] = Worker.TAKEN

    def move(self, at: At, to: Array | int) -> None:
        """The workers go on to where ``to`` says."""
        t = self.tables
        before = t.worker[at.worker]
        t.outstanding[at.room] += self.is_outstanding[to] - self.is_outstanding[before]
        t.serving[at.room, t.job_gen[at.worker]] -= self.xp.asarray(to == Worker.IDLE, "int32")
        t.worker[at.worker] = to

    def give_up(self, at: At, where: Array) -> None:
        """The chunks are lost where the mask says, if they are the present requests' own."""
        self._mark(at, Chunk.LOST, where & self.own(at))

    def deliver(self, at: At) -> None:
        """The chunks have arrived; those of earlier requests change nothing that a present one knows."""
        self._mark(at, Chunk.DONE, self.own(at))

    def _mark(self, at: At, state: int, where: Array) -> None:
        t = self.tables
        t.chunk[at.room, at.chunk] = self.xp.where(where, state, t.chunk[at.room, at.chunk])

    def is_head(self, queue: Column, at: At, state: int) -> Array:
        """The chunk is in that state, and no earlier one of its room is: a queue is first in, first out."""
        waits = queue[at.room] == state
        return waits.any(axis=1) & (waits.argmax(axis=1) == at.chunk)

    # ----------------------------------------------------------------------------------------------------------------
    # Pages

    def hold(self, at: At) -> None:
        """A page for each chunk, from the free end of the ring."""
        t, chunks = self.tables, self.tables.chunk.array.shape[1]
        t.pages[at.room] = Pages.HELD
        slots = self._turn(0, len(at.room) * chunks)
        t.page[at.room, t.gen[at.room]] = t.free[slots].reshape(-1, chunks)

    def release(self, at: At) -> None:
        """The pages that are held go back to the ring, where another request may get them."""
        xp, t = self.xp, self.tables
        pages = t.pages[at.room]
        held = at.room[pages == Pages.HELD]
        returned = t.page[held, t.gen[held]].reshape(-1)
        t.free[self._turn(1, len(returned))] = returned
        again = xp.where(pages == Pages.RELEASED, Pages.RELEASED_TWICE, pages)
        t.pages[at.room] = xp.where(pages == Pages.HELD, Pages.RELEASED, again)

    def _turn(self, end: int, count: int) -> Array:
        """Take ``count`` slots of the ring from one end, and advance it."""
        ring, this = self.tables.ring, self.xp.asarray([end])
        start = int(ring[this][0])
        ring[this] = start + count
        return (self.xp.arange(count) + start) % len(self.tables.free.array)

    def compute(self, at: At) -> None:
        """The chunks' KV is computed, into the pages that their requests were given."""
        t = self.tables
        gen = t.gen[at.room]
        t.prefill[t.page[at.room, gen, at.chunk]] = self.content(at.room, gen, at.chunk)

    def copy(self, at: At) -> None:
        """The workers' transfers end: decode has whatever has been in the pages."""
        t = self.tables
        place = at.room, t.job_gen[at.worker], at.chunk
        t.decode[place] = t.prefill[t.page[place]]
        t.delivered[place] = 1

    def content(self, room: Array, gen: Array, chunk: Array) -> Array:
        """The KV of chunks, which no other chunk of any request has: its number, over and over."""
        chunks, page_bytes = self.tables.chunk.array.shape[1], self.tables.prefill.array.shape[1]
        number = (room.astype("int64") * 2 + gen) * chunks + chunk + 1
        return self.xp.tile(number.reshape(-1, 1).view("uint8"), page_bytes // 8)
