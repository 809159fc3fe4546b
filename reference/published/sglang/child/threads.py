"""Threads of the child that can be held: before they access a watched table, take a lock or tell decode; in a transfer.

One thread runs at a time: the player's, which waits for an actor, or that actor, until it is held or its op has
ended. So what a script does is the same in every run. A thread that needs a lock which a held thread has makes that one
go on until it gives the lock back, as it would; threads that wait for each other are a deadlock, and seen as one.
"""

from __future__ import annotations

import dataclasses
import queue
import threading
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any, Literal

Point = Literal["read", "store", "lock", "tell", "transfer"]
"""Where a thread may be held: before it reads or stores in a table, takes a lock or tells decode; or in a transfer."""

STOPS: dict[str, tuple[Point, ...]] = {
    "begin": ("store",),
    "step": ("read", "store", "lock", "tell"),
    "post": ("transfer",),
}
"""At which points an op is held, by the part of it that is asked for; any other part runs to its end."""


class Fault(Exception):
    """The script could not be carried out; the message says why."""


class Incomplete(BaseException):
    """Upstream's code asked for something that we have not given it. No `Exception`, which it might catch."""


class Deadlock(BaseException):
    """A thread waits for a lock that it has itself. No `Exception`, which upstream's code might catch."""


@dataclasses.dataclass(frozen=True)
class Ended:
    """An op has ended: what a poll returned, what the real code raised, or why there is no such op."""

    value: str | None = None
    error: str | None = None
    missing: str | None = None


class Held:
    """An op waits at a point."""


@dataclasses.dataclass
class Waits:
    """An op waits for a lock that another thread has."""

    holder: Actor


Perform = Callable[[str, str | None], Ended]
"""Does an op, with its status, in the current thread. Raises Fault."""


class Actor(threading.Thread):
    """A thread of the script: does one op at a time and reports that it is held or has ended."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.ops: queue.SimpleQueue[tuple[Perform, str, str | None]] = queue.SimpleQueue()
        self.reports: queue.SimpleQueue[Held | Waits | Ended | Fault] = queue.SimpleQueue()
        self.permits: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.stops: tuple[Point, ...] = ()
        self.op = ""
        self.begun = False
        self.held = False
        self.yields = False

    def run(self) -> None:
        while True:
            perform, op, status = self.ops.get()
            report: Ended | Fault
            try:
                report = perform(op, status)
            except Fault as fault:
                report = fault
            except Incomplete as fault:
                report = Fault(f"{self.name}: {op} {fault}")
            except Deadlock as error:
                report = Ended(error=f"Deadlock: {error}")
            self.stops, self.yields = (), False
            self.reports.put(report)

    def pause(self, point: Point) -> None:
        """Called in this thread at a point."""
        if point in self.stops:
            self.stops = ()
            self.reports.put(Held())
            self.permits.get()

    def wait_for(self, holder: Actor) -> None:
        """Called in this thread when it needs a lock that another one has."""
        self.reports.put(Waits(holder))
        self.permits.get()

    def has_released(self) -> None:
        """Called in this thread when it has given a lock back: it stops there if another one waits for that."""
        if self.yields:
            self.yields = False
            self.reports.put(Held())
            self.permits.get()

    # What follows is for the player's thread, and only while this one rests, is held, or waits.

    def take(self, perform: Perform, op: str, status: str | None, part: str) -> None:
        """Starts an op, or lets a held one go on; nothing if the op that was begun has ended."""
        goes_on, self.begun = self.begun, part in STOPS
        if goes_on and not self.held:
            self.reports.put(Ended())
            return
        self.stops = STOPS.get(part, ())
        if goes_on:
            self.permits.put(None)
        else:
            self.op = op
            self.ops.put((perform, op, status))

    def give_way(self) -> None:
        """Lets a held op go on until it gives a lock back, or to its end."""
        self.yields = True
        self.permits.put(None)

    def try_again(self) -> None:
        """Lets an op that waits for a lock try again."""
        self.permits.put(None)

    def wait(self, patience: float) -> Ended | Waits | None:
        """What the op came to, which is nothing yet if it is held; None if it is neither in time."""
        try:
            report = self.reports.get(timeout=patience)
        except queue.Empty:
            return None
        self.held = isinstance(report, Held)
        if isinstance(report, Fault):
            raise report
        return Ended() if isinstance(report, Held) else report


def pause(point: Point) -> None:
    """Holds the current thread, if it is an actor that is to be held at such a point."""
    thread = threading.current_thread()
    if isinstance(thread, Actor):
        thread.pause(point)


class Lock:
    """A lock that knows who has it, so that the player sees who waits for whom."""

    taken = 0
    """How often one was taken, all of them together."""

    def __init__(self) -> None:
        self.lock: Any = threading.Lock()
        self.holder = threading.current_thread()
        self.depth = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if blocking and not (self.depth and self.holder is threading.current_thread()):
            pause("lock")
        while not self.lock.acquire(blocking=False):
            mine = threading.current_thread()
            if not blocking:
                return False
            if self.holder is mine:
                raise Deadlock(f"{mine.name} waits for a lock that it has itself")
            if isinstance(mine, Actor) and isinstance(self.holder, Actor):
                mine.wait_for(self.holder)
            elif self.lock.acquire(timeout=timeout):
                break
        self.holder = threading.current_thread()
        self.depth += 1
        Lock.taken += 1
        return True

    def release(self) -> None:
        self.depth -= 1
        self.lock.release()
        mine = threading.current_thread()
        if isinstance(mine, Actor):
            mine.has_released()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class RLock(Lock):
    """The same, for a lock that its holder may take again."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.RLock()


class Threading(ModuleType):
    """Stands in for `threading` in upstream's modules: with locks of the kind above; threads are kept, not started."""

    Lock = Lock
    RLock = RLock

    def __init__(self) -> None:
        super().__init__("threading")
        self.kept: list[Callable[[], None]] = []

    def Thread(self, target: Callable[[], None], **_: Any) -> SimpleNamespace:  # noqa: N802 - threading's name
        return SimpleNamespace(start=lambda: self.kept.append(target))

    def __getattr__(self, name: str) -> Any:
        return getattr(threading, name)
