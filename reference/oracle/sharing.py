"""Where the threads of a manager have to be held: at accesses to what two of them touch without a common lock.

Rewritten code (``instrument.py``) reports each access here, and so do the virtual primitives. As in Eraser (Savage and
others, 1997), each variable keeps the locks that all of its accesses have had in common: once two threads have touched
it, one of them writing, and no lock is left, the places of all its accesses are *learnt*. There, and nowhere else,
threads are held. Holding more often than needed costs time and accuses nobody, so the filter errs on that side: it
knows no order of threads but locks.

A variable is an attribute of an object, the content of a container as a whole, or a global or nonlocal name.
"""

from __future__ import annotations

import array
import bisect
import heapq
import operator
import sys
import warnings
import weakref
from _thread import get_ident
from collections import deque
from collections.abc import Callable, Iterator, MutableMapping, MutableSequence, MutableSet
from enum import Enum
from types import (
    BuiltinFunctionType,
    FunctionType,
    MethodType,
    MethodWrapperType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any, Final

from kvlatch.reference.oracle.instrument import is_rewritten
from kvlatch.reference.oracle.interleave import Task, _running, pause
from kvlatch.reference.oracle.places import ORACLE, is_library, short
from kvlatch.reference.oracle.primitives import Primitive, instead
from kvlatch.reference.oracle.table import Table

_READS: Final = frozenset(
    (
        "get", "keys", "values", "items", "copy", "index", "count", "union", "intersection", "difference",
        "symmetric_difference", "issubset", "issuperset", "isdisjoint", "most_common", "elements", "total", "tolist",
        "tobytes", "__contains__", "__getitem__", "__len__", "__iter__", "__eq__", "__ne__", "__or__", "__ror__",
        "__reversed__", "__repr__", "__bool__",
        "is_set", "empty", "full", "qsize", "done", "cancelled", "running", "locked", "is_alive",
    )
)  # fmt: skip
"""Methods of containers, and of the standard library's primitives, that change nothing."""
_WRITES_ITS_ARGUMENTS: Final = frozenset(
    {next, setattr, delattr, operator.setitem, operator.delitem, operator.ior, operator.iadd, operator.iconcat}
    | {getattr(heapq, name) for name in dir(heapq) if name.startswith("heap")}
    | {bisect.insort_left, bisect.insort_right}
)
_LOOKS_AT_FRAMES: Final = frozenset(
    (sys._getframe, getattr(sys, "_getframemodulename", None), warnings.warn, warnings.warn_explicit)
)
"""What is called by the manager itself, and through nobody, since it looks at its caller."""
_PURE: Final = frozenset(
    ("match", "search", "fullmatch", "sub", "split", "findall", "finditer", "strftime", "isoformat")
)
"""Methods of other objects of C that change nothing; of the rest it is not known."""
_ATOMS: Final = (int, str, bytes, float, complex, bool, type(None), tuple, frozenset, range, slice, Enum)
_CONTAINERS: Final = (dict, list, set, deque, bytearray, array.array, MutableMapping, MutableSequence, MutableSet)
_EMPTY: Final[dict[Any, Any]] = {}
_VIEWS: Final = (type(_EMPTY.keys()), type(_EMPTY.values()), type(_EMPTY.items()))
_OF_C: Final = 60
"""As how many accesses a call of an object of C counts, which may take as long."""
_LONG: Final = 10_000
"""How many accesses a thread may make before it is held anyway: it may wait for what another does."""


class Sharing:
    """What is known of the accesses to shared things; one for each player."""

    def __init__(self) -> None:
        self.places: set[str] = set()
        """Where threads are held."""
        self.fixed = False
        """Learn no more."""
        self.recording = False
        self.touches = 0
        """How many accesses there have been so far."""
        self._learnt: set[str] = set()
        self._variables: dict[tuple[int, str], _Variable] = {}
        self._data: dict[tuple[type, str], bool] = {}
        self._container: dict[type, bool] = {}

    def fresh(self) -> None:
        """A new play: other objects."""
        self._variables.clear()

    def learn(self) -> bool:
        """Hold threads from now on also where that has turned out to be needed; True if that is anywhere new."""
        new = self._learnt - self.places
        self.places |= new
        self._learnt.clear()
        return bool(new)

    def touched(self, thing: Table, writes: bool, what: str) -> None:
        """A table is accessed: by code that is not rewritten, else that has been noted already."""
        task = _running.get(get_ident())
        caller = sys._getframe(2)
        code = caller.f_code
        if task is None or task.abandoned or code.co_filename in ORACLE or is_rewritten(code):
            return
        place = short(code.co_filename, caller.f_lineno)
        if self.touch(task, thing, "[]", writes, place):
            pause(what, place)

    def touch(self, task: Task, thing: object, name: str, writes: bool, place: str) -> bool:
        """Note an access; True if the thread is to be held before it."""
        if not self.recording:
            return False
        task.steps += 1
        self.touches += 1
        if task.steps > _LONG:
            pause("runs on and on", place)
        if not self.fixed:
            key = (id(thing), name)
            variable = self._variables.get(key)
            if variable is None or variable.is_about_another(thing):
                self._variables[key] = _Variable(thing, task, writes, place)
            elif not variable.learnt or place not in variable.places:
                variable.touch(task, writes, place, self._learnt)
        return place in self.places

    # --- Hooks: each gets an object and gives it back, unless it says otherwise ---

    def hooks(self) -> dict[str, Callable[..., Any]]:
        """What rewritten code calls, by name."""
        return {
            "attribute": self.attribute,
            "store": self.store,
            "content": self.content,
            "change": self.change,
            "item": self.item,
            "iterate": self.iterate,
            "call": self.call,
            "name": self.name,
            "stored": self.stored,
        }

    def attribute(self, thing: Any, name: str, place: str) -> Any:
        """An attribute of ``thing`` is read next."""
        task = _running.get(get_ident())
        if task is None or task.abandoned or not self._is_data(thing, name):
            return thing
        if self.touch(task, thing, name, False, place):
            pause(f"reads {name}", place)
        return thing

    def store(self, thing: Any, name: str, place: str) -> Any:
        """An attribute of ``thing`` is set or deleted next."""
        task = _running.get(get_ident())
        if task is not None and not task.abandoned and self.touch(task, thing, name, True, place):
            pause(f"sets {name}", place)
        return thing

    def content(self, thing: Any, place: str) -> Any:
        """What is in ``thing``, if it is a container, is read next."""
        return self._inside(thing, False, "reads", place)

    def change(self, thing: Any, place: str) -> Any:
        """What is in ``thing``, if it is a container, changes next."""
        return self._inside(thing, True, "changes", place)

    def _inside(self, thing: Any, writes: bool, does: str, place: str) -> Any:
        task = _running.get(get_ident())
        if task is None or task.abandoned or not self._is_container(thing):
            return thing
        if self.touch(task, thing, "[]", writes, place):
            pause(f"{does} {_called(thing)}", place)
        return thing

    def item(self, thing: Any, index: Any, place: str) -> Any:
        """``thing[index]``."""
        return self.content(thing, place)[index]

    def iterate(self, thing: Any, place: str) -> Any:
        """What to iterate over instead of ``thing``: others may come in before each item."""
        task = _running.get(get_ident())
        if task is None or task.abandoned:
            return thing
        if type(thing) in _VIEWS:
            view, of = task.view or (None, None)
            return _Iteration(self, iter(view), of, place) if view is thing and view is not None else thing
        return _Iteration(self, iter(thing), thing, place) if self._is_container(thing) else thing

    def name(self, name: str, place: str) -> None:
        """A global or nonlocal name is read next."""
        task = _running.get(get_ident())
        if task is not None and not task.abandoned and self.touch(task, _name_of(name), "", False, place):
            pause(f"reads {name.partition(' ')[2]}", place)

    def stored(self, name: str, value: Any, place: str) -> Any:
        """A global or nonlocal name is set to ``value`` next."""
        task = _running.get(get_ident())
        if task is not None and not task.abandoned and self.touch(task, _name_of(name), "", True, place):
            pause(f"sets {name.partition(' ')[2]}", place)
        return value

    def call(self, function: Any, place: str) -> Any:
        """What to call instead of ``function``: what C functions are given is touched, and the clock is the cast's."""
        task = _running.get(get_ident())
        if task is None or task.abandoned:
            return function
        kind = type(function)
        if kind is FunctionType:
            return instead(function) if is_library(function.__code__.co_filename) else function
        if kind is MethodType:
            code = getattr(function.__func__, "__code__", None)
            if code is None or not is_library(code.co_filename) or isinstance(function.__self__, Primitive):
                return function
            return _Foreign(self, function, function.__self__, place)
        if kind is BuiltinFunctionType or kind is MethodWrapperType:
            virtual = instead(function)
            if virtual is not function or function in _LOOKS_AT_FRAMES:
                return virtual
            of = function.__self__
            return _Foreign(self, function, None if isinstance(of, ModuleType) else of, place)
        if kind is type and function.__module__ in ("builtins", "collections", "_queue", "_thread"):
            virtual = instead(function)
            return virtual if virtual is not function else _Foreign(self, function, None, place)
        return function if kind is not WrapperDescriptorType else _Foreign(self, function, None, place)

    # --- What it is ---

    def _is_container(self, thing: object) -> bool:
        kind = type(thing)
        known = self._container.get(kind)
        if known is None:
            known = self._container[kind] = not issubclass(kind, _ATOMS) and issubclass(kind, _CONTAINERS)
        return known

    def _is_data(self, thing: object, name: str) -> bool:
        kind = type(thing)
        if issubclass(kind, (type, ModuleType)):
            found = vars(thing).get(name) if isinstance(thing, ModuleType) else _looked_up(thing, name)
            return not (callable(found) or isinstance(found, (ModuleType, property, staticmethod, classmethod, Enum)))
        known = self._data.get((kind, name))
        if known is None:
            found = _looked_up(kind, name)
            member = type(found).__name__ in ("member_descriptor", "NoneType")
            plain = found is not None and not hasattr(type(found), "__get__")
            known = not issubclass(kind, (*_ATOMS, Primitive, super)) and (member or plain)
            self._data[kind, name] = known
        return known


class _Variable:
    """What is known of one variable in one play. It does not keep the object alive, if there is another way to know it.

    A manager may hold its requests weakly, and lose them as it would without the oracle.
    """

    __slots__ = ("first", "learnt", "locks", "places", "shared", "thing", "weak", "written")

    def __init__(self, thing: object, task: Task, writes: bool, place: str) -> None:
        self.thing: object = thing
        self.weak = getattr(type(thing), "__weakrefoffset__", 0) != 0
        if self.weak:
            self.thing = weakref.ref(thing)
        self.first = task.name
        self.locks = set(task.locks)
        self.written = writes
        self.shared = False
        self.learnt = False
        self.places = {place}

    def is_about_another(self, thing: object) -> bool:
        """The object is gone, and ``thing`` has its identity now."""
        return self.weak and self.thing() is not thing  # type: ignore[operator]  # a reference, then

    def touch(self, task: Task, writes: bool, place: str, learnt: set[str]) -> None:
        """One more access."""
        self.places.add(place)
        if self.locks:
            self.locks &= set(task.locks)
        self.written |= writes
        self.shared |= task.name != self.first
        if self.shared and self.written and not self.locks:
            self.learnt = True
            learnt |= self.places


class _Iteration:
    """Goes through a container, and lets others come in before each item."""

    def __init__(self, sharing: Sharing, items: Iterator[Any], of: object, place: str) -> None:
        self._sharing = sharing
        self._items = items
        self._of = of
        self._place = place

    def __iter__(self) -> _Iteration:
        return self

    def __next__(self) -> Any:
        self._sharing.content(self._of, self._place)
        return next(self._items)


class _Foreign:
    """A function of C or of the standard library, which touches its object and its arguments when it is called."""

    __slots__ = ("_function", "_of", "_place", "_sharing")

    def __init__(self, sharing: Sharing, function: Any, of: Any, place: str) -> None:
        self._sharing = sharing
        self._function = function
        self._of = of
        self._place = place

    def __call__(self, *args: Any, **named: Any) -> Any:
        task = _running[get_ident()]
        function, of = self._function, self._of
        held = [
            what for thing, name, writes, what in self._touched(args) if self._touch(task, thing, name, writes, what)
        ]
        if held:
            pause(held[-1], self._place)
        found = function(*map(instead, args), **named)
        if type(found) in _VIEWS:
            task.view = found, of
        return found

    def _touch(self, task: Task, thing: object, name: str, writes: bool, what: str) -> bool:
        return self._sharing.touch(task, thing, name, writes, self._place)

    def _touched(self, args: tuple[Any, ...]) -> Iterator[tuple[object, str, bool, str]]:
        """What the call touches: the object, the name in it, whether it is written, and what is done."""
        function, of, sharing = self._function, self._of, self._sharing
        name = getattr(function, "__name__", "")
        if of is not None and sharing._is_container(of):
            writes = name not in _READS
            yield of, "[]", writes, f"{'changes' if writes else 'reads'} {_called(of)}: {name}"
        elif of is not None and name in _READS and not isinstance(of, _ATOMS):
            yield of, "", False, f"asks {name}"
        elif (
            of is not None and type(function) is BuiltinFunctionType and not isinstance(of, (*_ATOMS, type, Primitive))
        ):
            sharing.touches += _OF_C
            yield of, "", name not in _PURE, f"asks a {type(of).__name__} to {name}"  # what C keeps is not seen
        writes = type(function) is BuiltinFunctionType and function in _WRITES_ITS_ARGUMENTS
        if writes and args and name in ("setattr", "delattr"):
            yield args[0], args[1], True, f"sets {args[1]}"
        elif name == "getattr" and len(args) > 1:
            if sharing._is_data(args[0], args[1]):
                yield args[0], args[1], False, f"reads {args[1]}"
        else:
            for thing in args:
                if sharing._is_container(thing) or (writes and not isinstance(thing, (*_ATOMS, type))):
                    yield thing, "[]", writes, f"{'changes' if writes else 'reads'} {_called(thing)}: {name}"


def _looked_up(kind: Any, name: str) -> Any:
    """A name as a class has it, without asking descriptors."""
    for base in kind.__mro__:
        if name in base.__dict__:
            return base.__dict__[name]
    return None


def _called(thing: object) -> str:
    return f"a {type(thing).__name__}"


_names: dict[str, str] = {}


def _name_of(name: str) -> str:
    """One object for a name, wherever the text comes from."""
    return _names.setdefault(name, name)


ORACLE.add(__file__)
