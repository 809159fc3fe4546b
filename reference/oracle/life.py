"""The requests on one room id: what the scheduler, the network and the workers may do with them, and what is known.

The manager under test decides everything that is a manager's to decide; the rest is played. :class:`Life` is what an
observer knows of one room, immutable. :meth:`Life.events` is what can happen in it next; the other methods are what is
known after that. ``world.py`` has the threads on which it happens, and ``formulas.py`` asks what is broken.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import attrs

from kvlatch.reference.oracle.moves import BOOTSTRAP, SCHEDULER, Bounds, Call, Event, Move, RoomId, Seen
from kvlatch.spec.status import ABSENT, F, KVPoll, S, W

SETTLED = ("releasing", "done")
"""The phases in which a request has been cleared."""


@attrs.frozen
class Worker:
    """A transfer worker, as far as this room is concerned: idle, or with a chunk of a request."""

    state: Literal["idle", "starting", "transferring", "finishing"] = "idle"
    request: int = 1
    chunk: int = 0


@attrs.frozen
class Request:
    """What is known of one request. The words are the spec's: ``phase``, ``latch``, ``pages``, ``chunks``."""

    chunks: tuple[str, ...]
    phase: str = "new"
    latch: str = "none"
    pages: str = "none"
    words: tuple[str, ...] = ()
    """What decode has been told: F or S, each time."""
    late_word: bool = False
    """Decode has been told by a call that began when the request had been cleared."""
    heard: bool = False
    """Decode's metadata has come, or is coming, and has not been taken away by an abort notice."""
    metadata: int = 0
    notices: int = 0
    straggler: bool = False
    """The network still has a message about it, although it is over."""
    aborted: bool = False
    lost: bool = False
    """A transfer of it has failed."""
    superseded: bool = False
    """A newer request came on its id before it was over: a manager may then give it up without a word."""
    shown: bool = True
    """The table's entry is about it, if about anything."""

    @property
    def wire(self) -> str:
        """What decode has been told, as the spec says it."""
        return "none" if not self.words else self.words[0] if len(set(self.words)) == 1 else "both"

    @property
    def untold(self) -> bool:
        """It is over, and decode has not heard what nobody else tells it: Success, or that a transfer has failed."""
        if self.phase != "done" or self.words:
            return False
        given_up = self.aborted or self.notices or self.superseded
        return self.latch == S or (self.latch == F and self.lost and not given_up)


@attrs.frozen
class Poll:
    """A poll that has just ended: whose, in which phase it was made, and what it said."""

    request: int
    phase: str
    said: str


@attrs.frozen
class Life:
    """What an observer knows of one room so far; ``queue`` has the chunks that wait, as (request, chunk)."""

    bounds: Bounds
    room: RoomId
    workers: tuple[Worker, ...]
    requests: tuple[Request, ...]
    queue: tuple[tuple[int, int], ...] = ()
    status: str = ABSENT
    first_terminal: str = "none"
    polled: Poll | None = None
    resumed: bool = False
    """A worker has just been sent to transfer a request that had failed before the worker asked."""

    @classmethod
    def of(cls, bounds: Bounds, room: RoomId) -> Life:
        """A room before its first request."""
        return cls(bounds, room, (Worker(),) * bounds.workers, (Request(("unsent",) * bounds.chunks),))

    @property
    def now(self) -> Request:
        """The newest request."""
        return self.requests[-1]

    @property
    def request(self) -> int:
        """The number of the newest request, from 1."""
        return len(self.requests)

    # ----------------------------------------------------------------------------------------------------------------
    # What can happen

    def events(self) -> Iterator[Move]:
        """What can happen next, if the thread on which it happens has nothing else to do; ``Move.room`` is not set."""
        for number, request in enumerate(self.requests, 1):
            shown = None if number == self.request else number
            yield from (Move(SCHEDULER, event, shown) for event in self._of_scheduler(number, request))
            yield from (Move(BOOTSTRAP, event, shown) for event in self._of_bootstrap(number, request))
        for number, worker in enumerate(self.workers):
            thread = f"worker {number}"
            if worker.state == "idle" and self.queue:
                yield Move(thread, "start")
            if worker.state == "transferring":
                yield Move(thread, "finish")
                yield Move(thread, "break")

    def _of_scheduler(self, number: int, request: Request) -> Iterator[Event]:
        match request.phase:
            case "new":
                yield "create"
            case "boot" | "inflight":
                yield "poll"
                if not request.aborted:
                    yield "abort"
            case "running":
                yield "send"
            case "clearing":
                yield "clear"
        over = request.phase == "done" or (self.bounds.overlap and request.phase != "new")
        if over and number == self.request < self.bounds.requests:
            yield "reuse"

    def _of_bootstrap(self, number: int, request: Request) -> Iterator[Event]:
        if number < self.request and request.phase == "done":
            if request.straggler:
                yield "metadata"
                yield "abort_notice"
            return
        orderly = self.bounds.network != "disorderly"
        if request.metadata == 0 and request.phase == "boot" if orderly else request.metadata < 2:
            yield "metadata"
        live = request.phase in ("boot", "running", "inflight") and request.metadata > 0
        if request.notices == 0 and live if orderly else request.notices < 2:
            yield "abort_notice"

    def call(self, move: Move) -> Call:
        """The call that a move begins; ValueError if it begins none."""
        if move.event is None:
            raise ValueError(f"{move} begins nothing")
        chunk, request = 0, move.request or self.request
        if move.event == "start":
            request, chunk = self.queue[0]
        elif move.event in ("finish", "break"):
            worker = self.workers[number_of(move.thread)]
            request, chunk = worker.request, worker.chunk
        return Call(move.event, request, chunk, chunk == self.bounds.chunks - 1, self.room)

    # ----------------------------------------------------------------------------------------------------------------
    # What is known then

    def begun(self, thread: str, call: Call) -> Life:
        """A call begins."""
        one = self.requests[call.request - 1]
        match call.event:
            case "metadata" | "abort_notice" if self._over(call.request):
                return self._with(call.request, straggler=False)
            case "metadata":
                return self._with(call.request, metadata=one.metadata + 1, heard=True)
            case "abort_notice":
                return self._with(call.request, notices=one.notices + 1)
            case "abort":
                return self._with(call.request, aborted=True)
            case "start":
                life = self._with_chunk(call, "taken")
                return attrs.evolve(life._with_worker(thread, "starting", call), queue=self.queue[1:])
            case "finish" | "break":
                life = self._with_chunk(call, "done" if call.event == "finish" else "lost")
                return life._with_worker(thread, "finishing", call)
        return self

    def observed(self, status: KVPoll | None) -> Life:
        """What the table says now."""
        label = ABSENT if status is None or not self.now.shown else status.name
        first = self.first_terminal
        if label == ABSENT:
            first = "none"
        elif first == "none" and label in (F, S):
            first = label
        return attrs.evolve(self, status=label, first_terminal=first)

    def caught_up(self) -> Life:
        """The manager has done all that it was asked: a request that has been made is the one that the table shows."""
        return self if self.now.shown or self.now.phase == "new" else self._with(self.request, shown=True)

    def did(self, seen: Seen, about: int = 0, *, late: bool = False) -> Life:
        """What the manager has released and told in a call about a request; ``late``: it had been cleared before."""
        life = self
        for request in seen.released:
            life = life._released(request)
        for request, word in seen.told:
            one = life.requests[request - 1] if request <= life.request else None
            if one is not None:
                wrong = late if request == about else bool(about) and one.phase in SETTLED
                words = (*one.words, word.name)[:3]
                life = life._with(request, words=words, late_word=one.late_word or wrong)
        return life

    def _released(self, number: int) -> Life:
        if number > self.request:
            return self
        one = self.requests[number - 1]
        pages = {"held": "released", "released": "released twice"}.get(one.pages, one.pages)
        done = one.phase == "releasing" and pages != "held"
        return self._with(number, pages=pages, phase="done" if done else one.phase)

    def ended(self, thread: str, call: Call, seen: Seen, *, alone: bool, failed: bool, quiet: bool) -> Life:
        """A call has ended. ``alone``: no other thread has moved since it began; ``failed``: the room had by then.

        ``quiet``: none of the manager's own threads has anything left to do.
        """
        one = self.requests[call.request - 1]
        match call.event:
            case "create":
                shown = one.shown or quiet  # else it may wait in a queue still, and the entry is the older one's
                return self._with(call.request, phase="boot", shown=shown).observed(seen.status)
            case "metadata" | "abort_notice":
                # A manager may refuse metadata of what it does not know, to get it again: then nothing is there. And
                # an abort notice may take the metadata away again.
                refused = one.phase == "new" and not (one.shown and quiet and seen.status is not None)
                return self._with(call.request, heard=one.heard and call.event == "metadata" and not refused)
            case "abort":
                if call.request < self.request or not quiet:
                    return self  # what stands for it, its next poll will say
                return self._with(call.request, latch=S if self.status == S else F)
            case "poll":
                return self._acted_on(call.request, seen.answer, alone=alone)
            case "send":
                return self._sent(call.request)
            case "clear":
                return self._with(call.request, phase="releasing" if one.pages == "held" else "done")
            case "reuse":
                return self._reused(quiet=quiet)
            case "start" if seen.answer:
                return attrs.evolve(self._with_worker(thread, "transferring", call), resumed=failed and alone)
            case "start" | "finish" | "break":
                life = self._with_chunk(call, "lost") if call.event == "start" else self
                if call.event == "break" and not self._over(call.request):
                    life = life._with(call.request, lost=True)
                return life._with_worker(thread, "idle", call)
        return self

    def _acted_on(self, number: int, answer: object, *, alone: bool) -> Life:
        """What the scheduler does with the answer of a poll; an older request without an entry is given up."""
        said = answer.name if isinstance(answer, KVPoll) else ABSENT
        phase = self.requests[number - 1].phase
        life = attrs.evolve(self, polled=Poll(number, phase, said) if alone else None)
        if said == ABSENT and number < self.request:  # it has lost its room to a newer request
            return life._with(number, phase="clearing")
        if said == F or (said == S and phase == "inflight"):
            return life._with(number, phase="clearing", latch=said)
        if said == W and phase == "boot":
            return life._with(number, phase="running", pages="held")
        return life

    def _sent(self, number: int) -> Life:
        chunk = self.requests[number - 1].chunks.index("unsent")
        life = self._with_chunk(Call("send", number, chunk), "queued")
        phase = "inflight" if chunk == self.bounds.chunks - 1 else "running"
        return attrs.evolve(life, queue=(*self.queue, (number, chunk)))._with(number, phase=phase)

    def _reused(self, *, quiet: bool) -> Life:
        straggler = self.bounds.network != "orderly"
        if self.now.phase == "done":  # no more is asked about it than whether its pages go back, or it is told, again
            before = Request(("done",) * self.bounds.chunks, "done", pages=self.now.pages, straggler=straggler)
        else:
            before = attrs.evolve(self.now, straggler=straggler, superseded=True)
        requests = (*self.requests[:-1], before)
        alone = quiet and all(one.phase == "done" for one in self.requests)
        fresh = Request(("unsent",) * self.bounds.chunks, shown=alone)
        life = attrs.evolve(self, requests=(*requests, fresh))
        return life if alone else attrs.evolve(life, status=ABSENT, first_terminal="none")

    def _with(self, number: int, **changes: Any) -> Life:
        requests = list(self.requests)
        requests[number - 1] = attrs.evolve(requests[number - 1], **changes)
        return attrs.evolve(self, requests=tuple(requests))

    def _over(self, number: int) -> bool:
        """The request is over, and another one has its id."""
        return number < self.request and self.requests[number - 1].phase == "done"

    def _with_chunk(self, call: Call, label: str) -> Life:
        if self._over(call.request):
            return self
        chunks = list(self.requests[call.request - 1].chunks)
        chunks[call.chunk] = label
        return self._with(call.request, chunks=tuple(chunks))

    def _with_worker(
        self, thread: str, state: Literal["idle", "starting", "transferring", "finishing"], call: Call
    ) -> Life:
        workers = list(self.workers)
        workers[number_of(thread)] = Worker(state, call.request, call.chunk) if state != "idle" else Worker()
        return attrs.evolve(self, workers=tuple(workers))


def number_of(thread: str) -> int:
    """The number of a worker."""
    return int(thread.removeprefix("worker "))
