"""A right manager behind an adapter, and wrong ones, each with one planted fault."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar

from kvlatch.reference.oracle.checks import Probe
from kvlatch.spec.status import KVPoll

Failed, Bootstrapping, WaitingForInput, Transferring, Success = KVPoll
Key = tuple[int, int]
"""A room and which request on it."""


class Right:
    """First terminal wins, under one lock; cleared requests are remembered, pages are released when drained."""

    def __init__(self, probe: Probe) -> None:
        self.probe = probe
        self.table = probe.table()
        self.lock: AbstractContextManager[object] = threading.Lock()
        self.owner: dict[int, int] = {}
        self.infos: set[Key] = set()
        self.cleared: set[Key] = set()
        self.told: set[Key] = set()
        self.reading: Counter[Key] = Counter()
        self.done: Counter[Key] = Counter()
        self.total: dict[Key, int] = {}

    def merge(self, current: KVPoll | None, incoming: KVPoll) -> KVPoll:
        """What one write does."""
        if current is None or (incoming == Failed and current not in (Failed, Success)):
            return incoming
        return current if current in (Failed, Success) else max(current, incoming)

    def write(self, room: int, request: int, status: KVPoll) -> KVPoll | None:
        """One write, of whoever acts for a request; returns what stands afterwards."""
        if self.over(room, request):
            return None
        current = self.table.get(room) if self.owner.get(room) == request else None
        self.owner[room] = request
        self.table[room] = standing = self.merge(current, status)
        return standing

    def over(self, room: int, request: int) -> bool:
        """The request has been cleared, or a newer one has the room."""
        return (room, request) in self.cleared or request < self.owner.get(room, 0)

    def create(self, room: int, request: int) -> None:
        with self.lock:
            self.write(room, request, Bootstrapping)

    def metadata(self, room: int, request: int) -> None:
        with self.lock:
            if not self.over(room, request):
                self.infos.add((room, request))
                self.write(room, request, WaitingForInput)

    def abort_notice(self, room: int, request: int) -> None:
        with self.lock:
            if self.owner.get(room) == request and self.table.get(room) is not None:
                self.write(room, request, Failed)

    def abort(self, room: int, request: int) -> None:
        with self.lock:
            self.write(room, request, Failed)

    def start(self, room: int, request: int, chunk: int, last: bool) -> bool:
        with self.lock:
            if self.over(room, request) or self.table.get(room) == Failed:
                return False
            self.write(room, request, Transferring)
            self.reading[room, request] += 1
            return True

    def finish(self, room: int, request: int, chunk: int, last: bool, ok: bool) -> None:
        with self.lock:
            self.reading[room, request] -= 1
            self.done[room, request] += ok
            if last:
                self.total[room, request] = chunk + 1
            if not ok:
                self.conclude(room, request, Failed)
            elif self.complete(room, request, last):
                self.conclude(room, request, Success)
            if (room, request) in self.cleared:
                self.drained(room, request)

    def complete(self, room: int, request: int, last: bool) -> bool:
        """Every chunk has arrived."""
        return self.done[room, request] == self.total.get((room, request))

    def conclude(self, room: int, request: int, status: KVPoll) -> None:
        """Write a terminal status, and tell decode what stands."""
        standing = self.write(room, request, status)
        if standing in (Failed, Success) and (room, request) not in self.told:
            self.told.add((room, request))
            self.probe.tell(room, request, standing)

    def poll(self, room: int, request: int) -> KVPoll | None:
        with self.lock:
            status: KVPoll | None = self.table.get(room)
            return status if self.owner.get(room) == request else None

    def clear(self, room: int, request: int) -> None:
        with self.lock:
            self.cleared.add((room, request))
            if self.owner.get(room) == request:
                self.table.pop(room, None)
            self.drained(room, request)

    def drained(self, room: int, request: int) -> None:
        """Release the pages if nothing reads them any more."""
        if not self.reading[room, request]:
            self.probe.release(room, request)

    def status(self, room: int) -> KVPoll | None:
        status: KVPoll | None = self.table.peek(room)
        return status


class Unlocked(Right):
    """The update is a read, then a store."""

    def __init__(self, probe: Probe) -> None:
        super().__init__(probe)
        self.lock = nullcontext()


class Max(Right):
    """Failed is the smallest number, so whatever comes later is greater."""

    def merge(self, current: KVPoll | None, incoming: KVPoll) -> KVPoll:
        return incoming if current is None or incoming == Failed else max(current, incoming)


class FailureOverrides(Right):
    """A late failure replaces Success: wrong in one of the two profiles."""

    def merge(self, current: KVPoll | None, incoming: KVPoll) -> KVPoll:
        return incoming if incoming == Failed else super().merge(current, incoming)


class LastChunkConcludes(Right):
    """Success when the last chunk arrives, whatever has become of the others."""

    def complete(self, room: int, request: int, last: bool) -> bool:
        return last


class ForgetsFailure(Right):
    """A broken transfer is logged, and nobody is told."""

    def conclude(self, room: int, request: int, status: KVPoll) -> None:
        if status == Success:
            super().conclude(room, request, status)


class KeepsPages(Right):
    """Pages that are still read when the request is cleared are never released."""

    def clear(self, room: int, request: int) -> None:
        super().clear(room, request)
        self.reading[room, request] += 1


class NoTombstone(Right):
    """A cleared request is forgotten, so a late write brings it back."""

    def clear(self, room: int, request: int) -> None:
        super().clear(room, request)
        self.cleared.clear()
        self.owner.pop(room, None)


class ReleasesAtOnce(Right):
    """Pages go back to the pool when the request is cleared, although a transfer reads them."""

    def clear(self, room: int, request: int) -> None:
        super().clear(room, request)
        if self.reading[room, request]:
            self.probe.release(room, request)
            self.reading[room, request] += 1  # so that it does not release them once more


class ReleasesTwice(Right):
    """Whoever thinks that the request is over releases its pages."""

    def clear(self, room: int, request: int) -> None:
        super().clear(room, request)
        self.drained(room, request)


class TellsItsOwn(Right):
    """Decode is told what was to be written, not what stands."""

    def conclude(self, room: int, request: int, status: KVPoll) -> None:
        self.write(room, request, status)
        self.probe.tell(room, request, status)


class OverwritesEarlyMetadata(Right):
    """Metadata of a room that is not there yet is taken in, and then its making overwrites the status."""

    def create(self, room: int, request: int) -> None:
        with self.lock:
            if self.table.get(room) == WaitingForInput and self.owner.get(room) == request:
                self.table[room] = Bootstrapping
            else:
                self.write(room, request, Bootstrapping)


class RefusesEarlyMetadata(Right):
    """Metadata of a room that is not there yet is refused: its sender will try again."""

    def metadata(self, room: int, request: int) -> None:
        if self.owner.get(room) == request:
            super().metadata(room, request)


class OneGeneration(Right):
    """Messages about the first request on a room id count for the second."""

    def metadata(self, room: int, request: int) -> None:
        super().metadata(room, self.owner.get(room, request))


class TellsTwice(Right):
    """Whoever thinks that the request is over tells decode so."""

    def conclude(self, room: int, request: int, status: KVPoll) -> None:
        super().conclude(room, request, status)
        self.told.discard((room, request))
        super().conclude(room, request, status)


class CrossedLocks(Right):
    """Two locks, taken in one order by the scheduler and in the other by the workers."""

    def __init__(self, probe: Probe) -> None:
        super().__init__(probe)
        self.pages = threading.Lock()

    def start(self, room: int, request: int, chunk: int, last: bool) -> bool:
        with self.pages:
            return super().start(room, request, chunk, last)

    def drained(self, room: int, request: int) -> None:
        with self.pages:
            super().drained(room, request)


class Watched(Unlocked):
    """The table is a plain dict; instead, the method that writes is watched line by line."""

    def __init__(self, probe: Probe) -> None:
        super().__init__(probe)
        self.plain: dict[int, KVPoll] = {}
        probe.watch(Watched.write)

    def write(self, room: int, request: int, status: KVPoll) -> KVPoll | None:
        current = self.plain.get(room)
        standing = self.merge(current, status)
        self.plain[room] = standing
        self.owner[room] = request
        return standing

    def status(self, room: int) -> KVPoll | None:
        return self.plain.get(room)

    def poll(self, room: int, request: int) -> KVPoll | None:
        return self.plain.get(room)


class Raises(Right):
    """Its poll raises."""

    def poll(self, room: int, request: int) -> KVPoll | None:
        raise KeyError(room)


class Hangs(Right):
    """It waits for a lock that was made before the oracle could see it."""

    HIDDEN: ClassVar = threading.Lock()

    def poll(self, room: int, request: int) -> KVPoll | None:
        self.HIDDEN.acquire()
        return self.poll(room, request)


class SaysNonsense(Right):
    """Its poll answers with what is no status."""

    def poll(self, room: int, request: int) -> KVPoll | None:
        return 17  # type: ignore[return-value]  # that is the fault


class SaysNothing(Right):
    """Its start does not say whether to transfer."""

    def start(self, room: int, request: int, chunk: int, last: bool) -> bool:
        super().start(room, request, chunk, last)
        return None  # type: ignore[return-value]  # that is the fault


class Meddles(Right):
    """It changes what it was given."""

    def create(self, room: int, request: int) -> None:
        self.probe.room = room  # type: ignore[attr-defined]  # that is the fault


class LosesAWakeUp(Right):
    """Its making looks, and then writes: what comes in between is overwritten."""

    def create(self, room: int, request: int) -> None:
        if self.table.get(room) is None or self.owner.get(room) != request:
            with self.lock:
                if not self.over(room, request):
                    self.owner[room] = request
                    self.table[room] = Bootstrapping


class TakesInLater(Right):
    """Metadata lies in an inbox until a poll takes it in."""

    def __init__(self, probe: Probe) -> None:
        super().__init__(probe)
        self.inbox: list[Key] = []

    def metadata(self, room: int, request: int) -> None:
        with self.lock:
            self.inbox.append((room, request))

    def take_in(self) -> None:
        inbox, self.inbox = self.inbox, []
        for room, request in inbox:
            if not self.over(room, request):
                self.infos.add((room, request))
                self.write(room, request, WaitingForInput)

    def poll(self, room: int, request: int) -> KVPoll | None:
        with self.lock:
            self.take_in()
        return super().poll(room, request)

    def start(self, room: int, request: int, chunk: int, last: bool) -> bool:
        with self.lock:
            self.take_in()
        return super().start(room, request, chunk, last)

    def clear(self, room: int, request: int) -> None:
        with self.lock:
            self.take_in()
        super().clear(room, request)


class BeginsLazily(Right):
    """The first call of all opens its journal, and two first calls at once open it twice."""

    def __init__(self, probe: Probe) -> None:
        super().__init__(probe)
        self.journal: list[str] = []

    def write(self, room: int, request: int, status: KVPoll) -> KVPoll | None:
        if len(self.journal) > 1:
            raise RuntimeError("the journal is open already")
        return super().write(room, request, status)

    def begin(self) -> None:
        if not self.journal:
            self.journal.append("open")

    def create(self, room: int, request: int) -> None:
        self.begin()
        super().create(room, request)

    def metadata(self, room: int, request: int) -> None:
        self.begin()
        super().metadata(room, request)


class ForgetsToAnswer(Right):
    """Its start says nothing about a room that has failed."""

    def start(self, room: int, request: int, chunk: int, last: bool) -> bool:
        answer = super().start(room, request, chunk, last)
        return answer or None  # type: ignore[return-value]  # that is the fault


class SleepsForEver(Right):
    """The end of a transfer waits, asleep, for a request that has been cleared."""

    def finish(self, room: int, request: int, chunk: int, last: bool, ok: bool) -> None:
        while (room, request) in self.cleared:
            time.sleep(0.01)  # in a play no time passes: the oracle's clock moves on
        super().finish(room, request, chunk, last, ok)


class Loop(Right):
    """An event loop in a thread; two of its calls read a number, await, and write it back increased."""

    locked = False

    def __init__(self, probe: Probe) -> None:
        super().__init__(probe)
        self.loop = asyncio.new_event_loop()
        self.turn = asyncio.Lock()
        self.calls = 0
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()

    async def handle(self) -> None:
        async with self.turn if self.locked else nullcontext():
            seen = self.calls
            await asyncio.sleep(0)
            self.calls = seen + 1

    def create(self, room: int, request: int) -> None:
        asyncio.run_coroutine_threadsafe(self.handle(), self.loop).result()

    def metadata(self, room: int, request: int) -> None:
        asyncio.run_coroutine_threadsafe(self.handle(), self.loop).result()

    def status(self, room: int) -> KVPoll | None:
        return KVPoll(min(self.calls, 4)) if self.calls else None

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


class LockedLoop(Loop):
    """The same, one call at a time."""

    locked = True
