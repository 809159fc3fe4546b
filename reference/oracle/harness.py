"""What surrounds a manager: one room's requests, their scheduler, the network and the transfer workers.

The manager under test decides everything that is a manager's to decide; the harness plays the rest, and remembers what
an observer of both would know. :class:`Life` is that memory, immutable. Its :meth:`Life.moves` are what can happen
next, :meth:`Life.after` is the memory after it; ``formulas.py`` asks it what is broken. An event is one call of the
manager, so it is coarser than a step of the protocol; threads that are held inside a call give the finer interleavings.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import attrs

from kvlatch.reference.oracle.moves import BOOTSTRAP, SCHEDULER, Bounds, Call, Event, Halted, Move, Seen
from kvlatch.spec.status import ABSENT, F, KVPoll, S, W


@attrs.frozen
class Worker:
    """A transfer worker: idle, or with a chunk of a request."""

    state: Literal["idle", "starting", "transferring", "finishing"] = "idle"
    request: int = 1
    chunk: int = 0


@attrs.frozen
class Active:
    """An event that a thread has begun, before what it is held there, and what it has found so far."""

    call: Call
    at: str
    trail: tuple[tuple[str, object], ...] = ()
    blocked: bool = False


@attrs.frozen
class Life:
    """What an observer knows of one room so far."""

    bounds: Bounds
    workers: tuple[Worker, ...]
    chunks: tuple[str, ...]
    active: tuple[tuple[str, Active], ...] = ()
    own: tuple[Halted, ...] = ()
    """The threads that the manager has started itself."""
    request: int = 1
    phase: str = "new"
    status: str = ABSENT
    first_terminal: str = "none"
    latch: str = "none"
    pages: str = "none"
    former_pages: str = "none"
    """What became of the pages of the first request, in the life of the second."""
    wire: str = "none"
    infos: int = 0
    queue: tuple[tuple[int, int], ...] = ()
    metadata: int = 0
    notices: int = 0
    straggler: bool = False
    aborted: bool = False
    polled: tuple[str, str] | None = None
    """The poll that has just ended: in which phase it was made, and what it said."""
    last_thread: str = ""
    """The thread that moved last, if it is held."""
    preemptions: int = 0
    """How often another thread moved although that one could have gone on."""
    waits_known: bool = False
    """The player says exactly who waits: nobody has to try again to find out."""
    hung: bool = False

    @classmethod
    def of(cls, bounds: Bounds) -> Life:
        """A room before its first request."""
        return cls(bounds, (Worker(),) * bounds.workers, ("unsent",) * bounds.chunks)

    # ----------------------------------------------------------------------------------------------------------------
    # What can happen

    def moves(self) -> Iterator[Move]:
        """Every move that is possible now."""
        if self.hung:
            return
        busy = dict(self.active)
        yield from (Move(thread) for thread, active in busy.items() if not (active.blocked and self.waits_known))
        yield from (Move(own.thread) for own in self.own if not own.blocked)
        if SCHEDULER not in busy:
            yield from (Move(SCHEDULER, event) for event in self._of_scheduler())
        if BOOTSTRAP not in busy:
            yield from (Move(BOOTSTRAP, event) for event in self._of_bootstrap())
        for number, worker in enumerate(self.workers):
            thread = f"worker {number}"
            if worker.state == "idle" and self.queue:
                yield Move(thread, "start")
            if worker.state == "transferring":
                yield Move(thread, "finish")
                yield Move(thread, "break")

    def _of_scheduler(self) -> Iterator[Event]:
        match self.phase:
            case "new":
                yield "create"
            case "boot" | "inflight":
                yield "poll"
                if not self.aborted:
                    yield "abort"
            case "running":
                yield "send"
            case "clearing":
                yield "clear"
            case "done" if self.request < self.bounds.requests:
                yield "reuse"

    def _of_bootstrap(self) -> Iterator[Event]:
        orderly = self.bounds.network != "disorderly"
        if self.metadata == 0 and self.phase == "boot" if orderly else self.metadata < 2:
            yield "metadata"
        live = self.phase in ("boot", "running", "inflight") and self.metadata > 0
        if self.notices == 0 and live if orderly else self.notices < 2:
            yield "abort_notice"
        if self.straggler and self.request == 2:
            yield "stale_metadata"
            yield "stale_abort_notice"

    def call(self, move: Move) -> Call:
        """The call that a move begins; ValueError if it is not possible now."""
        if move.event is None or move not in self.moves():
            raise ValueError(f"{move} is not possible in this place")
        chunk, request = 0, self.request
        if move.event == "start":
            request, chunk = self.queue[0]
        elif move.event in ("finish", "break"):
            worker = self.workers[_number(move.thread)]
            request, chunk = worker.request, worker.chunk
        elif move.event.startswith("stale"):
            request = 1
        return Call(move.event, request, chunk, chunk == self.bounds.chunks - 1)

    @property
    def idle(self) -> bool:
        """No thread has anything to do but to poll."""
        resting = all(worker.state == "idle" for worker in self.workers) and all(own.blocked for own in self.own)
        return resting and not self.active and not self.queue

    # ----------------------------------------------------------------------------------------------------------------
    # What it comes to

    def after(self, move: Move, seen: Seen) -> Life:
        """The memory after a move."""
        active, own = dict(self.active), {one.thread: one for one in self.own}
        running = active.get(self.last_thread) or own.get(self.last_thread)
        preempted = running is not None and not running.blocked and self.last_thread != move.thread
        life = attrs.evolve(self, preemptions=self.preemptions + preempted, last_thread="", polled=None, hung=seen.hung)
        call = None
        if move.event is not None:
            call = self.call(move)
            life = life._begun(move.thread, call)
        elif move.thread in active:
            call = active.pop(move.thread).call
        if seen.held is not None:
            life = attrs.evolve(life, last_thread=move.thread)
            if call is not None:
                active[move.thread] = Active(call, seen.held, seen.trail, seen.blocked)
        life = life._waiting(active, seen)._observed(seen)
        return life if seen.held is not None or call is None else life._ended(move.thread, call, seen)

    def _waiting(self, active: dict[str, Active], seen: Seen) -> Life:
        """Who is in the middle of something after a move, and who of those waits."""
        if seen.threads is None:
            if not seen.blocked:  # whoever waits for a lock may try again
                active = {thread: attrs.evolve(other, blocked=False) for thread, other in active.items()}
            return attrs.evolve(self, active=tuple(sorted(active.items())))
        now = {one.thread: one for one in seen.threads}
        active = {
            thread: attrs.evolve(one, at=now[thread].at, blocked=now[thread].blocked) for thread, one in active.items()
        }
        own = tuple(one for one in seen.threads if one.thread not in active)
        return attrs.evolve(self, active=tuple(sorted(active.items())), own=own, waits_known=True)

    def _begun(self, thread: str, call: Call) -> Life:
        match call.event:
            case "metadata":
                return attrs.evolve(self, metadata=self.metadata + 1)
            case "abort_notice":
                return attrs.evolve(self, notices=self.notices + 1)
            case "stale_metadata" | "stale_abort_notice":
                return attrs.evolve(self, straggler=False)
            case "abort":
                return attrs.evolve(self, aborted=True)
            case "start":
                life = self._with_chunk(call, "taken")
                return attrs.evolve(life._with_worker(thread, "starting", call), queue=self.queue[1:])
            case "finish" | "break":
                life = self._with_chunk(call, "done" if call.event == "finish" else "lost")
                return life._with_worker(thread, "finishing", call)
        return self

    def _observed(self, seen: Seen) -> Life:
        status = ABSENT if seen.status is None else seen.status.name
        first = self.first_terminal
        if status == ABSENT:
            first = "none"
        elif first == "none" and status in (F, S):
            first = status
        life = attrs.evolve(self, status=status, first_terminal=first)
        for request in seen.released:
            life = life._released(request)
        for request, word in seen.told:
            if request == life.request:
                wire = word.name if life.wire in ("none", word.name) else "both"
                life = attrs.evolve(life, wire=wire)
        return life

    def _released(self, request: int) -> Life:
        if request != self.request:  # the first request had its pages, if any, released before the second could come
            return self if self.former_pages == "none" else attrs.evolve(self, pages="released twice")
        pages = {"held": "released", "released": "released twice"}.get(self.pages, self.pages)
        done = self.phase == "releasing" and pages != "held"
        return attrs.evolve(self, pages=pages, phase="done" if done else self.phase)

    def _ended(self, thread: str, call: Call, seen: Seen) -> Life:
        match call.event:
            case "create":
                return attrs.evolve(self, phase="boot")
            case "metadata":
                return attrs.evolve(self, infos=call.request) if call.request == self.request else self
            case "abort_notice" | "stale_abort_notice":  # which may take the metadata away again
                return attrs.evolve(self, infos=0) if call.request == self.infos else self
            case "abort":
                return attrs.evolve(self, latch=S if self.status == S else F)
            case "poll":
                return self._acted_on(seen.answer)
            case "send":
                return self._sent()
            case "clear":
                return attrs.evolve(self, phase="releasing" if self.pages == "held" else "done")
            case "reuse":
                return self._reused()
            case "start" if seen.answer:
                return self._with_worker(thread, "transferring", call)
            case "start":
                return self._with_chunk(call, "lost")._with_worker(thread, "idle", call)
            case "finish" | "break":
                return self._with_worker(thread, "idle", call)
        return self

    def _acted_on(self, answer: object) -> Life:
        """What the scheduler does with the answer of a poll."""
        said = answer.name if isinstance(answer, KVPoll) else ABSENT
        life = attrs.evolve(self, polled=(self.phase, said))
        if said == F or (said == S and self.phase == "inflight"):
            return attrs.evolve(life, phase="clearing", latch=said)
        if said == W and self.phase == "boot":
            return attrs.evolve(life, phase="running", pages="held")
        return life

    def _sent(self) -> Life:
        number = self.chunks.index("unsent")
        life = self._with_chunk(Call("send", self.request, number), "queued")
        phase = "inflight" if number == self.bounds.chunks - 1 else "running"
        return attrs.evolve(life, queue=(*self.queue, (self.request, number)), phase=phase)

    def _reused(self) -> Life:
        return attrs.evolve(
            self,
            request=2,
            phase="new",
            chunks=("unsent",) * self.bounds.chunks,
            latch="none",
            pages="none",
            former_pages=self.pages,
            wire="none",
            metadata=0,
            notices=0,
            aborted=False,
            straggler=self.bounds.network != "orderly",
        )

    def _with_chunk(self, call: Call, label: str) -> Life:
        if call.request != self.request:
            return self
        chunks = list(self.chunks)
        chunks[call.chunk] = label
        return attrs.evolve(self, chunks=tuple(chunks))

    def _with_worker(
        self, thread: str, state: Literal["idle", "starting", "transferring", "finishing"], call: Call
    ) -> Life:
        workers = list(self.workers)
        workers[_number(thread)] = Worker(state, call.request, call.chunk) if state != "idle" else Worker()
        return attrs.evolve(self, workers=tuple(workers))

    @property
    def deadlock(self) -> bool:
        """Every thread that has begun something waits for a lock that another of them holds."""
        waiting = all(active.blocked for _, active in self.active) and all(own.blocked for own in self.own)
        return bool(self.active) and waiting


def _number(thread: str) -> int:
    return int(thread.removeprefix("worker "))
