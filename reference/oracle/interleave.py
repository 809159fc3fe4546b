"""Real threads, one at a time: any interleaving of them, at will and again.

A :class:`Cast` has named threads. :meth:`Cast.go` gives one of them something to do, or lets it go on, and waits until
it has come to its end or *halts*: it is held at a place where another thread may come in between (:func:`pause`), or
it waits for something (:func:`wait`). All other threads rest meanwhile, those too that the foreign code has started
itself (:meth:`Cast.spawn`). So the order of the calls of ``go`` is the interleaving, and nothing is left to luck or to
the clock: the time is the cast's own, and moves only when somebody sleeps or the clock is set.

What a thread waits for is a predicate, which the cast asks: so it knows exactly who can go on, and that nobody can.
What a thread is given begins with the first place where it would be held: there it is not held.

Standard library only, and nothing of kvlatch.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from _thread import allocate_lock, get_ident, start_new_thread  # the real ones, whatever is put in their place
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

START: float = 1_000.0
"""The cast's monotonic clock at the beginning of each play, in seconds."""
_UNWINDING: float = 0.5
"""How much patience a thread gets to unwind when its play is over."""
_IN_VAIN: int = 1_000
"""How often in a row time may pass for a wait with a limit, and nothing else happen: then somebody else is to act."""
_FEW: int = 3
_SLICE: float = 0.05
"""How many seconds it takes to look again whether a thread has come to rest."""


class Hung(Exception):
    """A thread has neither come to its end nor halted in time: it runs for ever, or waits for what nobody can see."""

    def __init__(self, task: Task, patience: float, frame: FrameType | None) -> None:
        super().__init__(f"{task.name} has not come to rest in {patience:g} s")
        self.task = task
        self.patience = patience
        self.frame = frame


class Abandoned(BaseException):
    """Unwinds a thread whose play is over. Not an ``Exception``, which the code in between might catch."""


@dataclass(frozen=True)
class Moved:
    """How far a thread has come: ``at`` is what it has halted before, None at its end, with what that has brought."""

    at: str | None = None
    value: object = None
    error: BaseException | None = None


class Task:
    """What one thread does: an act that it was given, or, in a thread of the foreign code's own, all that it does."""

    def __init__(self, name: str, cast: Cast, own: bool) -> None:
        self.name = name
        self.cast = cast
        self.own = own
        self.act: Callable[[], object] | None = None
        self.at: str | None = None
        self.place = ""
        self.ready: Callable[[], bool] | None = None
        self.deadline: float | None = None
        self.passes = 0
        self.fresh = True
        """It has not come to the first place where it would be held."""
        self.locks: list[object] = []
        self.view: tuple[object, object] | None = None
        self.steps = 0
        self.ended = Moved()
        self.over = False
        self.abandoned = False
        self.lost = False
        self.ident = 0
        self.wake = allocate_lock()
        self.wake.acquire()
        self.rests = cast.wake
        """Released when it comes to rest."""

    @property
    def halted(self) -> bool:
        """It is in the middle of something."""
        return self.at is not None

    def can_go_on(self) -> bool:
        """What it waits for is there, or the time is up."""
        if self.ready is None or self.ready():
            return True
        return self.deadline is not None and self.cast.now >= self.deadline

    # What follows runs in the task's own thread.

    def halt(self, at: str, place: str) -> None:
        """Hand over to the cast, and come back when it says so."""
        self.at, self.place, self.steps, self.fresh = at, place, 0, False
        self.rests.release()
        self.wake.acquire()
        self.at = None
        if self.abandoned:
            raise Abandoned

    def run(self) -> None:
        """Everything that this thread does, in one go."""
        act, self.act = self.act, None
        try:
            self.ended = Moved(value=act() if act is not None else None)
        except Abandoned:
            self.ended = Moved()
        except BaseException as error:  # noqa: BLE001  # whatever it is, it is the outcome of the act
            self.ended = Moved(error=error)
        self.over = True
        self.at = None


_running: dict[int, Task] = {}
"""The task of each thread that belongs to one, by the thread's identity."""


def current() -> Task | None:
    """The task of the calling thread, unless it is of no cast, or its play is over."""
    task = _running.get(get_ident())
    return None if task is None or task.abandoned else task


def abandoned() -> bool:
    """The calling thread is on its way out of a play that is over: it may do what it likes, and wait for nothing."""
    task = _running.get(get_ident())
    return task is not None and task.abandoned


def pause(at: str, place: str) -> None:
    """Hold the calling thread, if it is one of a cast: it goes on when the cast says so."""
    task = current()
    if task is None:
        return
    if task.fresh:
        task.fresh = False
    elif task.passes > 0:
        task.passes -= 1
    else:
        task.halt(at, place)


def wait(ready: Callable[[], bool], at: str, place: str, seconds: float | None = None, held: bool = False) -> bool:
    """Wait in the calling thread until ``ready()``, which must have no effect; False if the time is up before.

    With ``held`` it halts in any case, since somebody may come in between, and it can go on as soon as ``ready()``.
    Outside a cast there is nobody to wait for: RuntimeError.
    """
    task = _running.get(get_ident())
    if task is None:
        if ready():
            return True
        raise RuntimeError(f"{at}, and nobody can wait for that here")
    if task.abandoned:
        raise Abandoned
    task.ready, task.deadline = ready, None if seconds is None else task.cast.now + seconds
    try:
        there = ready()
        if there and held and task.fresh:
            task.fresh = False
        elif there and held and task.passes > 0:
            task.passes -= 1
        elif held or not there:
            task.halt(at, place)
        if ready():
            return True
        task.cast.now = max(task.cast.now, task.deadline or 0.0)
        return False
    finally:
        task.ready = task.deadline = None


class Carrier:
    """A thread of the operating system, which carries one task after another."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._task: Task | None = None
        self._order = allocate_lock()
        self._order.acquire()
        self.native = 0
        self.ident = start_new_thread(self._loop, ())

    def carry(self, task: Task) -> None:
        """Let a task run; the cast that it belongs to is told when it halts and when it is over."""
        task.ident = self.ident
        self._task = task
        self._order.release()

    def end(self) -> None:
        """There is nothing more to carry."""
        self._task = None
        self._order.release()

    def _loop(self) -> None:
        threading.current_thread().name = self._name  # as foreign code sees it
        me, self.native = get_ident(), threading.get_native_id()
        while True:
            self._order.acquire()
            task = self._task
            if task is None:
                break
            _running[me] = task
            task.run()
            _running.pop(me, None)
            if task.lost:
                break
            self._task = None
            rests = task.rests
            del task
            rests.release()
        threading._active.pop(me, None)  # type: ignore[attr-defined]


class Cast:
    """The threads of one play after another, by name.

    ``patience`` is for how many seconds a step may wait for what nobody can see, or keep the processor busy. Seconds in
    which its thread would run, and the machine has no processor for it, do not count.
    """

    def __init__(self, patience: float = 10.0) -> None:
        self.patience = patience
        self.now = START
        self.set_back = 0.0
        """How far the clock of the day is off, in seconds."""
        self.tasks: dict[str, Task] = {}
        self.turns = 0
        """How often a thread has been let go on so far, ..."""
        self.asked = 0
        """... how often one has been asked whether it can go on, ..."""
        self.started = 0
        """... how many processes were started, ..."""
        self.hung = 0.0
        """... and how many seconds of patience were lost on those that did not come to rest."""
        self.in_vain = 0
        """How often in a row somebody has gone on only because time had passed."""
        self.wake = allocate_lock()
        self.wake.acquire()
        self._carriers: dict[str, Carrier] = {}
        self._own = 0

    def go(self, name: str, act: Callable[[], object] | None = None, passes: int = 0) -> Moved:
        """Give a thread that rests something to do, or let one that has halted go on (``act`` None).

        ``passes`` is how many hold points it runs through. Raises :class:`Hung` if it does not come to rest, ValueError
        if it is not the thread's turn to do that.
        """
        task = self.tasks.get(name)
        self.turns += 1
        if act is None:
            if task is None or not task.halted:
                raise ValueError(f"{name} is at rest")
            if not task.can_go_on() and task.deadline is None:
                raise ValueError(f"{name} waits")
            task.passes = passes
            if task.ready is not None:
                self.in_vain = 0 if task.ready() else self.in_vain + 1
            if task.act is not None:
                self._carrier(name).carry(task)
            else:
                task.wake.release()
            return self._outcome(task)
        if task is not None and task.halted:
            raise ValueError(f"{name} is held")
        self.in_vain = 0
        task = self.tasks[name] = Task(name, self, own=False)
        task.act = act
        task.passes = passes
        self._carrier(name).carry(task)
        return self._outcome(task)

    def spawn(self, act: Callable[[], object], place: str) -> Task:
        """A thread that foreign code starts: it is there from now on, and begins when it is told to go on."""
        self._own += 1
        self.turns += 1  # it takes about as long
        task = Task(f"thread {self._own}", self, own=True)
        task.act, task.at, task.place = act, "begins", place
        self.tasks[task.name] = task
        return task

    def halted(self) -> Iterator[tuple[Task, bool]]:
        """Each thread that is in the middle of something, and whether it can go on.

        A wait with a time limit can, if nobody else can and a call waits for it: then that much time goes by. That does
        not help for ever, where a call sleeps again and again until somebody else does something.
        """
        halted = [task for task in self.tasks.values() if task.halted]
        self.asked += len(self.tasks)
        able = {task.name for task in halted if task.can_go_on()}
        if not able and self.in_vain < _IN_VAIN and any(not task.own for task in halted):
            timed = [task for task in halted if task.deadline is not None]
            able = {min(timed, key=lambda task: task.deadline or 0.0).name} if timed else set()
        for task in halted:
            yield task, task.name in able

    def sleeps_on(self, task: Task) -> bool:
        """It has waited for time to pass, again and again, and does so once more: nobody need look at each time."""
        vain = self.in_vain >= _FEW and task.halted and task.ready is not None
        return vain and not task.can_go_on() and any(one is task and able for one, able in self.halted())

    def reset(self) -> None:
        """End the play: whoever has halted gives up there."""
        for task in list(self.tasks.values()):
            if not task.halted:
                continue
            task.abandoned = True
            if task.act is not None:
                task.act, task.at = None, None
                continue
            task.wake.release()
            try:
                self._outcome(task)
            except Hung:
                continue
        self.tasks = {}
        self.now, self.set_back = START, 0.0
        self._own = self.in_vain = 0

    def close(self) -> None:
        """End the play, and the threads."""
        self.reset()
        for carrier in self._carriers.values():
            carrier.end()
        self._carriers.clear()

    def _carrier(self, name: str) -> Carrier:
        if name not in self._carriers:
            self._carriers[name] = Carrier(name)
        return self._carriers[name]

    def _outcome(self, task: Task) -> Moved:
        """Wait until a task halts or is over."""
        if not self.wake.acquire(timeout=_SLICE):
            self._wait_for(task, min(_UNWINDING, self.patience) if task.abandoned else self.patience)
        return Moved(at=task.at) if task.halted else task.ended

    def _wait_for(self, task: Task, patience: float) -> None:
        """Wait on; :class:`Hung` when the patience is at its end."""
        worked, waited = time.process_time(), 0.0
        while not self.wake.acquire(timeout=_SLICE):
            waited += _SLICE * _sleeps(self._carriers.get(task.name))
            if max(waited, time.process_time() - worked) >= patience:
                raise self._hung(task)

    def _hung(self, task: Task) -> Hung:
        """Give a task up, with its thread, which is told to end as soon as it runs Python code again."""
        self.hung += self.patience
        frame = sys._current_frames().get(task.ident)
        task.abandoned = task.lost = True
        self._carriers.pop(task.name, None)
        self.tasks.pop(task.name, None)
        self.wake = allocate_lock()  # this thread keeps the former one: whenever it comes to rest, nobody listens
        self.wake.acquire()
        for other in self.tasks.values():
            other.rests = self.wake
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(task.ident), ctypes.py_object(Abandoned))
        return Hung(task, self.patience, frame)


def _sleeps(carrier: Carrier | None) -> bool:
    """A thread waits for something else than a processor, as far as the system says."""
    try:
        stat = Path(f"/proc/self/task/{carrier.native if carrier is not None else 0}/stat").read_text(encoding="utf-8")
        return stat.rpartition(")")[2].split()[0] not in ("R", "D")
    except OSError:
        return True
