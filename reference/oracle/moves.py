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
CLOCK: Final = "clock"

Event = Literal[
    "create",  # the scheduler makes the request's sender
    "poll",  # the scheduler asks for the status, and acts on the answer
    "send",  # the scheduler queues the next chunk (the manager is not told)
    "abort",  # the scheduler aborts the request: the client has gone, or the time to bootstrap is up
    "clear",  # the scheduler has settled the request, and the manager may forget it
    "reuse",  # another request comes with the same room id (the manager is not told)
    "tick",  # the scheduler's loop goes round: it has nothing to do for this request
    "metadata",  # decode's metadata arrives
    "abort_notice",  # decode's abort notice arrives
    "start",  # a worker has taken a chunk, and asks whether to transfer it
    "finish",  # the transfer has ended well
    "break",  # the transfer has failed
    "wait",  # ten minutes pass
    "set_back",  # the clock of the day is set back by an hour
]
EVENTS: Final[tuple[Event, ...]] = get_args(Event)
_OF_HARNESS: Final = ("send", "reuse")


@attrs.frozen
class Move:
    """A thread begins an event, or goes on (``event`` None).

    ``room`` is the number of the room among those of the play. ``request`` is given for a request that is not the
    newest on its room.
    """

    thread: str
    event: Event | None = None
    request: int | None = None
    room: int = 0

    def __str__(self) -> str:
        worker = self.thread.removeprefix("worker ")
        if self.event is None:
            return f"{self.thread.replace(' ', '')}+"
        where = (f"/{worker}" if worker != self.thread else "") + (f"#{self.request}" if self.request else "")
        return self.event + where + (f"@{self.room}" if self.room else "")

    @classmethod
    def parse(cls, text: str) -> Move:
        """A move from its text; ValueError if it is not one."""
        if text.endswith("+"):
            return cls(re.sub(r"^(worker|thread)(?=\d)", r"\1 ", text[:-1]))
        found = re.fullmatch(r"([a-z_]+)(?:/(\d+))?(?:#(\d+))?(?:@(\d+))?", text)
        event = next((event for event in EVENTS if found and event == found[1]), None)
        if found is None or event is None:
            raise ValueError(f"{text!r} is no move: an event is one of {', '.join(EVENTS)}; THREAD+ lets one go on")
        thread = f"worker {found[2]}" if found[2] else _THREADS.get(event, SCHEDULER)
        return cls(thread, event, int(found[3]) if found[3] else None, int(found[4] or 0))

    @property
    def told(self) -> bool:
        """The manager hears of it."""
        return self.event not in _OF_HARNESS


_THREADS: Final[dict[Event, str]] = {
    "metadata": BOOTSTRAP, "abort_notice": BOOTSTRAP, "wait": CLOCK, "set_back": CLOCK,
}  # fmt: skip


@attrs.frozen
class Call:
    """One call of the manager: what a move that begins an event calls. Requests count from 1, chunks from 0."""

    event: Event
    request: int
    chunk: int = 0
    last: bool = False
    room: RoomId = ROOM

    def __str__(self) -> str:
        chunk = f" of chunk {self.chunk}" if self.event in ("start", "finish", "break") else ""
        return f"{self.event}{chunk} (request {self.request} of room {self.room!r})"


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
    back, and (request, terminal status) of each word to decode. All this is about the room of the call that begins or
    goes on; where a thread of the manager's own goes on, of the last call. ``elsewhere`` is what was released (None)
    or told in other rooms. ``trail`` tells apart threads held at the same place.

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
    elsewhere: tuple[tuple[RoomId, int, KVPoll | None], ...] = ()
    trail: tuple[tuple[str, object], ...] = ()
    threads: tuple[Halted, ...] | None = None
    key: bytes | None = None
    faults: tuple[Fault, ...] = ()
    hung: bool = False


@attrs.frozen
class Bounds:
    """How far the harness goes: what the network may do, how many chunks, workers, and requests on each room id.

    ``rooms`` are the ids of the rooms. ``overlap``: a request may come while the one before it on its id still lives.
    ``clock``: time may pass, and the clock of the day may be set back.
    """

    network: Network = "orderly"
    chunks: int = 1
    workers: int = 1
    requests: int = 1
    rooms: tuple[RoomId, ...] = (ROOM,)
    overlap: bool = False
    clock: bool = False

    def __str__(self) -> str:
        sizes = (("chunk", self.chunks), ("worker", self.workers), ("request", self.requests))
        parts = [f"{self.network} network", *(f"{n} {thing}{'s' * (n > 1)}" for thing, n in sizes)]
        parts += ["overlapping"] * self.overlap + ["time passes"] * self.clock
        if self.rooms != (ROOM,):
            few = len(self.rooms) <= 4
            parts.append(f"rooms {', '.join(map(repr, self.rooms))}" if few else f"{len(self.rooms):,} rooms")
        return ", ".join(parts)

    @property
    def code(self) -> str:
        """The bounds in one word, as :meth:`parse` reads it: ``orderly-1-1-1``, ``late-2-2-3-overlap-clock@0,7``."""
        word = f"{self.network}-{self.chunks}-{self.workers}-{self.requests}"
        word += "-overlap" * self.overlap + "-clock" * self.clock
        if self.rooms == (ROOM,):
            return word
        if len(self.rooms) > 2 and self.rooms == tuple(range(len(self.rooms))):
            return f"{word}@0..{len(self.rooms) - 1}"
        return f"{word}@{','.join(map(str, self.rooms))}"

    @classmethod
    def parse(cls, code: str) -> Bounds:
        """Bounds from their word; ValueError if it is not one."""
        found = re.fullmatch(
            r"(orderly|late|disorderly)-([1-4])-([1-8])-([1-9])(-overlap)?(-clock)?"
            r"(?:@(?:0\.\.(\d{1,4})|([\w,]+)))?",
            code,
        )
        if found is None:
            raise ValueError(f"{code!r} are no bounds: NETWORK-CHUNKS-WORKERS-REQUESTS, such as {cls().code}")
        network = next(name for name in get_args(Network) if name == found[1])
        rooms: tuple[RoomId, ...] = (ROOM,)
        if found[7] is not None:
            rooms = tuple(range(int(found[7]) + 1))
        elif found[8] is not None:
            rooms = tuple(int(name) if name.isdecimal() else name for name in found[8].split(","))
        return cls(network, int(found[2]), int(found[3]), int(found[4]), rooms, bool(found[5]), bool(found[6]))


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


@runtime_checkable
class Holds(Protocol):
    """A player that finds out by itself where the threads of a manager have to be held, and holds them there."""

    @property
    def places(self) -> tuple[str, ...]:
        """Where threads are held, each as ``manager.py:42:17``: the file, the line and the column."""

    def learn(self) -> bool:
        """Hold threads also at the places that the last plays have shown; True if there are any: then begin again."""

    def hold(self, places: Sequence[str]) -> None:
        """Hold threads at these places too, and learn no more: so that a play's text plays it again anywhere."""
