"""A digest of a manager's objects and of where its threads are: plays with equal digests go on alike.

The objects are those that can be reached from some roots, in an order that does not depend on addresses, and with their
sharing; of threads, the functions that they are in, how far they are, and their local values. What it cannot look into
is named in :attr:`Digest.opaque`: objects of C that do not say what they are made of. Nor does it see the values that
an expression has so far, half evaluated.
"""

from __future__ import annotations

import hashlib
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Collection, Iterable
from copyreg import _slotnames  # type: ignore[attr-defined]  # the names of a class's slots, as pickling finds them
from enum import Enum
from operator import itemgetter
from types import (
    AsyncGeneratorType,
    BuiltinFunctionType,
    CellType,
    CodeType,
    CoroutineType,
    FrameType,
    FunctionType,
    GeneratorType,
    MappingProxyType,
    MethodType,
    ModuleType,
)
from typing import Any, Final

from kvlatch.reference.oracle.interleave import Carrier, Cast, Task
from kvlatch.reference.oracle.places import ORACLE
from kvlatch.reference.oracle.primitives import Lock, Selector, SimpleQueue

_ATOMS: Final = frozenset((int, str, bytes, float, complex, bool, type(None)))
_NAMED: Final = (type, ModuleType, CodeType, BuiltinFunctionType, property, Cast, Carrier, Selector, Task)
_THREAD: Final = frozenset(vars(threading.Thread()))
"""What every thread object has: no state of the manager, but for what it runs."""


_OURS: Final = frozenset(
    f"{__name__.rpartition('.')[0]}.{name}"
    for name in (
        "adapter",
        "inprocess",
        "instrument",
        "interleave",
        "places",
        "primitives",
        "real_locks",
        "sharing",
        "stage",
        "subject",
        "threads",
    )
)
"""Modules of the oracle, whose objects are no state of a manager."""


class Digest:
    """Digests of one player; what could not be looked into adds up in ``opaque``, by type."""

    def __init__(self) -> None:
        self.opaque: set[str] = set()
        self.atoms = 0
        """How many atoms it has digested so far."""

    def of(self, roots: Iterable[object], tasks: Iterable[Task] = ()) -> bytes:
        """The digest now. The threads of the tasks must rest."""
        walk = _Walk(self.opaque)
        try:
            for root in roots:
                walk.add(root)
            frames = sys._current_frames()
            for task in tasks:
                if task.halted:
                    walk.out += ("task", task.name, task.at, task.place, task.deadline)
                if task.act is not None:
                    walk.add(task.act)
                elif task.halted:
                    walk.add_frames(frames.get(task.ident))
            return hashlib.blake2b(repr(walk.out).encode(), digest_size=16).digest()
        except RecursionError:
            return os.urandom(16)  # too deep: equal to nothing
        finally:
            self.atoms += len(walk.out) + walk.aside


class _Walk:
    """One pass over the objects: what is met, as a flat list of atoms."""

    def __init__(self, opaque: set[str], met: dict[int, int] | None = None) -> None:
        self.out: list[Any] = []
        self.aside = 0
        """How many atoms were met while things were put in order."""
        self.opaque = opaque
        self._met: dict[int, int] = {} if met is None else met
        self._keep: list[object] = []

    def add(self, thing: Any) -> None:
        """An object, with all that it reaches."""
        kind = type(thing)
        if kind in _ATOMS:
            self.out.append(thing)
            return
        if id(thing) in self._met:
            self.out += ("again", self._met[id(thing)])
            return
        self._met[id(thing)] = len(self._met)
        self._keep.append(thing)
        self.out.append(kind.__qualname__)
        if kind is dict or kind is MappingProxyType:
            self._pairs(thing)
        elif kind is list or kind is tuple or kind is deque:
            self._items(thing)
        elif issubclass(kind, Enum):
            self.out.append(thing.name)
        elif issubclass(kind, _NAMED):
            self.out.append(getattr(thing, "__qualname__", getattr(thing, "__name__", "")))
        else:
            self._other(thing, kind)

    def _other(self, thing: Any, kind: type) -> None:  # noqa: C901  # one case for each kind of object, all alike
        if issubclass(kind, (set, frozenset)):
            self._set(thing)
        elif issubclass(kind, dict):
            self._pairs(dict.items(thing))
        elif issubclass(kind, (list, tuple, deque)):
            self._items(thing)
        elif kind is FunctionType:
            self.out.append(thing.__qualname__)
            self._items(thing.__closure__ or ())
            self._items(thing.__defaults__ or ())
        elif kind is MethodType:
            self._items((thing.__func__, thing.__self__))
        elif kind is CellType:
            self._items([thing.cell_contents] if _is_full(thing) else [])
            return
        elif issubclass(kind, (GeneratorType, CoroutineType, AsyncGeneratorType)):
            frame = getattr(thing, "gi_frame", None) or getattr(thing, "cr_frame", None)
            self._frame(frame or getattr(thing, "ag_frame", None))
            return
        elif issubclass(kind, weakref.ref):
            self.add(thing())
            return
        elif issubclass(kind, Lock):
            self.out += (thing.depth, None if thing.owner is None else thing.owner.name)
            return
        elif issubclass(kind, SimpleQueue):
            self._items(thing.items)
            return
        elif issubclass(kind, (Exception, BaseException)):
            self._items(thing.args)
            return
        elif issubclass(kind, (int, str, bytes, float)):
            self.out.append(repr(thing))
        if kind.__module__ in _OURS:
            return
        if not self._attributes(thing, kind) and not issubclass(kind, _KNOWN):
            self._reduced(thing, kind)

    def _attributes(self, thing: Any, kind: type) -> bool:
        """The instance's own attributes, by name; False if it can have none."""
        found = getattr(thing, "__dict__", None)
        hidden = getattr(kind, "not_in_digest", ())
        slots = _slotnames(kind)
        if found:
            skip = _THREAD if issubclass(kind, threading.Thread) else hidden
            self._pairs((name, found[name]) for name in sorted(found) if name not in skip and name[:9] != "_kvlatch_")
            if issubclass(kind, threading.Thread):
                self._items([getattr(thing, name, None) for name in ("_target", "_args", "_kwargs")])
        for name in slots:
            if name not in hidden and hasattr(thing, name):
                self.out.append(name)
                self.add(getattr(thing, name))
        return found is not None or bool(slots)

    def _reduced(self, thing: Any, kind: type) -> None:
        """An object of C: what it would be pickled as, if it says so."""
        if kind.__module__ == "_asyncio":
            self._items([getattr(thing, name, None) for name in ("_state", "_coro", "_fut_waiter", "_callbacks")])
            return
        if kind.__module__ in ("_socket", "socket", "_thread", "select"):
            return
        try:
            parts = thing.__reduce_ex__(4)
        except Exception:  # noqa: BLE001  # it may refuse in whatever way it likes
            self.opaque.add(f"{kind.__module__}.{kind.__qualname__}")
            return
        self._items(parts[1:] if isinstance(parts, tuple) else [parts])

    def _items(self, things: Iterable[Any]) -> None:
        self.out.append("(")
        for thing in things:
            self.add(thing)
        self.out.append(")")

    def _pairs(self, pairs: Any) -> None:
        self.out.append("{")
        for key, value in pairs.items() if hasattr(pairs, "items") else pairs:
            self.add(key)
            self.add(value)
        self.out.append("}")

    def _set(self, things: Collection[Any]) -> None:
        """In an order of their own: by what each is made of, as far as nothing that is met already tells."""
        self.out.append("[")
        if all(type(thing) in _ATOMS for thing in things):
            self.out += sorted(map(repr, things))
        else:
            for _, thing in sorted(((self._alone(thing), thing) for thing in things), key=itemgetter(0)):
                self.add(thing)
        self.out.append("]")

    def _alone(self, thing: object) -> str:
        """What one member of a set is made of."""
        inner = _Walk(self.opaque, dict(self._met))
        inner.add(thing)
        self._keep += inner._keep
        self.aside += len(inner.out) + inner.aside
        return repr(inner.out)

    def add_frames(self, frame: FrameType | None) -> None:
        """The functions that a thread is in, innermost first."""
        while frame is not None and not isinstance(frame.f_locals.get("self"), Carrier):
            self._frame(frame)
            frame = frame.f_back

    def _frame(self, frame: FrameType | None) -> None:
        if frame is None:
            self.out.append(None)
            return
        self.out += (frame.f_code.co_qualname, frame.f_lasti)
        if frame.f_code.co_filename not in ORACLE:
            self._pairs(frame.f_locals)
        elif "args" in frame.f_code.co_varnames:  # a call that is about to be made
            self._items((frame.f_locals.get("args"), frame.f_locals.get("named")))


_KNOWN: Final = (set, frozenset, dict, list, tuple, deque, FunctionType, MethodType, int, str, bytes, float)


def _is_full(cell: CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018  # asking is what may raise
    except ValueError:
        return False
    return True
