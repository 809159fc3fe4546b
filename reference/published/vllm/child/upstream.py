"""Loads the KV transfer code of a vLLM wheel: its real modules, and stand-ins for everything else.

Of the engine, upstream's own code are the request and its states, the scheduler, the NIXL connector with both its
halves, and the part of the model runner that calls the worker's half. The wheel is read as the archive that it is.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from kvlatch.reference.published.stand_ins import Nothing, Struct, StubModule

TRANSFER: Final = "vllm.distributed.kv_transfer"
CONNECTOR: Final = f"{TRANSFER}.kv_connector"
NIXL: Final = f"{CONNECTOR}.v1.nixl"
SCHEDULER: Final = "vllm.v1.core.sched.scheduler"
RUNNER: Final = "vllm.v1.worker.kv_connector_model_runner_mixin"

# Left empty: upstream's own __init__ would import the whole engine.
PACKAGES: Final = (
    "vllm", "vllm.distributed", TRANSFER, CONNECTOR, "vllm.utils", "vllm.v1", "vllm.v1.core", "vllm.v1.core.sched",
    "vllm.v1.worker",
)  # fmt: skip
REAL: Final = (
    "vllm.envs", "vllm.utils.math_utils", f"{CONNECTOR}.base", f"{CONNECTOR}.utils", f"{CONNECTOR}.v1",
    f"{CONNECTOR}.v1.base", f"{CONNECTOR}.v1.metrics", "vllm.v1.core.sched.interface", SCHEDULER,
    "vllm.v1.core.sched.utils", "vllm.v1.outputs", "vllm.v1.request", RUNNER,
)  # fmt: skip


class WheelFinder:
    """Finds the KV transfer code in the wheel and answers other third-party imports by stand-ins."""

    def __init__(self, wheel: str) -> None:
        self.wheel = wheel

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        if name.partition(".")[0] in (*sys.stdlib_module_names, "numpy"):
            return None
        if name in PACKAGES:
            spec = ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = [str(Path(self.wheel, *name.split(".")))]
            return spec
        if name.startswith(NIXL):
            return PathFinder.find_spec(name, path)
        found = PathFinder.find_spec(name, path) if name in REAL else None  # some versions have no such module
        return found or ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]  # its own loader

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return StubModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ == "msgspec":
            vars(module)["Struct"] = Struct
        if module.__name__ == "vllm.logger":
            vars(module)["init_logger"] = lambda _: Nothing()


class Clock:
    """Stands in for `time` in the connector's modules."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


class Upstream:
    """What the wheel defines."""

    def __init__(self, wheel: str) -> None:
        sys.meta_path.insert(0, WheelFinder(wheel))
        sys.modules["regex"] = re  # the same for the patterns that are compiled here
        self.connector: Any = first(f"{NIXL}.connector", f"{NIXL}_connector").NixlConnector
        self.role: Any = importlib.import_module(f"{CONNECTOR}.v1").KVConnectorRole
        self.scheduler: Any = lenient(importlib.import_module(SCHEDULER).Scheduler)
        self.request: Any = importlib.import_module("vllm.v1.request")
        self.runner: Any = importlib.import_module(RUNNER)
        self.clock = Clock()
        self.replace(time=self.clock)

    def replace(self, **stand_ins: Any) -> None:
        """Puts stand-ins in the place of what the connector's modules have by these names."""
        for name, module in sys.modules.items():
            if name.startswith(NIXL):
                vars(module).update({known: part for known, part in stand_ins.items() if known in vars(module)})


def lenient(cls: Any) -> Any:
    """A subclass whose instances have nothing for whatever they were not given."""

    def nothing(_: object, name: str) -> Nothing:
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing()

    return type(cls)(cls.__name__, (cls,), {"__getattr__": nothing})


def first(*names: str) -> Any:
    """The first of these modules that the version has."""
    for name in names:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not name.startswith(error.name):
                raise
    raise ImportError(f"the wheel has none of {', '.join(names)}")
