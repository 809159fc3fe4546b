"""The words in which the oracle and a player speak: moves, calls, scripts, and what is seen.

A *move* starts one event on one thread, or lets a thread go on that is held inside a call. A *script* is what a player
hears of a play: the calls, each on its thread. A *player* plays it on a fresh manager and says what is seen.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, Literal, Protocol, get_args, runtime_checkable

import attrs

from kvlatch.spec.schema import Network
from kvlatch.spec.status import KVPoll

RoomId = int | str
ROOM: Final = 7
"""The id of the only room, where there is one."""
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
            return cls(re.sub(r"^(worker|thread)(?=\d)", r"\1 ", text[:-1]))
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
class Halted:
    """A thread in the middle of something: before what, where in the subject's code ("manager.py:42"), and how.

    ``blocked``: it cannot go on until another thread has done something. A wait with a time limit is blocked too, as
    long as anybody else can go on: time passes when nothing else happens. ``locks`` are those that it holds, each named
    by where it was made.
    """

    thread: str
    at: str
    place: str = ""
    blocked: bool = False
    locks: tuple[str, ...] = ()


@attrs.frozen
class Fault:
    """An exception has left a handler, or ended a thread of the manager: which, where, and its traceback."""

    thread: str
    what: str
    file: str | None = None
    line: int | None = None
    text: str = ""


@attrs.frozen
class Seen:
    """What is seen after a move.

    ``status`` is the table's entry, None if there is none. ``held`` says before what the thread is held, ``blocked``
    that it waits for another's lock. Once the event has ended, ``answer`` is what a poll or a start returned.
    ``released`` and ``told`` are what the manager has done since the last move: requests whose pages it has given
    back, and (request, terminal status) of each word to decode. ``trail`` tells apart threads held at the same place.

    The rest is for players that know it. ``threads`` are all that are in the middle of something, the manager's own
    among them (None: unknown). ``key`` is a digest of the manager's objects and of where its threads are: two plays
    with equal keys go on alike. ``faults`` are exceptions, and ``hung`` says that the thread did not come to rest in
    time: nothing can follow such a move.
    """

    status: KVPoll | None
    held: str | None = None
    blocked: bool = False
    answer: KVPoll | bool | None = None
    released: tuple[int, ...] = ()
    told: tuple[tuple[int, KVPoll], ...] = ()
    trail: tuple[tuple[str, object], ...] = ()
    threads: tuple[Halted, ...] | None = None
    key: bytes | None = None
    faults: tuple[Fault, ...] = ()
    hung: bool = False


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
class Step:
    """One step of a script: a thread makes a call, or goes on (``call`` None)."""

    thread: str
    call: Call | None = None


Script = tuple[Step, ...]


class Player(Protocol):
    """Plays scripts on one manager after another, each fresh, which has heard of nothing else."""

    def play(self, scripts: Sequence[Script]) -> list[Seen]:
        """What is seen after the last step of each script."""


class Learnt(Exception):
    """A player has found more places where threads must be held: what it has played before says nothing about them.

    Whoever explores begins again; that ends, since there are only so many places in a manager's code.
    """


@runtime_checkable
class Holds(Protocol):
    """A player that finds out by itself where the threads of a manager have to be held, and holds them there."""

    @property
    def places(self) -> tuple[str, ...]:
        """Where threads are held, each as ``manager.py:42:17``: the file, the line and the column."""

    def hold(self, places: Sequence[str]) -> None:
        """Hold threads there and nowhere else, and learn no more: so that a play's text plays it again anywhere."""
