"""What surrounds a manager: one room's requests, their scheduler, the network and the transfer workers.

The manager under test decides everything that is a manager's to decide; the harness plays the rest, and remembers what
an observer of both would know. :class:`Life` is that memory, immutable. Its :meth:`Life.moves` are what can happen
next, :meth:`Life.after` is the memory after it, :meth:`Life.broken` names the properties of ``kvlatch.spec`` that are
now broken, by the spec's own formulas: what the spec calls the status is what the table says, and the rest of the
state is what the harness knows.

A *move* starts one event on one thread, or lets a thread go on that is held between two accesses. An event is one call
of the manager (``EVENTS``), so it is coarser than a step of the protocol; held threads give the finer interleavings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Final, Literal, get_args

import attrs

from kvlatch.spec import protocol
from kvlatch.spec.designs import DESIGNS, Network
from kvlatch.spec.model import Instance, Machine, named
from kvlatch.spec.properties import PROPERTIES
from kvlatch.spec.status import ABSENT, F, KVPoll, S, W
from kvlatch.spec.terms import State, Term, Var

SCHEDULER: Final = "scheduler"
BOOTSTRAP: Final = "bootstrap"

Event = Literal[
    "create",  # the scheduler makes the request's sender
    "poll",  # the scheduler asks for the status, and acts on the answer
    "send",  # the scheduler queues the next chunk (the manager is not told)
    "abort",  # the scheduler aborts the request: the client has gone, or the time to bootstrap is up
    "clear",  # the scheduler has settled the request, and the manager may forget it
    "reuse",  # a second request comes with the same room id (the manager is not told)
    "metadata",  # decode's metadata arrives
    "abort_notice",  # decode's abort notice arrives
    "stale_metadata",  # metadata of the first request arrives in the life of the second
    "stale_abort_notice",  # the same of an abort notice
    "start",  # a worker has taken a chunk, and asks whether to transfer it
    "finish",  # the transfer has ended well
    "break",  # the transfer has failed
]
EVENTS: Final[tuple[Event, ...]] = get_args(Event)
_OF_HARNESS: Final = ("send", "reuse")


@attrs.frozen
class Move:
    """A thread begins an event, or goes on (``event`` None)."""

    thread: str
    event: Event | None = None

    def __str__(self) -> str:
        worker = self.thread.removeprefix("worker ")
        if self.event is None:
            return f"{self.thread.replace(' ', '')}+"
        return f"{self.event}/{worker}" if worker != self.thread else self.event

    @classmethod
    def parse(cls, text: str) -> Move:
        """A move from its text; ValueError if it is none."""
        if text.endswith("+"):
            thread = text[:-1].replace("worker", "worker ")
            return cls(thread)
        name, slash, worker = text.partition("/")
        event = next((event for event in EVENTS if event == name), None)
        if event is None:
            raise ValueError(f"{text!r} is no move: an event is one of {', '.join(EVENTS)}; THREAD+ lets one go on")
        if slash:
            return cls(f"worker {worker}", event)
        return cls(BOOTSTRAP if "metadata" in event or "notice" in event else SCHEDULER, event)

    @property
    def told(self) -> bool:
        """The manager hears of it."""
        return self.event not in _OF_HARNESS


@attrs.frozen
class Call:
    """One call of the manager: what a move that begins an event comes to. ``request`` is 1 or 2, ``chunk`` from 0."""

    event: Event
    request: int
    chunk: int = 0
    last: bool = False


@attrs.frozen
class Seen:
    """What is seen after a move.

    ``status`` is the table's entry, None if there is none. ``held`` says before what the thread is held, ``blocked``
    that it waits for another's lock. Once the event has ended, ``answer`` is what a poll or a start returned.
    ``released`` and ``told`` are what the manager has done since the last move: requests whose pages it has given
    back, and (request, terminal status) of each word to decode. ``trail`` tells apart threads held at the same place.
    """

    status: KVPoll | None
    held: str | None = None
    blocked: bool = False
    answer: KVPoll | bool | None = None
    released: tuple[int, ...] = ()
    told: tuple[tuple[int, KVPoll], ...] = ()
    trail: tuple[tuple[str, object], ...] = ()


@attrs.frozen
class Bounds:
    """How far the harness goes: what the network may do, how many chunks, workers, and requests on the room id."""

    network: Network = "orderly"
    chunks: int = 1
    workers: int = 1
    requests: int = 1

    def __str__(self) -> str:
        sizes = (("chunk", self.chunks), ("worker", self.workers), ("request", self.requests))
        return ", ".join([f"{self.network} network", *(f"{n} {thing}{'s' * (n > 1)}" for thing, n in sizes)])

    @property
    def code(self) -> str:
        """The bounds in one word, as :meth:`parse` reads it: ``orderly-1-1-1``."""
        return f"{self.network}-{self.chunks}-{self.workers}-{self.requests}"

    @classmethod
    def parse(cls, code: str) -> Bounds:
        """Bounds from their word; ValueError if it is none."""
        found = re.fullmatch(r"(orderly|late|disorderly)-([1-4])-([1-8])-([12])", code)
        if found is None:
            raise ValueError(f"{code!r} are no bounds: NETWORK-CHUNKS-WORKERS-REQUESTS, such as {cls().code}")
        network = next(name for name in get_args(Network) if name == found[1])
        return cls(network, int(found[2]), int(found[3]), int(found[4]))


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

    @classmethod
    def of(cls, bounds: Bounds) -> Life:
        """A room before its first request."""
        return cls(bounds, (Worker(),) * bounds.workers, ("unsent",) * bounds.chunks)

    # ----------------------------------------------------------------------------------------------------------------
    # What can happen

    def moves(self) -> Iterator[Move]:
        """Every move that is possible now."""
        busy = dict(self.active)
        yield from (Move(thread) for thread in busy)
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
        resting = all(worker.state == "idle" for worker in self.workers)
        return resting and not self.active and not self.queue

    # ----------------------------------------------------------------------------------------------------------------
    # What it comes to

    def after(self, move: Move, seen: Seen) -> Life:
        """The memory after a move."""
        active = dict(self.active)
        running = active.get(self.last_thread)
        preempted = running is not None and not running.blocked and self.last_thread != move.thread
        life = attrs.evolve(self, preemptions=self.preemptions + preempted, last_thread="", polled=None)
        if move.event is None:
            call = active.pop(move.thread).call
        else:
            call = self.call(move)
            life = life._begun(move.thread, call)
        if not seen.blocked:  # whoever waits for a lock may try again
            active = {thread: attrs.evolve(other, blocked=False) for thread, other in active.items()}
        if seen.held is not None:
            active[move.thread] = Active(call, seen.held, seen.trail, seen.blocked)
            life = attrs.evolve(life, last_thread=move.thread)
        life = attrs.evolve(life, active=tuple(sorted(active.items())))._observed(seen)
        return life if seen.held is not None else life._ended(move.thread, call, seen)

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

    # ----------------------------------------------------------------------------------------------------------------
    # What is broken

    def labels(self) -> dict[str, str]:
        """This life as a state of the spec, by names."""
        machine = _machine(self.bounds)
        return named(machine, _state(self, machine))

    @property
    def deadlock(self) -> bool:
        """Every thread that has begun something waits for a lock that another of them holds."""
        return bool(self.active) and all(active.blocked for _, active in self.active)

    def broken(self) -> list[str]:
        """The properties that are broken now, by name."""
        broken = [name for name in _broken_in(self.bounds, self._values()) if name not in _POLLED]
        if self.polled is not None:
            phase, said = self.polled
            polled = attrs.evolve(self, phase=phase, status=said, latch="none")
            about_table = said == self.status  # else the sender has a word of its own, which hides the table's
            broken += [
                name
                for name in _broken_in(self.bounds, polled._values())
                if name == "no-pin" or (name in _POLLED and about_table)
            ]
        return broken + ["settlement"] * self._never_settles()

    def _values(self) -> tuple[int, ...]:
        return tuple(_state(self, _machine(self.bounds)).values())

    def _never_settles(self) -> bool:
        """All that is left is to poll, and the poll has changed nothing; or to wait for pages that nobody releases."""
        if not self.idle:
            return False
        if self.phase == "releasing":
            return True
        return self.polled is not None and (self.phase == "inflight" or (self.phase == "boot" and self.aborted))


_POLLED: Final = ("terminal-sticky", "success-not-overwritten", "no-pin")
"""The properties about what the next poll will read: here, about what a poll has just said."""


def _number(thread: str) -> int:
    return int(thread.removeprefix("worker "))


@cache
def _machine(bounds: Bounds) -> Machine:
    """The spec's state space for these bounds; of the design nothing but that is asked."""
    design = attrs.evolve(DESIGNS["latch"], poll_absent="WaitingForInput")  # "no entry" is no terminal answer
    return Machine.of(design, "locked", bounds.network, Instance(bounds.workers, bounds.chunks, bounds.requests))


@cache
def _bad(bounds: Bounds) -> dict[str, Term]:
    """The bad states of the safety properties."""
    model = _machine(bounds).model
    return {prop.name: model.claim(prop.bad) for prop in PROPERTIES if prop.kind == "safety"}


@cache
def _broken_in(bounds: Bounds, values: tuple[int, ...]) -> tuple[str, ...]:
    """The safety properties that a state of the spec breaks; its values are in the order of the variables."""
    machine = _machine(bounds)
    state = dict(zip(machine.model.variables, values, strict=True))
    return tuple(name for name, claim in _bad(bounds).items() if machine.holds(claim, state))


def _state(life: Life, machine: Machine) -> State:
    """A life as a state of the spec."""
    busy = dict(life.active)
    generation = ("none", "first", "second")
    often = ("none", "once", "twice")
    pc = {"idle": "idle", "starting": "taken", "transferring": "transferring", "finishing": "concluding"}
    waiting = {chunk for request, chunk in life.queue if request != life.request}
    room = {
        protocol.status: life.status,
        protocol.stamp: generation[life.request],
        protocol.first_terminal: life.first_terminal,
        protocol.infos: generation[life.infos],
        protocol.gen: generation[life.request],
        protocol.phase: life.phase,
        protocol.latch: life.latch,
        protocol.pages: life.pages,
        protocol.wire: life.wire,
        protocol.scheduler: "create*" if SCHEDULER in busy else "free",
        protocol.bootstrap: "registered" if BOOTSTRAP in busy else "idle",
        protocol.metadata: often[life.metadata],
        protocol.notice: often[life.notices],
    }
    several = {
        protocol.chunk: life.chunks,
        protocol.stale: tuple("yes" if chunk in waiting else "no" for chunk in range(life.bounds.chunks)),
        protocol.worker: tuple(pc[worker.state] for worker in life.workers),
        protocol.job: tuple(str(worker.chunk) for worker in life.workers),
        protocol.job_gen: tuple(generation[worker.request] for worker in life.workers),
    }

    def label(var: Var) -> str:
        if var.field in several:
            return several[var.field][int(var.name.rpartition("_")[2])]
        return room.get(var.field, var.labels[0])

    return {var: var.index(label(var)) for var in machine.model.variables}
