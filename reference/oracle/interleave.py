"""Real threads, one at a time: any interleaving of them, at will and again.

A :class:`Cast` has named threads. :meth:`Cast.go` gives one of them something to do, or lets it go on, and waits until
it has come to its end or is *held*: before an access to a :class:`Table`, before it takes a :class:`Lock`, or before a
line of watched code. All other threads rest meanwhile. So the order of the calls of ``go`` is the interleaving, and
nothing is left to luck or to the clock. What a thread is given begins with its first access: there it is not held.

A thread that holds a lock is not held at its accesses as long as every store is made under one and the same lock: then
nobody can come in between (Savage and others, *Eraser*, 1997). Once that turns out to be false, ``Cast.guarded`` is
False for good, and what has been played before has to be played again.

Standard library only, and nothing of kvlatch: a child process that runs foreign code may load this file by its path.
"""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from types import CodeType, FrameType, TracebackType
from typing import Any


class Stuck(Exception):
    """A thread has neither come to its end nor been held in time: it waits for something that nobody here can see."""


class _Abandoned(BaseException):
    """Unwinds a thread whose play is over. Not an ``Exception``, which the code in between might catch."""


@dataclass(frozen=True)
class Moved:
    """How far a thread has come.

    ``at`` is what it is held before ("reads 7", "takes a lock"), None if it has come to its end, with what it returned
    or raised. ``blocked`` says that the lock it wants is another's. ``trail`` has every access that it has made since
    it began, with what it found: two plays with equal trails are in the same place.
    """

    at: str | None = None
    blocked: bool = False
    value: object = None
    error: Exception | None = None
    trail: tuple[tuple[str, object], ...] = ()


def pause(at: str) -> None:
    """Hold the calling thread, if it is one of a cast: it goes on when the cast says so."""
    thread = threading.current_thread()
    if isinstance(thread, _Actor):
        thread.pause(at)


def note(access: str, found: object) -> None:
    """Add to the trail of the calling thread what an access has found."""
    thread = threading.current_thread()
    if isinstance(thread, _Actor):
        thread.trail.append((access, found))


def _access(at: str, *, stores: bool) -> None:
    thread = threading.current_thread()
    if isinstance(thread, _Actor):
        thread.access(at, stores=stores)


class Table(dict[Any, Any]):
    """A mapping that threads share: before each access to an entry, the thread is held.

    For an audit, ``keys_used`` has the keys of all accesses so far, and ``stores`` counts the stores.
    """

    def __init__(self) -> None:
        super().__init__()
        self.keys_used: set[object] = set()
        self.stores = 0

    def _read(self, key: object) -> None:
        _access(f"reads {key}", stores=False)
        self.keys_used.add(key)
        note(f"read {key}", super().get(key))

    def _store(self, key: object) -> None:
        _access(f"stores {key}", stores=True)
        self.stores += 1
        self.keys_used.add(key)
        note(f"store {key}", None)

    def __getitem__(self, key: object) -> Any:
        self._read(key)
        return super().__getitem__(key)

    def get(self, key: object, default: object = None) -> Any:
        self._read(key)
        return super().get(key, default)

    def __contains__(self, key: object) -> bool:
        self._read(key)
        return super().__contains__(key)

    def __setitem__(self, key: object, value: object) -> None:
        self._store(key)
        super().__setitem__(key, value)

    def setdefault(self, key: object, default: object = None) -> Any:
        self._store(key)  # one step: the interpreter does not let another thread in
        return super().setdefault(key, default)

    def __delitem__(self, key: object) -> None:
        self._store(key)
        super().__delitem__(key)

    def pop(self, key: object, *default: object) -> Any:
        self._store(key)
        return super().pop(key, *default)

    def peek(self, key: object) -> Any:
        """An entry, or None, without being an access: for whoever looks on."""
        return super().get(key)


class Lock:
    """A lock of ``threading`` for the threads of a cast: who finds it taken says so and rests, so nothing can hang."""

    def __init__(self, *, reentrant: bool = False, number: int = 0) -> None:
        self.number = number
        self._reentrant = reentrant
        self._owner: threading.Thread | None = None
        self._depth = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take the lock; without ``blocking``, or with any time limit, give up at once where it is taken."""
        me = threading.current_thread()
        if self._reentrant and self._owner is me:
            self._depth += 1
            return True
        pause("takes a lock")
        while self._owner is not None:
            if not blocking or timeout >= 0:
                return False
            if not isinstance(me, _Actor):
                raise Stuck(f"{self._owner.name} holds a lock that nobody can wait for here")
            me.pause(f"waits for a lock that {self._owner.name} holds", blocked=True)
        self._owner, self._depth = me, 1
        if isinstance(me, _Actor):
            me.locks.add(self.number)
        return True

    def release(self) -> None:
        """Give the lock back; RuntimeError if it is not taken."""
        if self._owner is None:
            raise RuntimeError("release unlocked lock")
        self._depth -= 1
        if self._depth == 0:
            if isinstance(self._owner, _Actor):
                self._owner.locks.discard(self.number)
            self._owner = None

    def locked(self) -> bool:
        """Somebody has it."""
        return self._owner is not None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()


@contextmanager
def visible_locks() -> Iterator[None]:
    """Within this block, ``threading.Lock()`` and ``threading.RLock()`` make locks that can be seen."""
    numbers = itertools.count()

    def lock() -> Lock:
        return Lock(number=next(numbers))

    def rlock() -> Lock:
        return Lock(reentrant=True, number=next(numbers))

    real = threading.Lock, threading.RLock
    threading.Lock, threading.RLock = lock, rlock  # type: ignore[assignment]  # for so long as the block takes
    try:
        yield
    finally:
        threading.Lock, threading.RLock = real


class Cast:
    """The threads of one play after another, by name; ``patience`` is in seconds."""

    def __init__(self, patience: float = 10.0) -> None:
        self.patience = patience
        self.guarded = True
        self._guards: frozenset[int] | None = None
        self._watched: set[CodeType] = set()
        self._actors: dict[str, _Actor] = {}

    def watch(self, code: CodeType) -> None:
        """Hold threads before each line of this code, too."""
        self._watched.add(code)

    def go(self, name: str, act: Callable[[], object] | None = None, passes: int = 0) -> Moved:
        """Give a thread that rests something to do, or let one that is held go on (``act`` None).

        It passes so many places where it would be held. Raises :class:`Stuck` if it does not come to rest, ValueError
        if it is not the thread's turn to do that.
        """
        actor = self._actors.get(name)
        if actor is None:
            actor = self._actors[name] = _Actor(name, self)
            actor.start()
        if (act is None) != actor.held:
            raise ValueError(f"{name} is {'held' if actor.held else 'at rest'}")
        return actor.go(act, passes)

    def stored(self, locks: set[int]) -> None:
        """A store has been made under these locks."""
        self._guards = frozenset(locks) if self._guards is None else self._guards & locks
        if not self._guards:
            self.guarded = False

    def reset(self) -> None:
        """End the play: whoever is held gives up there."""
        for actor in self._actors.values():
            if actor.held:
                actor.abandon()
        self._watched.clear()

    def close(self) -> None:
        """End the play, and the threads."""
        self.reset()
        for actor in self._actors.values():
            actor.orders.put(None)
        self._actors.clear()


class _Actor(threading.Thread):
    """One thread of a cast."""

    def __init__(self, name: str, cast: Cast) -> None:
        super().__init__(name=name, daemon=True)
        self.cast = cast
        self.orders: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self.reports: SimpleQueue[Moved] = SimpleQueue()
        self.permits: SimpleQueue[bool] = SimpleQueue()
        self.trail: list[tuple[str, object]] = []
        self.locks: set[int] = set()
        self.passes = 0
        self.held = False

    def run(self) -> None:
        while (act := self.orders.get()) is not None:
            self.trail = []
            self.locks = set()
            watching = bool(self.cast._watched)
            if watching:
                sys.settrace(self._trace)
            try:
                moved = Moved(value=act())
            except _Abandoned:
                moved = Moved()
            except Exception as error:  # noqa: BLE001  # whatever it is, it is what the act came to
                moved = Moved(error=error)
            finally:
                if watching:
                    sys.settrace(None)
            self.reports.put(moved)

    def access(self, at: str, *, stores: bool) -> None:
        if stores:
            self.cast.stored(self.locks)
        if not self.locks or not self.cast.guarded:
            self.pause(at)

    def pause(self, at: str, *, blocked: bool = False) -> None:
        if self.passes > 0:
            self.passes -= 1
            return
        self.reports.put(Moved(at=at, blocked=blocked, trail=tuple(self.trail)))
        if not self.permits.get():
            raise _Abandoned

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code not in self.cast._watched:
            return None
        if event == "line":
            pause(f"runs line {frame.f_lineno}")
            note(f"line {frame.f_lineno}", None)
        return self._trace

    # What follows is for the thread of the cast's owner.

    def go(self, act: Callable[[], object] | None, passes: int) -> Moved:
        self.passes = passes
        if act is None:
            self.permits.put(True)
        else:
            self.passes += 1  # the first access is where it begins
            self.orders.put(act)
        return self._wait()

    def abandon(self) -> None:
        self.permits.put(False)
        while (self._wait()).at is not None:  # a handler on the way out may access the table once more
            self.permits.put(False)

    def _wait(self) -> Moved:
        try:
            moved = self.reports.get(timeout=self.cast.patience)
        except Empty:
            raise Stuck(f"{self.name} has not come to rest in {self.cast.patience:g} s") from None
        self.held = moved.at is not None
        return moved
