"""Threads of a cast in the place of the interpreter's: those that a manager starts, and the steps of its event loops.

Standard library only, and nothing of kvlatch but its neighbours.
"""

from __future__ import annotations

import _thread
import asyncio.events
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from kvlatch.reference.oracle.interleave import Task, current, pause, wait
from kvlatch.reference.oracle.places import ORACLE, place, short


def start(self: threading.Thread) -> None:
    task = current()
    if task is None:
        return _REAL_START(self)
    if self._started.is_set():  # type: ignore[attr-defined]
        raise RuntimeError("threads can only be started once")
    started = task.cast.spawn(lambda: _bootstrap(self), place())
    self._started.set()  # type: ignore[attr-defined]
    self.__dict__["_kvlatch_task"] = started
    return None


_REAL_START = threading.Thread.start


def _bootstrap(thread: threading.Thread) -> None:
    me = _thread.get_ident()
    active: dict[int, threading.Thread] = threading._active  # type: ignore[attr-defined]
    before = active.get(me)
    active[me] = thread
    thread._ident = me  # type: ignore[attr-defined]
    try:
        thread.run()
    except SystemExit:
        pass
    finally:
        if before is None:
            active.pop(me, None)
        else:
            active[me] = before


def _over(thread: threading.Thread) -> bool:
    task: Task = thread.__dict__["_kvlatch_task"]
    return task.over or task.abandoned


def is_alive(self: threading.Thread) -> bool:
    return not _over(self) if "_kvlatch_task" in self.__dict__ else _REAL_IS_ALIVE(self)


_REAL_IS_ALIVE = threading.Thread.is_alive


def join(self: threading.Thread, timeout: float | None = None) -> None:
    if "_kvlatch_task" not in self.__dict__:
        return _REAL_JOIN(self, timeout)
    if current() is not None:
        if self is threading.current_thread():
            raise RuntimeError("cannot join current thread")
        wait(lambda: _over(self), f"joins {self.name}", place(), timeout)
    return None


_REAL_JOIN = threading.Thread.join


def start_new_thread(
    function: Callable[..., object], args: tuple[Any, ...], kwargs: dict[str, Any] | None = None
) -> int:
    task = current()
    if task is None:
        return _REAL_START_NEW_THREAD(function, args, kwargs or {})
    task.cast.spawn(lambda: function(*args, **(kwargs or {})), place())
    return 0


_REAL_START_NEW_THREAD = _thread.start_new_thread


def run_handle(self: asyncio.events.Handle) -> None:
    """A step of an event loop: other threads, and other calls of the loop, may come in between."""
    if current() is not None:
        pause("runs a step of its event loop", _step_place(self))
    _REAL_RUN_HANDLE(self)


_REAL_RUN_HANDLE = asyncio.events.Handle._run


def _step_place(handle: asyncio.events.Handle) -> str:
    task = getattr(getattr(handle, "_callback", None), "__self__", None)
    coroutine = task.get_coro() if isinstance(task, asyncio.Task) else None
    while (inner := getattr(coroutine, "cr_await", None)) is not None and hasattr(inner, "cr_frame"):
        coroutine = inner
    frame: FrameType | None = getattr(coroutine, "cr_frame", None)
    return "" if frame is None else short(frame.f_code.co_filename, frame.f_lineno)


ORACLE.add(__file__)
