"""Real locks of a manager, exchanged for the cast's: those that were made where nobody could see it.

A lock that was made before the first play (a default argument, a module's own), by C code (a dataclass's
``default_factory``) or for several processes is waited for outside the cast: a thread that is held while it has one
would look like a deadlock. So where an adapter's objects hold such a lock, each play puts a virtual one in its place.
"""

from __future__ import annotations

import _thread
import threading
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any, Final

from kvlatch.reference.oracle.places import ORACLE
from kvlatch.reference.oracle.primitives import Lock, RLock

_LOCK: Final = type(_thread.allocate_lock())
_RLOCK: Final = type(threading.RLock())
_OF_PROCESSES: Final = "multiprocessing.synchronize"
_MOST: Final = 2_000
"""How many objects are looked at."""


def exchange(adapter: object) -> None:
    """Put virtual locks in the place of free real ones, the same for the same; on a thread of the cast."""
    virtual: dict[int, Lock] = {}
    for thing in _objects(adapter):
        for name, value in list(_named(thing)):
            kind = _kind(value)
            if kind is None or (id(value) not in virtual and not _is_free(value)):
                continue
            instead = virtual.setdefault(id(value), kind())
            instead.made = f"{type(thing).__name__}[{name!r}]" if isinstance(thing, (dict, list)) else str(name)
            if isinstance(thing, (dict, list)):
                thing[name] = instead
            else:
                object.__setattr__(thing, name, instead)


def _kind(value: object) -> type[Lock] | None:
    kind = type(value)
    if kind is _LOCK or (kind.__module__ == _OF_PROCESSES and kind.__name__ == "Lock"):
        return Lock
    if kind is _RLOCK or (kind.__module__ == _OF_PROCESSES and kind.__name__ == "RLock"):
        return RLock
    return None


def _is_free(lock: Any) -> bool:
    if not lock.acquire(False):
        return False
    lock.release()
    return True


def _objects(adapter: object) -> Iterator[Any]:
    """The objects of Python classes, the lists and the dicts that an adapter is made of."""
    met: set[int] = set()
    waiting = [adapter]
    while waiting and len(met) < _MOST:
        thing = waiting.pop()
        skipped = isinstance(thing, (type, ModuleType, FunctionType, threading.Thread)) or _kind(thing) is not None
        if skipped or id(thing) in met or type(thing).__module__ in ("threading", "queue", "asyncio"):
            continue
        met.add(id(thing))
        if isinstance(thing, (tuple, set, frozenset)):
            waiting += thing
            continue
        yield thing
        waiting += [value for _, value in _named(thing)]


def _named(thing: Any) -> Iterator[tuple[Any, Any]]:
    """What an object holds, each with its name, key or index."""
    if isinstance(thing, dict):
        yield from dict.items(thing)
    elif isinstance(thing, list):
        yield from enumerate(thing)
    else:
        yield from getattr(thing, "__dict__", {}).items()
        for name in (slot for base in type(thing).__mro__ for slot in _slots(base)):
            if hasattr(thing, name):
                yield name, getattr(thing, name)


def _slots(base: type) -> tuple[str, ...]:
    slots = base.__dict__.get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(name for name in slots if not name.startswith("__"))


ORACLE.add(__file__)
