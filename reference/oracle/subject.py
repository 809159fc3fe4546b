"""The manager's own modules: which they are, what they keep between two managers, and how to have them anew.

A manager's own modules are the adapter's, those that it leads to by name and that belong to its project, and those of
the objects that an adapter is made of. Not the standard library, not other installed packages, not kvlatch.
"""

from __future__ import annotations

import _thread
import dis
import importlib
import importlib.machinery
import importlib.util
import queue
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final

import attrs

from kvlatch.reference.oracle.instrument import rewritten
from kvlatch.reference.oracle.places import is_library

_NOT_OWN: Final = (
    "kvlatch.spec",
    "kvlatch.reference.oracle",
    "kvlatch.proofs",
    "kvlatch.commands",
    "spec",
    "hypothesis",
    "pytest",
    "_pytest",
    "attr",
    "attrs",
    "numpy",
    "torch",
)
"""Packages that are nobody's manager, unless the adapter itself is there."""
_REAL: Final = (
    type(_thread.allocate_lock()), type(threading.RLock()), threading.Condition, threading.Event, threading.Semaphore,
    threading.Barrier, threading.Thread, threading.local, queue.Queue, queue.SimpleQueue, Executor,
)  # fmt: skip
"""What must not be shared by two plays, or waited for outside the cast."""
_PLAIN: Final = (int, str, bytes, float, bool, complex, tuple, frozenset, type(None))


def own_modules(make: Any, things: Sequence[object]) -> list[ModuleType]:
    """The manager's own modules, the adapter's first; ``things`` are objects that an adapter is made of."""
    named = [_module(make), *(_module(base) for base in getattr(make, "__mro__", ()))]
    named += [_module(base) for thing in things for base in type(thing).__mro__]
    found: dict[str, ModuleType] = {}
    waiting = [module for module in named if module is not None]
    first = waiting[:1]
    while waiting:
        module = waiting.pop(0)
        if module.__name__ in found or not (module in first or _is_own(module, module in named)):
            continue
        found[module.__name__] = module
        for value in list(vars(module).values()):
            other = value if isinstance(value, ModuleType) else _module(value)
            if other is not None:
                waiting.append(other)
    return list(found.values())


def _module(thing: Any) -> ModuleType | None:
    """The module in which a class or a function has been made."""
    if isinstance(thing, (type, FunctionType)) or hasattr(thing, "__qualname__"):
        return sys.modules.get(getattr(thing, "__module__", None) or "")
    return None


def _is_own(module: ModuleType, made_of: bool) -> bool:
    file = getattr(module, "__file__", None) or ""
    if not file.endswith(".py") or is_library(file) or module.__name__.startswith(_NOT_OWN):
        return False
    return made_of or "site-packages" not in file


def parts(adapter: object) -> list[object]:
    """The objects of Python classes that an adapter is made of."""
    found: list[object] = []
    met: set[int] = set()
    waiting: list[object] = [adapter]
    while waiting and len(met) < _ENOUGH:
        thing = waiting.pop()
        if id(thing) in met or isinstance(thing, (type, ModuleType, FunctionType)):
            continue
        met.add(id(thing))
        if isinstance(thing, dict):
            waiting += [*thing.keys(), *thing.values()]
        elif isinstance(thing, (list, tuple, set, frozenset)):
            waiting += thing
        elif hasattr(thing, "__dict__"):
            found.append(thing)
            waiting += vars(thing).values()
    return found


_ENOUGH: Final = 10_000


def labels(modules: Sequence[ModuleType]) -> dict[str, str]:
    """Each module's file, and how places name it: by its last part, or as many as tell it apart."""
    files = [Path(module.__file__ or "") for module in modules]
    found = {}
    for file in files:
        parts = next(
            n for n in range(1, 99) if n >= len(file.parts) or sum(o.parts[-n:] == file.parts[-n:] for o in files) == 1
        )
        found[str(file)] = "/".join(file.parts[-parts:]).replace(" ", "_")
    return found


@attrs.frozen
class Kept:
    """Names whose values may change from one play to the next: of a module, or of a class in it (else empty)."""

    module: str
    holder: str
    name: str

    def value(self) -> object:
        """What it is now."""
        found: Any = sys.modules.get(self.module)
        found = getattr(found, self.holder, None) if self.holder else found
        return vars(found).get(self.name) if found is not None else None


def kept(modules: Sequence[ModuleType]) -> list[Kept]:
    """What the modules and their classes keep."""
    return [one for module in modules for one in _kept_by(module)]


def _kept_by(module: ModuleType) -> Iterator[Kept]:
    mine = module.__name__
    declared = {name for function in _functions(module) for name in _stored_globals(function.__code__)}
    for name, value in list(vars(module).items()):
        if isinstance(value, type):
            if value.__module__ == mine:
                found = vars(value)
                yield from (Kept(mine, name, one) for one in list(found) if _may_change(found[one], one))
        elif name in declared or (_may_change(value, name) and not isinstance(value, _PLAIN)):
            yield Kept(mine, "", name)


def _may_change(value: object, name: str) -> bool:
    descriptor = hasattr(type(value), "__get__") or hasattr(type(value), "__set__") or callable(value)
    return not (name.startswith("__") or descriptor or isinstance(value, ModuleType))


def _functions(module: ModuleType) -> Iterator[FunctionType]:
    for value in list(vars(module).values()):
        holder = (
            [value]
            if isinstance(value, FunctionType)
            else list(vars(value).values())
            if isinstance(value, type)
            else []
        )
        yield from (one for one in holder if isinstance(one, FunctionType))


def _stored_globals(code: CodeType) -> Iterator[str]:
    """The global names that code, or a function within it, sets."""
    yield from (one.argval for one in dis.get_instructions(code) if one.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"))
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _stored_globals(inner)


def holds_real_things(modules: Sequence[ModuleType]) -> bool:
    """Something that the modules keep is a lock, a queue or a thread that was made while they were imported."""
    waiting = [one.value() for one in kept(modules)]
    met: set[int] = set()
    while waiting:
        thing = waiting.pop()
        if id(thing) in met or isinstance(thing, (type, ModuleType)):
            continue
        met.add(id(thing))
        if isinstance(thing, _REAL) or type(thing).__module__.startswith("asyncio"):
            return True
        if isinstance(thing, dict):
            waiting += [*thing.keys(), *thing.values()]
        elif isinstance(thing, (list, tuple, set, frozenset)):
            waiting += thing
        elif type(thing).__module__ in {module.__name__ for module in modules}:
            waiting += vars(thing).values() if hasattr(thing, "__dict__") else []
    return False


class Anew:
    """Imports the manager's own modules anew for each play, rewritten: for what they make while they are imported."""

    def __init__(self, make: Any, modules: Sequence[ModuleType], files: dict[str, str]) -> None:
        self._name, self._path = make.__module__, make.__qualname__
        self._names = [module.__name__ for module in modules]
        self._files = files
        self._codes: dict[str, CodeType] = {}

    @staticmethod
    def possible(make: Any) -> bool:
        """The adapter is found by its name."""
        found: Any = sys.modules.get(getattr(make, "__module__", ""))
        for part in getattr(make, "__qualname__", "<none>").split("."):
            found = getattr(found, part, None)
        return found is make

    def make(self) -> Any:
        """The maker of adapters, from modules that have just been imported."""
        for name in self._names:
            sys.modules.pop(name, None)
        found: Any = importlib.import_module(self._name)
        for part in self._path.split("."):
            found = getattr(found, part)
        return found

    @property
    def modules(self) -> list[ModuleType]:
        """The modules as they are now."""
        return [sys.modules[name] for name in self._names if name in sys.modules]

    @contextmanager
    def importing(self) -> Iterator[None]:
        """For the length of this block the modules are imported through here; afterwards the former ones are back."""
        before = {name: sys.modules[name] for name in self._names}
        sys.meta_path.insert(0, self)
        try:
            yield
        finally:
            sys.meta_path.remove(self)
            sys.modules.update(before)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        """For the import system: a module's own place, and a loader that rewrites it."""
        if name not in self._names:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.origin not in self._files:
            return None
        spec.loader = _Loader(self, name, spec.origin)
        return spec

    def code(self, file: str) -> CodeType:
        """A file's rewritten code."""
        if file not in self._codes:
            self._codes[file] = rewritten(Path(file).read_text("utf-8"), file, self._files[file])
        return self._codes[file]


class _Loader(importlib.machinery.SourceFileLoader):
    """Loads a module with rewritten functions."""

    def __init__(self, anew: Anew, name: str, file: str) -> None:
        super().__init__(name, file)
        self._anew = anew

    def get_code(self, fullname: str) -> CodeType:
        return self._anew.code(self.path)
