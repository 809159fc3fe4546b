"""A status manager with real threads, in which a design decides every open question.

It is written by hand, the way a maintainer of such a manager would write it: nothing of it is derived from the rows of
``spec/protocol.py``, which are what it is checked against. From the spec it takes a design's merge and switches, so
every design can be run, and a broken one is broken here as it is there. Each place where designs differ asks
``self.design``.

**Threads.** ``create``, ``abort``, ``enqueue``, ``poll``, ``time_out`` and ``clear`` are for the scheduler,
``metadata`` and ``abort_notice`` for the bootstrap thread, ``start`` and ``finish`` for any number of transfer workers.
They share the status table, whose owner may hold or delay every access to it, and the manager's books, which have a
lock of their own. No thread holds that one when it goes to the table or to the host, so it decides no race.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from threading import Lock
from typing import Final

import attrs

from kvlatch.reference.host import Entry, Host, Watcher, about, counts, status_of
from kvlatch.spec.designs import Design
from kvlatch.spec.merges import KEEP
from kvlatch.spec.schema import Atomicity
from kvlatch.spec.status import TERMINAL, KVPoll

Failed, Bootstrapping, WaitingForInput, Transferring, Success = KVPoll
LIVE: Final = (Bootstrapping, WaitingForInput, Transferring)
STRIPES: Final = 64
"""Locks that all rooms share: enough that two that are busy at the same time rarely meet."""

LockLike = AbstractContextManager[object]


@attrs.define
class _Request:
    """What is kept of a request until it is over: it has been cleared, and no chunk of it is left anywhere."""

    latch: KVPoll | None = None
    """The terminal status that its sender has reported: ``sender.conclude_state``."""
    admitted: bool = False
    """Its sender has reported WaitingForInput, and so it has left the bootstrap queue."""
    queued: int = 0
    """How many of its chunks have been enqueued and not been taken yet."""
    workers: int = 0
    """How many are between ``start`` and the end of ``finish``."""
    arrived: int = 0
    """How many chunks have been transferred ..."""
    chunks: int | None = None
    """... and how many there are, once the last has been."""
    told: set[KVPoll] = attrs.field(factory=set)
    """What decode has been told about it."""
    cleared: bool = False
    released: bool = False


class DesignManager:
    """The statuses of all rooms, managed as one design says, in one atomicity, whether the design claims it or not.

    A ``room`` is the id that the client chose; ``request`` is its generation: of two requests with one room id the
    later has the greater number, and it comes after the earlier has been cleared. The methods are those of
    :class:`~kvlatch.reference.oracle.adapter.Adapter`, with ``enqueue`` and ``time_out``. ``make_lock`` makes the locks
    under which statuses are written; each must keep a second thread out.
    """

    def __init__(
        self,
        design: Design,
        level: Atomicity,
        host: Host,
        make_lock: Callable[[], LockLike] = Lock,
        watcher: Watcher | None = None,
    ) -> None:
        self.design = design
        self.level = level
        self._host = host
        self._watcher = watcher or Watcher()
        self._table = host.table()
        self._locks = [make_lock() for _ in range(STRIPES)]
        self._books = Lock()  # for all that follows
        self._infos: dict[int, int] = {}
        """``transfer_infos``: of which request each room has decode's metadata."""
        self._requests: dict[tuple[int, int], _Request] = {}
        self._newest: dict[int, _Request] = {}
        self._outstanding: Counter[int] = Counter()
        """How many chunks of each room have a worker between its status check and the end of its transfer."""

    # ----------------------------------------------------------------------------------------------------------------
    # The status table

    def update_status(self, room: int, request: int, status: KVPoll) -> KVPoll | None:
        """Write a status, as far as the merge lets it; what then stands for the request, None if nothing does.

        The lock is held from the read to the store (locked), or to store only what still fits (cas), or never (split).
        """
        self._watcher.writes(status)
        while True:
            with self._exclusive(room, "locked"):
                seen = self._table.get(room)
                entry = self._merged(seen, request, status)
                if entry == KEEP:
                    self._watcher.kept(room)
                    return about(request, seen)
                with self._exclusive(room, "cas"):
                    if self.level != "cas" or self._table.get(room) == seen:
                        self._table[room] = entry
                        return status_of(entry)

    def _merged(self, seen: object, request: int, status: KVPoll) -> object:
        """What a write stores where it has seen an entry, or KEEP."""
        if not counts(request, seen):
            return KEEP
        stored = self.design.merge(about(request, seen), status)
        if stored == KEEP:
            return KEEP
        return Entry(request, stored) if self.design.clear == "tombstone" else stored

    def _clear_status(self, room: int, request: int) -> None:
        with self._exclusive(room, "locked", "cas"):
            entry = self._table.get(room)
            if isinstance(entry, Entry) and entry.request > request:
                return  # a newer request has the room
            if self.design.clear == "tombstone":
                self._table[room] = Entry(request, None)
            else:
                self._table.pop(room, None)

    def _exclusive(self, room: int, *levels: Atomicity) -> LockLike:
        """The lock of a room, in these atomicities."""
        return self._locks[room % STRIPES] if self.level in levels else nullcontext()

    def _read(self, room: int, request: int) -> KVPoll | None:
        return about(request, self._table.get(room))

    def status(self, room: int) -> KVPoll | None:
        """What the room's entry says, for an observer."""
        return status_of(self._table.get(room))

    # ----------------------------------------------------------------------------------------------------------------
    # The scheduler

    def create(self, room: int, request: int) -> None:
        """A request arrives, and its sender is made."""
        with self._books:
            self._newest[room] = self._requests[room, request] = _Request()
        self.update_status(room, request, Bootstrapping)

    def abort(self, room: int, request: int) -> None:
        """Its client has gone: Failed, which is also what its sender reports from now on."""
        stands = self.update_status(room, request, Failed)
        latch = Success if self.design.tell == "standing" and stands == Success else Failed
        self._conclude(room, request, self._of(room, request), latch)

    def _conclude(self, room: int, request: int, mine: _Request, outcome: KVPoll) -> None:
        """From now on the sender reports this outcome."""
        news = mine.latch is None
        mine.latch = outcome
        if news:
            self._watcher.did("conclude", room, request, incoming=outcome)

    def enqueue(self, room: int, request: int, chunk: int, last: bool) -> bool:
        """A chunk has been computed: True if it is to be queued; False to drop it, since nobody waits for it."""
        if self.design.enqueue == "drops" and not self._has_infos(room, request):
            self._watcher.did("drop", room, request, chunk=chunk, last=last)
            return False
        with self._books:
            self._of(room, request).queued += 1
        self._watcher.did("enqueue", room, request, chunk=chunk, last=last)
        return True

    def poll(self, room: int, request: int) -> KVPoll:
        """What the sender reports. A terminal status of an admitted request, or Failed before, it reports for good."""
        mine = self._of(room, request)
        shown = self._shown(room, request, mine)
        if shown == WaitingForInput:
            mine.admitted = True
        if shown == Failed or (shown == Success and mine.admitted):
            self._conclude(room, request, mine, shown)
        return shown

    def _shown(self, room: int, request: int, mine: _Request) -> KVPoll:
        if self.design.poll_latch == "honoured" and mine.latch is not None:
            return mine.latch
        status = self._read(room, request)
        if status is None:
            return KVPoll[self.design.poll_absent]
        if self.design.poll_hold == "yes" and status == Success and self._outstanding[room] > 0:
            return Transferring
        return status

    def time_out(self, room: int, request: int) -> bool:
        """The time to bootstrap is up: True if that counts for the design and the request, which has then failed."""
        mine = self._of(room, request)
        if self.design.timeout == "never" or self._shown(room, request, mine) != Bootstrapping:
            return False
        self.update_status(room, request, Failed)
        self._conclude(room, request, mine, Failed)
        return True

    def clear(self, room: int, request: int) -> None:
        """It has been settled: forget its status, then its metadata, and release its pages when the design says."""
        self._clear_status(room, request)
        with self._books:
            had = self._infos.pop(room, None) is not None
        if had:
            self._watcher.did("forget", room, request)
        self._leave(room, request, cleared=True)

    # ----------------------------------------------------------------------------------------------------------------
    # The bootstrap thread

    def metadata(self, room: int, request: int) -> None:
        """All of decode's metadata has arrived: the request is bootstrapped, WaitingForInput."""
        about = self._taken_for(room, request)
        if about is None:
            return
        request = about
        if self.design.clear == "tombstone" and not counts(request, self._table.get(room)):
            return
        with self._books:
            self._infos[room] = request
        self._watcher.did("infos", room, request)
        stands = self.update_status(room, request, WaitingForInput)
        if self.design.clear == "tombstone" and stands is None:
            self._pop_infos(room, request)  # it has been cleared meanwhile, and nobody else would do it now

    def abort_notice(self, room: int, request: int) -> None:
        """Decode gives the request up: Failed, unless the room is unknown or has Success."""
        about = self._taken_for(room, request)
        if about is None or self._read(room, about) in (None, Success):
            return
        request = about
        self.update_status(room, request, Failed)
        if self.design.abort == "pops":
            self._pop_infos(room, request)

    def _taken_for(self, room: int, request: int) -> int | None:
        """The request that a message is taken to be about: without a nonce, the one that has the room.

        None if nobody can tell, because the room has none.
        """
        entry = self._table.get(room)
        if self.design.nonce == "none" and isinstance(entry, Entry):
            return None if entry.status is None else max(request, entry.request)
        return request

    # ----------------------------------------------------------------------------------------------------------------
    # Transfer workers

    def start(self, room: int, request: int, chunk: int, last: bool) -> bool:
        """A worker has taken a chunk that was enqueued: True if it is to be transferred now, False to skip it."""
        with self._books:
            mine = self._of(room, request)
            mine.queued -= 1
            mine.workers += 1
        self._watcher.did("take", room, request, chunk=chunk)
        passed = self._check(room, request, chunk)
        if passed and self.design.mark != "never":
            self.update_status(room, request, Transferring)
        if passed:
            self._watcher.did("post", room, request, chunk=chunk)
        else:
            self._leave(room, request, workers=1)
        return passed

    def _check(self, room: int, request: int, chunk: int) -> bool:
        status = self._read(room, request)
        missing = status is None and (self.design.absent == "skips" or self.design.clear == "tombstone")
        if status == Failed or missing:
            self._watcher.did("drop", room, request, chunk=chunk)
            return False
        self._count_outstanding(room, 1)
        if self._has_infos(room, request):
            return True
        self._watcher.did("drop", room, request, chunk=chunk)
        if self.design.guard == "fails" and self._read(room, request) in LIVE:
            self._fail(room, request)
        else:
            self._count_outstanding(room, -1)
        return False

    def finish(self, room: int, request: int, chunk: int, last: bool, ok: bool) -> None:
        """The transfer of a chunk that was started has ended, well or not."""
        completes = ok and self._is_last_to_arrive(room, request, chunk, last)
        self._watcher.did("arrive" if ok else "fail", room, request, chunk=chunk)
        if not ok:
            self._fail(room, request)
        elif completes:
            self._count_outstanding(room, -1)
            self._succeed(room, request)
        else:
            if self.design.mark == "again":
                self.update_status(room, request, Transferring)
            self._count_outstanding(room, -1)
        self._leave(room, request, workers=1)

    def _is_last_to_arrive(self, room: int, request: int, chunk: int, last: bool) -> bool:
        """A chunk has arrived, and with it the request is complete."""
        if self.design.success == "last":
            return last
        with self._books:
            mine = self._of(room, request)
            mine.arrived += 1
            if last:
                mine.chunks = chunk + 1
            return mine.arrived == mine.chunks and self._newest.get(room) is mine

    def _succeed(self, room: int, request: int) -> None:
        if self.design.conclude == "rechecks":
            status = self._read(room, request)
            if status is None:
                return
            if status == Failed:
                self._tell(room, request, Failed, Failed)
                return
        stands = self.update_status(room, request, Success)
        self._tell(room, request, Success, stands)

    def _fail(self, room: int, request: int) -> None:
        stands = self.update_status(room, request, Failed)
        self._count_outstanding(room, -1)
        self._tell(room, request, Failed, stands)

    def _tell(self, room: int, request: int, wrote: KVPoll, stands: KVPoll | None) -> None:
        """Tell decode how the request has ended; if well, its metadata has been of use."""
        word = wrote if self.design.tell == "own" else stands
        if word in TERMINAL and self._first_time(room, request, word):
            self._host.tell(room, request, word)
            self._watcher.did("tell", room, request, incoming=word, peer="decode")
        if word == Success:
            self._pop_infos(room, request)

    def _first_time(self, room: int, request: int, word: KVPoll) -> bool:
        """Decode has not been told this word about the request before."""
        with self._books:
            told = self._of(room, request).told
            first = word not in told
            told.add(word)
            return first

    # ----------------------------------------------------------------------------------------------------------------
    # The books

    def _of(self, room: int, request: int) -> _Request:
        """The record of a request. One that is over has no record, and gets one that says that it is over."""
        return self._requests.setdefault((room, request), _Request(cleared=True, released=True))

    def _has_infos(self, room: int, request: int) -> bool:
        """There is metadata for the room; in a design with generations, of this very request."""
        if self.design.clear == "tombstone":
            return self._infos.get(room) == request
        return room in self._infos

    def _pop_infos(self, room: int, request: int) -> None:
        with self._books:
            had = self._has_infos(room, request)
            if had:
                del self._infos[room]
        if had:
            self._watcher.did("forget", room, request)

    def _count_outstanding(self, room: int, change: int) -> None:
        with self._books:
            self._outstanding[room] += change
            if self._outstanding[room] == 0:
                del self._outstanding[room]

    def _leave(self, room: int, request: int, *, workers: int = 0, cleared: bool = False) -> None:
        """Workers, or the scheduler, have done with a request: release its pages if that is due, forget it if over."""
        with self._books:
            mine = self._of(room, request)
            mine.workers -= workers
            mine.cleared |= cleared
            drained = self.design.release == "at once" or mine.workers == 0
            due = mine.cleared and drained and not mine.released
            mine.released |= due
            if mine.cleared and mine.workers == mine.queued == 0:
                del self._requests[room, request]
                if self._newest.get(room) is mine:
                    del self._newest[room]
        if due:
            self._host.release(room, request)
            self._watcher.did("release", room, request)
