"""Locks, queues, threads and time for the threads of a cast, in place of the interpreter's.

Within :func:`installed`, whatever a thread of a :class:`~.interleave.Cast` makes with the standard library is virtual:
it waits by a predicate that the cast asks, so nothing can hang unseen and every order can be played. Locks, simple
queues, threads, the clock and the selector of an event loop are replaced; Condition, Event, Semaphore, Barrier, Queue,
Future, the thread pool and asyncio are the library's own, built on those. Every other thread gets the real things.

An object outlives its play if something keeps it; then it waits for nothing any more, and all that it does succeeds.

Standard library only, and nothing of kvlatch but its neighbours.

Longer than 400 lines because whatever can make a thread wait has to be replaced together, by one list at the end.
"""

from __future__ import annotations

import _thread
import asyncio.events
import asyncio.tasks
import concurrent.futures.thread
import itertools
import logging
import queue
import selectors
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Empty
from types import TracebackType
from typing import Any, ClassVar

from kvlatch.reference.oracle import interleave, threads
from kvlatch.reference.oracle.interleave import Task, current, pause, wait
from kvlatch.reference.oracle.places import ORACLE, inside, place

Touch = Callable[[Task, object, str, bool, str], bool]
"""Note an access to a shared object, and say whether a thread is to be held there."""

WALL: float = 1_700_000_000.0
"""The wall clock at the beginning of each play, in seconds since 1970."""


def _always(*_: object) -> bool:
    return True


class Primitive:
    """What all of them have: where they were made, and the play that they belong to."""

    touch: ClassVar[Touch] = staticmethod(_always)
    """How accesses are noted; whoever plays sets it."""

    def __init__(self) -> None:
        task = current()
        self._cast = None if task is None else task.cast
        self._play = None if self._cast is None else self._cast.tasks
        self.made = place()

    @property
    def stale(self) -> bool:
        """It belongs to a play that is over: it waits for nothing any more."""
        return self._cast is not None and self._cast.tasks is not self._play

    def _held(self, task: Task, at: str) -> bool:
        return Primitive.touch(task, self, "", True, at)


class Lock(Primitive):
    """A lock: ``threading.Lock()``, and with ``depth`` above one ``threading.RLock()``."""

    reentrant = False
    signal = False
    """It keeps nobody out of anything of the manager's: a waiter of a Condition, or a lock within an executor."""

    def __init__(self, real: Any = None) -> None:
        super().__init__()
        self.owner: Task | None = None
        self.depth = 0
        self.signal = self.signal or real is not None or inside()
        self._real = real
        """The lock by which threads of no cast keep each other out, where they use this one too."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take the lock, or wait for it; False if it is not to be had, or not in time."""
        task = current()
        if task is None or self.stale:
            return self._outside(blocking)
        if self.reentrant and self.owner is task:
            self.depth += 1
            return True
        at = place()
        held = not self.signal and self._held(task, at)
        if blocking:
            limit = None if timeout < 0 else timeout
            if not wait(self._free, f"takes the lock of {self.made}", at, limit, held=held):
                return False
        else:
            if held and sys._getframe(1).f_globals is not threading.__dict__:
                pause(f"tries the lock of {self.made}", at)
            if self.depth:
                return False
        self.owner, self.depth = task, 1
        if not self.signal:
            task.locks.append(self)
        return True

    def release(self) -> None:
        """Give the lock back; RuntimeError if it is not taken."""
        if interleave.abandoned() or self.stale:
            self.owner, self.depth = None, 0
            return
        if self._real is not None and current() is None:
            self._real.release()
            return
        if self.depth == 0:
            raise RuntimeError("release unlocked lock")
        if self.reentrant and self.owner is not current():
            raise RuntimeError("cannot release un-acquired lock")
        self.depth -= 1
        if self.depth == 0:
            self._given_back()

    def locked(self) -> bool:
        """Somebody has it."""
        return self.depth > 0

    def _given_back(self) -> None:
        if self.owner is not None and self in self.owner.locks:
            self.owner.locks.remove(self)
        self.owner = None

    def _free(self) -> bool:
        return self.depth == 0

    def _outside(self, blocking: bool) -> bool:
        """By a thread of no cast: an onlooker, or one on its way out of a play that is over."""
        if self._real is not None and not interleave.abandoned():
            return bool(self._real.acquire(blocking))
        if interleave.abandoned():
            return blocking  # who only tries it finds it taken: by itself, if it is a Condition that asks
        if self._cast is None or self.stale:
            return True
        if self.depth and blocking:
            holder = "another thread" if self.owner is None else self.owner.name
            raise Busy(f"{holder} holds the lock of {self.made}")
        if not self.depth:
            self.depth = 1
            return True
        return False

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()

    # What a Condition asks of its lock.

    def _is_owned(self) -> bool:
        if interleave.abandoned():
            return True
        return self.owner is current() if self.reentrant else self.depth > 0

    def _release_save(self) -> int:
        depth, self.depth = self.depth, 0
        self._given_back()
        return depth

    def _acquire_restore(self, depth: int) -> None:
        task = current()
        if task is not None:
            wait(self._free, f"takes the lock of {self.made} again", place())
            self.owner = task
            task.locks.append(self)
        self.depth = depth

    def _recursion_count(self) -> int:
        return self.depth if self.owner is current() else 0

    def _at_fork_reinit(self) -> None:
        self.owner, self.depth = None, 0


class RLock(Lock):
    """A lock that its holder may take again."""

    reentrant = True


class Signal(Lock):
    """The lock by which a thread waits in a Condition."""

    signal = True


class Busy(Exception):
    """An onlooker would have to wait for a lock."""


class SimpleQueue(Primitive):
    """``queue.SimpleQueue``."""

    def __init__(self) -> None:
        super().__init__()
        self.items: deque[Any] = deque()

    def put(self, item: object, block: bool = True, timeout: float | None = None) -> None:
        """Add an item; never waits."""
        task = current()
        if task is not None and not self.stale:
            at = place()
            if self._held(task, at):
                pause(f"puts into the queue of {self.made}", at)
        self.items.append(item)

    put_nowait = put

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Take an item, or wait for one; queue.Empty if there is none, or none in time."""
        task = current()
        if task is None and interleave.abandoned():
            raise interleave.Abandoned
        if task is not None:
            at = place()
            held = self._held(task, at)
            if block and not wait(self._filled, f"gets from the queue of {self.made}", at, timeout, held=held):
                raise Empty
            if not block and held:
                pause(f"gets from the queue of {self.made}", at)
        if not self.items:
            raise Empty
        return self.items.popleft()

    def get_nowait(self) -> Any:
        """Take an item; queue.Empty if there is none."""
        return self.get(block=False)

    def empty(self) -> bool:
        """There is nothing in it."""
        return not self.items

    def qsize(self) -> int:
        """How many items there are."""
        return len(self.items)

    def _filled(self) -> bool:
        return bool(self.items)


class Selector(selectors.SelectSelector):
    """The selector of an event loop: it waits in the cast, and asks the system without waiting."""

    all: ClassVar[list[Selector]] = []

    def __init__(self) -> None:
        super().__init__()
        Selector.all.append(self)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """The files that are ready, after a wait for one of them, or for the time."""
        look = super().select
        if current() is None and interleave.abandoned():
            raise interleave.Abandoned
        if current() is not None and not (timeout is not None and timeout <= 0):
            wait(lambda: bool(look(0)), "waits in its event loop", place(), timeout)
        return look(0)


def sleep(seconds: float) -> None:
    """``time.sleep``: other threads may come in between, and the cast's clock moves on."""
    if current() is None:
        if not interleave.abandoned():
            _REAL_SLEEP(seconds)
    elif seconds > 0:
        wait(lambda: False, f"sleeps {seconds:g} s", place(), seconds)
    else:
        pause("sleeps", place())


_REAL_SLEEP = time.sleep


def _popen(self: subprocess.Popen[Any], *args: Any, **named: Any) -> None:
    """A process is real, and counted: it takes as long to start as many steps."""
    task = current()
    if task is not None:
        task.cast.started += 1
    _REAL_POPEN(self, *args, **named)


_REAL_POPEN = subprocess.Popen.__init__


def _clock(real: Callable[[], Any], origin: float, scale: int) -> Callable[[], Any]:
    """A clock that shows the cast's time to its threads; ``scale`` is 1 for seconds, or how many units a second has."""

    def now() -> Any:
        task = current()
        if task is None:
            return real()
        seconds = origin + task.cast.now - interleave.START + (task.cast.set_back if origin == WALL else 0.0)
        return seconds if scale == 1 else round(seconds * scale)

    return now


class _Quiet(logging.Filter):
    """Keeps to itself that a thread has been unwound because its play is over."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record is for the user."""
        error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
        return not isinstance(error, interleave.Abandoned)


for _name in ("asyncio", "concurrent.futures"):
    logging.getLogger(_name).addFilter(_Quiet())


# --- In place of the real ones ------------------------------------------------------------------------------------


def _made_by(real: Callable[[], Any], virtual: Callable[[], Any]) -> Callable[[], Any]:
    """A factory: the virtual thing for a thread of a cast, else the real one."""

    def make() -> Any:
        return real() if current() is None else virtual()

    return make


_CLOCKS = {
    "time": (WALL, 1),
    "monotonic": (interleave.START, 1),
    "perf_counter": (interleave.START, 1),
    "time_ns": (WALL, 10**9),
    "monotonic_ns": (interleave.START, 10**9),
    "perf_counter_ns": (interleave.START, 10**9),
}

INSTEAD: list[tuple[Any, Any]] = [
    (_thread.allocate_lock, _made_by(_thread.allocate_lock, Lock)),
    (threading.Lock, _made_by(threading.Lock, Lock)),
    (threading.RLock, _made_by(threading.RLock, RLock)),
    (queue.SimpleQueue, _made_by(queue.SimpleQueue, SimpleQueue)),
    (time.sleep, sleep),
    (_thread.start_new_thread, threads.start_new_thread),
    *((getattr(time, name), _clock(getattr(time, name), *how)) for name, how in _CLOCKS.items()),
]
"""What foreign code may have got hold of long ago, by ``from threading import Lock``, and what it gets instead."""
_INSTEAD = {id(real): virtual for real, virtual in INSTEAD}


def instead(thing: Any) -> Any:
    """What a thread of a cast gets instead of something."""
    return _INSTEAD.get(id(thing), thing)


def _patches() -> list[tuple[Any, str, Any]]:
    """Whose attribute becomes what, for the length of a play; not every Python has each of them."""
    lock, rlock = instead(_thread.allocate_lock), instead(threading.RLock)
    return [
        (threading, "Lock", lock),
        (threading, "RLock", rlock),
        (threading, "_allocate_lock", _made_by(_thread.allocate_lock, Signal)),
        (threading, "_time", instead(time.monotonic)),
        (threading, "_start_new_thread", threads.start_new_thread),
        (threading, "_counter", itertools.count(1).__next__),
        (_thread, "allocate_lock", lock),
        (_thread, "start_new_thread", threads.start_new_thread),
        (threading.Thread, "start", threads.start),
        (threading.Thread, "join", threads.join),
        (threading.Thread, "is_alive", threads.is_alive),
        (queue, "SimpleQueue", instead(queue.SimpleQueue)),
        (queue, "time", instead(time.monotonic)),
        (selectors, "DefaultSelector", _made_by(selectors.DefaultSelector, Selector)),
        (concurrent.futures.thread, "_global_shutdown_lock", Lock(concurrent.futures.thread._global_shutdown_lock)),
        (concurrent.futures.thread, "_threads_queues", weakref.WeakKeyDictionary()),
        (concurrent.futures.thread.ThreadPoolExecutor, "_counter", itertools.count().__next__),
        (asyncio.events.Handle, "_run", threads.run_handle),
        (asyncio.tasks, "_task_name_counter", itertools.count(1).__next__),
        (subprocess.Popen, "__init__", _popen),
        (time, "sleep", sleep),
        *((time, name, instead(getattr(time, name))) for name in _CLOCKS),
    ]


@contextmanager
def installed() -> Iterator[None]:
    """For the length of this block, the threads of a cast get virtual things; all others notice nothing."""
    patches = [patch for patch in _patches() if patch[1] in patch[0].__dict__]
    before = [(owner, name, owner.__dict__[name]) for owner, name, _ in patches]
    for owner, name, virtual in patches:
        setattr(owner, name, virtual)
    try:
        yield
    finally:
        for owner, name, real in before:
            setattr(owner, name, real)
        for selector in Selector.all:
            for key in list((selector.get_map() or {}).values()):
                close = getattr(key.fileobj, "close", None)
                if close is not None:
                    close()
        Selector.all.clear()


ORACLE.add(__file__)
