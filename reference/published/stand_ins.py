"""What foreign code meets in a child process in the place of an engine: modules, classes and objects that do nothing.

Standard library only, as all that a child imports: the foreign code finds nothing of ours but this.
"""

from __future__ import annotations

import abc
import dataclasses
import os
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any, TextIO


class StubType(abc.ABCMeta):
    """The type of the stand-ins: false classes that come to nothing when called or subscripted.

    As a decorator, a stand-in gives back what it decorates. The type derives from `ABCMeta`, so that a foreign class
    may have a stand-in and an ABC as its bases.
    """

    def __getattr__(cls, name: str) -> Any:
        value = stub(name)
        setattr(cls, name, value)
        return value

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if "is_stub" not in vars(cls):  # a foreign class, derived from a stand-in
            return super().__call__(*args, **kwargs)
        decorates = len(args) == 1 and not kwargs and callable(args[0])
        return args[0] if decorates else cls

    def __bool__(cls) -> bool:
        return False

    def __getitem__(cls, item: Any) -> Any:
        return cls

    def __iter__(cls) -> Iterator[Any]:  # or else `in` would ask __getitem__ for ever
        return iter(())

    def __gt__(cls, other: Any) -> bool:
        return False


def stub(name: str) -> StubType:
    """A new stand-in.

    Raises AttributeError for a special name: a stand-in must not pretend to follow protocols.
    """
    if name.startswith("__"):
        raise AttributeError(name)
    return StubType(name, (), {"is_stub": True})


class StubModule(ModuleType):
    """A module in which every name is a stand-in."""

    def __getattr__(self, name: str) -> Any:
        value = stub(name)
        setattr(self, name, value)
        return value


class Struct:
    """Stands in for `msgspec.Struct`, whose subclasses are constructed from their fields."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__()
        dataclasses.dataclass(cls)


class Nothing:
    """A part of an engine that has no bearing on what is observed: false, empty, and silent when called.

    What it is given it has; whatever else it is asked for is nothing again.
    """

    def __init__(self, **given: Any) -> None:
        vars(self).update(given)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing()

    def __call__(self, *_: Any, **__: Any) -> Any:
        return Nothing()

    def __bool__(self) -> bool:
        return False

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __len__(self) -> int:
        return 0

    def __getitem__(self, item: Any) -> Any:
        return Nothing()

    def __gt__(self, other: Any) -> bool:
        return False


def private_stdout() -> TextIO:
    """The real standard output; from now on, what anybody prints goes to standard error."""
    private = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return private
