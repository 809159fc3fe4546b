"""Loads the scheduler of an sglang wheel with its queues and managers, unmodified; stubs answer for the rest."""

from __future__ import annotations

import importlib
import logging
import re
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from kvlatch.reference.live.upstream import tensors
from kvlatch.reference.live.upstream.stubs import StubModule

SRT: Final = "sglang.srt"
_REAL: Final = re.compile(
    rf"{re.escape(SRT)}\.("
    r"disaggregation(\..*)?|environ|constants|utils\.network|managers\.(scheduler|schedule_batch)"
    r"|mem_cache\.(common|base_prefix_cache|chunk_cache|allocator\.base)"
    r"|distributed\.device_communicators\.mooncake_transfer_engine)"
)
"""Upstream's own modules; every other one of sglang is a stub."""
INSTALLED: Final = ("aiohttp", "mooncake", "msgspec", "nixl", "numpy", "psutil", "requests", "zmq")
"""Packages that upstream's modules get as they are; every other foreign one is a stub for them."""


class Finder:
    """Finds what upstream's modules import: ``code`` is a wheel or a folder, ``replaced`` has names by module."""

    def __init__(self, code: Path, replaced: Mapping[str, Mapping[str, Any]]) -> None:
        self._code = code
        self._replaced = replaced
        self.real: list[str] = []
        """The modules that are upstream's own."""
        self.stubs: list[str] = []
        """The modules that are stubs."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        """The module itself, or a stub of it."""
        top = name.partition(".")[0]
        if _REAL.fullmatch(name):
            found = PathFinder.find_spec(name, [str(self._code.joinpath(*name.split(".")[:-1]))])
            self.real += [name] if found else []
            return found
        foreign = top != "sglang"
        if foreign and (top in INSTALLED or top in sys.stdlib_module_names or not _for_upstream()):
            return None
        self.stubs.append(name)
        return ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]  # a finder may be its own loader

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """A stub."""
        prefix = f"{spec.name}."
        return StubModule(spec.name, {name.removeprefix(prefix) for name in self._replaced if name.startswith(prefix)})

    def exec_module(self, module: ModuleType) -> None:
        """Set what is replaced by something that works."""
        vars(module).update(self._replaced.get(module.__name__, {}))


def _for_upstream() -> bool:
    """Whether it is a module of sglang, or a stub on its behalf, that imports something."""
    frame = sys._getframe(2)  # the only way to know who imports
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("importlib."):
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", "")).startswith("sglang")


def load(code: Path, replaced: Mapping[str, Mapping[str, Any]]) -> Finder:
    """Make `sglang` importable from a wheel or a folder, with these names in place of others."""
    logger: Any = logging.Logger
    logger.warning_once = logger.warning  # which the engine adds when it starts
    for name in ("_api", "_bindings"):  # the package's name without CUDA's version
        sys.modules[f"nixl.{name}"] = importlib.import_module(f"nixl_cu12.{name}")
    sys.modules["nixl"] = importlib.import_module("nixl_cu12")
    torch = tensors.names()
    finder = Finder(
        code, {"torch": torch, "torch.cuda": tensors.CUDA, "torch.distributed": vars(torch["distributed"]), **replaced}
    )
    sys.meta_path.insert(0, finder)
    return finder
