"""Locks that nobody could see being made are exchanged: no thread hangs on one, and they still keep threads apart."""

from __future__ import annotations

import multiprocessing
import threading
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import pytest

from kvlatch.reference.oracle.checks import LAWS, MakeAdapter, Probe, examine
from kvlatch.reference.oracle.inprocess import InProcess
from kvlatch.reference.oracle.real_locks import exchange
from tests.reference.oracle.managers import Right

EARLY = threading.Lock()


@dataclass
class Guard:
    lock: Any = field(default_factory=threading.Lock)


class Slotted:
    __slots__ = ("lock",)

    def __init__(self, lock: object) -> None:
        self.lock = lock


def with_lock(lock: AbstractContextManager[object]) -> MakeAdapter:
    """A right manager under a lock that it gets, and with a count that it keeps without one: so threads are held."""

    class Mine(Right):
        def __init__(self, probe: Probe) -> None:
            super().__init__(probe)
            self.lock = lock
            self.written = 0

        def write(self, room: int, request: int, status: Any) -> Any:
            standing = super().write(room, request, status)
            self.written += 1
            return standing

        def poll(self, room: int, request: int) -> Any:
            self.written += 0
            return super().poll(room, request)

    return Mine


@pytest.mark.parametrize("lock", [EARLY, threading.RLock(), multiprocessing.Lock()], ids=["lock", "rlock", "processes"])
def test_a_lock_from_elsewhere(lock: AbstractContextManager[object]) -> None:
    """A thread that is held while it has such a lock is no deadlock, and the lock excludes: no law is broken."""
    player = InProcess(with_lock(lock))
    try:
        report = examine(player, "mine", tuple(LAWS), seconds=1.0)
    finally:
        player.close()
    assert report.findings == {}
    assert report.looked_at["threads held"] > 0


def test_where_locks_are_found() -> None:
    """In attributes, slots, lists and dicts, at any depth; one lock becomes one lock, and a taken one stays."""
    taken, shared = threading.Lock(), threading.Lock()
    taken.acquire()
    thing = {"guard": Guard(), "slots": [Slotted(shared), (Slotted(shared),)], "taken": taken, "list": [shared]}
    real = thing["guard"].lock  # type: ignore[attr-defined]  # it is a Guard
    exchange(thing)
    guard: Any = thing["guard"]
    slots: Any = thing["slots"]
    listed: Any = thing["list"]
    assert guard.lock is not real
    assert slots[0].lock is slots[1][0].lock is listed[0] is not shared
    assert thing["taken"] is taken
