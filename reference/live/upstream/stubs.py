"""What upstream's modules meet in the place of an engine's other parts, and a list of all that was met.

A stub may be imported, derived from, used as a decorator, called, and passed on. It must not decide anything: whoever
asks whether it is true, how long it is, or what number it is, gets :class:`Decision`. A stub that silently answers "no"
has blocked admission before, and nobody saw it.
"""

from __future__ import annotations

import abc
import importlib
from collections.abc import Collection, Iterator
from types import ModuleType
from typing import Any, NoReturn

MET: set[str] = set()
"""The full names of the stubs that were looked up."""


class Decision(RuntimeError):
    """Upstream's code has read a stub as a decision."""


class Missing(AttributeError):
    """Upstream's code asks for what this engine has not got: the version cannot be run, and has done nothing wrong."""


class Stub(abc.ABCMeta):
    """The type of the stubs. It derives from ABCMeta, so that a class may have a stub and an ABC as its bases."""

    full_name: str

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = stub(f"{cls.full_name}.{name}")
        setattr(cls, name, value)
        return value

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if "is_stub" not in vars(cls):  # a class of upstream's, derived from a stub
            return super().__call__(*args, **kwargs)
        decorates = len(args) == 1 and not kwargs and callable(args[0])
        return args[0] if decorates else stub(f"{cls.full_name}()")

    def __getitem__(cls, item: object) -> Any:
        return cls

    def _decide(cls, *_: object) -> NoReturn:
        raise Decision(f"{cls.full_name} is replaced, and was read as a decision")

    __bool__ = __len__ = __int__ = __index__ = __float__ = _decide
    __lt__ = __le__ = __gt__ = __ge__ = __contains__ = _decide

    def __iter__(cls) -> Iterator[Any]:
        cls._decide()


def stub(full_name: str) -> Stub:
    """A new stub."""
    MET.add(full_name)
    name = full_name.rpartition(".")[2]
    return Stub(name, (), {"is_stub": True, "full_name": full_name})


class StubModule(ModuleType):
    """A module in which every name is a stub, except those that are set, and modules that are replaced in part."""

    def __init__(self, name: str, submodules: Collection[str] = ()) -> None:
        super().__init__(name)
        self.submodules = submodules

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        full_name = f"{self.__name__}.{name}"
        value = importlib.import_module(full_name) if name in self.submodules else stub(full_name)
        setattr(self, name, value)
        return value
