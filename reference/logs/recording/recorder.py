"""What is noted of one manager, and whose request each event is about.

A thread knows whose request it is about while it is in a call of a sender, or has a chunk in hand that a sender queued.
The bootstrap thread knows the room only, and its events say no request.
"""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from kvlatch.reference.logs.recording.tape import Tape

FAILED, WAITING, SUCCESS = 0, 2, 4
TERMINAL: Final = (FAILED, SUCCESS)
_MARK: Final = "_kvlatch_task"
_GIVES_UP: Final = ("abort", "bootstrap_thread", "handle_abort")
"""In the names of functions that write Failed because the client or decode gives a request up."""
_FRAMES: Final = 8
_POLLS_APART: Final = 10.0
"""Seconds after which a poll that is answered like the last one is noted again."""
_MOST_ROOMS: Final = 1 << 20


class Task:
    """A chunk that is on its way; it is kept as an attribute of the engine's own object."""

    __slots__ = ("bad", "handles", "last", "number", "posted", "reading", "request", "requeued", "room")

    def __init__(self, room: Any, number: int, request: str | None, last: bool) -> None:
        self.room, self.number, self.request, self.last = room, number, request, last
        self.handles: list[Any] = []
        self.posted = self.reading = self.bad = self.requeued = False


class Mine(threading.local):
    """What the calling thread is about."""

    request: str | None = None
    called: str | None = None
    """What the request that is about to be made is called, where both ends of it have a name for it."""
    sender: Any = None
    kept_create: tuple[Any, int | None] | None = None
    """The room and the status that a new request has left as it was: it begins with it, unless it is refused."""
    op = ""
    incoming: int | None = None
    stored = put = sending = False
    task: Task | None = None


def number_of(status: Any) -> int | None:
    """A status as a table keeps it, as a number."""
    return None if status is None else int(status)


class Recorder:
    """Notes on a tape what one manager does. ``number_of`` reads an entry of its table; None is no entry.

    No method raises: what goes wrong ends the recording.
    """

    def __init__(self, tape: Tape, ops: tuple[str, ...], read: Callable[[Any], int | None] = number_of) -> None:
        self.tape = tape
        self.ops = frozenset(ops)
        self.mine = Mine()
        self.table: dict[Any, Any] = {}
        self.infos: dict[Any, Any] = {}
        self.read = read
        self.waits = False
        """Whether what starts a transfer returns before its end, and an agent is asked how it is doing."""
        self._requests = itertools.count(1)
        self._chunks: dict[Any, int] = {}
        self._held: dict[Any, str | None] = {}
        self._newest: dict[Any, str | None] = {}
        self._polled: dict[Any, tuple[Any, float]] = {}

    def close(self) -> None:
        """Write down what is left, and record nothing any more."""
        self.tape.close()

    # ----------------------------------------------------------------------------------------------------------------
    # What a thread is about

    def new_request(self) -> str:
        """What a request is called; by default a name that this process has not used before."""
        return self.mine.called or f"r{next(self._requests)}"

    @contextmanager
    def doing(self, op: str = "", request: str | None = None) -> Iterator[None]:
        """Note what the calling thread does to the table inside the block as this: create, abort or write."""
        mine = self.mine
        before = mine.op, mine.request
        mine.op, mine.request = op, request
        try:
            yield
        finally:
            mine.op, mine.request = before

    def note(self, op: str, room: Any, status: int | None = -1, incoming: int | None = None, **more: Any) -> None:
        """Note an event about the request that the thread is about; ``status`` is -1 where nobody has looked."""
        try:
            if room is None or op not in self.ops:
                return
            mine = self.mine
            if mine.kept_create is not None:
                self.made()
            task = mine.task
            request = mine.request or (task.request if task is not None and task.room == room else None)
            self.tape.note(op, room, status, incoming, more.pop("request", request), **more)
        except Exception as error:  # noqa: BLE001  # nothing that goes wrong here may reach the host
            self.tape.stop(error)

    # ----------------------------------------------------------------------------------------------------------------
    # The status table

    def shown(self, room: Any) -> int | None:
        """What the table shows."""
        return self.read(dict.get(self.table, room))

    def stored(self, room: Any, entry: Any) -> None:
        """An entry has been stored; the lock of the tape is held."""
        try:
            mine, status = self.mine, self.read(entry)
            mine.stored = True
            if status is None:  # a tombstone
                self.cleared(room)
                return
            self._wrote(room, status, status if mine.incoming is None else mine.incoming)
        except Exception as error:  # noqa: BLE001  # as above
            self.tape.stop(error)

    def kept(self, room: Any, incoming: int) -> None:
        """A status was written, and nothing was stored."""
        try:
            with self.tape.lock:
                if self.mine.op == "create":
                    self.mine.op, self.mine.kept_create = "", (room, self.shown(room))
                else:
                    self._wrote(room, self.shown(room), incoming)
        except Exception as error:  # noqa: BLE001  # as above
            self.tape.stop(error)

    def _wrote(self, room: Any, status: int | None, incoming: int) -> None:
        """A write is the first one of a new sender, gives a request up, or is one of its status."""
        mine = self.mine
        op = "write"
        if mine.op == "create":
            mine.op, op = "", "create"
            _room_for(self._newest)[room] = mine.request
        elif mine.op == "abort" or (incoming == FAILED and mine.task is None and _gives_up()):
            op = "abort"
        self.note(op, room, status, incoming if op == "write" else None)

    def made(self, *, refused: bool = False) -> None:
        """A sender has been made; one that was refused, since another one has the room, creates nothing."""
        kept, self.mine.kept_create = self.mine.kept_create, None
        if kept is not None and not refused:
            _room_for(self._newest)[kept[0]] = self.mine.request
            self.note("create", *kept)

    def cleared(self, room: Any) -> None:
        """An entry has been removed; the lock of the tape is held."""
        self.note("clear", room, None)
        for known in (self._chunks, self._held, self._newest, self._polled):
            known.pop(room, None)

    def polled(self, room: Any) -> None:
        """A sender has looked. Noted if it saw something new, or nothing was noted for ten seconds."""
        try:
            with self.tape.lock:
                shown, now = self.shown(room), time.monotonic()
                last, since = self._polled.get(room, (-1, 0.0))
                if shown != last or now - since >= _POLLS_APART:
                    _room_for(self._polled)[room] = shown, now
                    self.note("poll", room, shown)
        except Exception as error:  # noqa: BLE001  # as above
            self.tape.stop(error)

    def concluded(self, room: Any, latch: Any) -> None:
        """A sender reports a terminal status from now on."""
        if latch in TERMINAL:
            self.note("conclude", room, incoming=int(latch))

    def told(self, room: Any, status: Any, targets: Any) -> None:
        """Decode's endpoints are about to be told."""
        try:
            if int(status) not in TERMINAL or not hasattr(targets, "__len__"):  # an iterator is not ours to use up
                return
            for target in targets:
                self.note("tell", room, incoming=int(status), peer=":".join(map(str, target)))
        except Exception as error:  # noqa: BLE001  # as above
            self.tape.stop(error)

    def held(self, room: Any, request: str | None) -> None:
        """A request has its pages: said when the first chunk of it is queued."""
        if self._held.get(room, "") != request:
            _room_for(self._held)[room] = request
            self.note("hold", room, request=request)

    def released(self, room: Any, request: str | None = None) -> None:
        """A request is about to give its pages back."""
        self._held.pop(room, None)
        self.note("release", room, request=request or self.mine.request)

    # ----------------------------------------------------------------------------------------------------------------
    # Chunks

    def _number(self, room: Any) -> int:
        number = self._chunks.get(room, 0)
        _room_for(self._chunks)[room] = number + 1
        return number

    def queued(self, item: Any) -> None:
        """A chunk is about to be queued."""
        try:
            room = getattr(item, "room", None)
            if room is None:  # what tells a worker to end
                return
            mine = self.mine
            mine.put = True
            task = getattr(item, _MARK, None)
            if task is None:
                last = bool(getattr(item, "is_last_chunk", getattr(item, "is_last", False)))
                task = Task(room, self._number(room), mine.request, last)
                setattr(item, _MARK, task)
                self.held(room, task.request)
            else:  # its worker could not send it yet
                task.requeued = True
            self.note("enqueue", room, chunk=task.number, last=task.last, request=task.request)
        except Exception as error:  # noqa: BLE001  # as above
            self.tape.stop(error)

    def dropped(self, room: Any, last: object) -> None:
        """A chunk was handed over, and not queued."""
        self.note("drop", room, chunk=self._number(room), last=bool(last))

    def taken(self, item: Any) -> None:
        """A worker has taken a chunk."""
        task = getattr(item, _MARK, None)
        if task is not None and task is not self.mine.task:
            self.mine.task, task.requeued, task.posted = task, False, False
            self.note("take", task.room, chunk=task.number)

    def posting(self, task: Task) -> None:
        """A worker is about to start a transfer."""
        if not task.reading:
            task.posted = task.reading = True
            self.note("post", task.room, chunk=task.number)

    def ended(self, task: Task) -> None:
        """All transfers of a chunk that were started have ended."""
        if task.reading and not task.handles:
            task.reading = False
            self.note("fail" if task.bad else "arrive", task.room, chunk=task.number)

    def looked(self, handle: Any, state: Any) -> None:
        """A worker has asked how a transfer is doing."""
        task = self.mine.task
        if task is not None and state in ("DONE", "ERR"):
            task.bad = task.bad or state == "ERR"
            task.handles = [one for one in task.handles if one is not handle]
            self.ended(task)

    def through(self, error: str | None = None) -> None:
        """A worker goes back to its queue, or dies of an error."""
        try:
            task = self.mine.task
            if task is None:
                return
            if task.reading:
                if task.handles:  # nobody knows how they have ended, or whether
                    task.bad, task.handles = True, []
                self.ended(task)
            elif not task.posted and not task.requeued and error is None:
                mine = task.request in (None, self._newest.get(task.room, task.request))
                alive = mine and self.shown(task.room) not in (None, FAILED)
                self.note("arrive" if alive else "drop", task.room, chunk=task.number)  # nothing to send, or nowhere
            self.note("end", task.room, error=error, chunk=task.number)
            self.mine.task = None
        except Exception as fault:  # noqa: BLE001  # as above
            self.tape.stop(fault)


def _gives_up() -> bool:
    """Whether a function is on the stack that gives a request up."""
    frame: Any = sys._getframe(1)
    for _ in range(_FRAMES):
        if frame is None:
            return False
        if any(word in frame.f_code.co_name for word in _GIVES_UP) and frame.f_globals.get("__name__") != __name__:
            return True
        frame = frame.f_back
    return False


def _room_for(known: dict[Any, Any]) -> dict[Any, Any]:
    """The same, emptied if it has grown beyond all measure: its rooms were never cleared."""
    if len(known) >= _MOST_ROOMS:
        known.clear()
    return known
