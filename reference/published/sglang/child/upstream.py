"""Loads the status code of an sglang wheel: upstream's own classes, unmodified, on a machine without its engine.

Of the wheel, `sglang.srt.environ` and `sglang.srt.disaggregation` are really loaded; every other module outside the
standard library, NumPy excepted, is answered by stand-ins: no GPU, no torch, no network.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import logging
import queue
import sys
import threading
from collections.abc import Sequence
from importlib.abc import InspectLoader
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec, spec_from_file_location, spec_from_loader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from kvlatch.reference.published.sglang.child.construct import lenient
from kvlatch.reference.published.sglang.child.threads import Fault, Threading
from kvlatch.reference.published.stand_ins import Struct, StubModule

PACKAGE = "sglang.srt.disaggregation"
WORKERS = ("transfer_worker", "_transfer_worker")
"""The loop of a transfer worker, by the names that it has had."""


class WheelFinder:
    """Finds the status code in the wheel and answers other third-party imports by stand-ins."""

    # Left empty: sglang's own __init__ would import the whole engine, the others have none.
    PACKAGES = ("sglang", "sglang.srt", PACKAGE)

    def __init__(self, wheel: str) -> None:
        self.wheel = wheel
        self.beside: list[str] = []
        """The folders of overlays, whose own modules are loaded too."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        top = name.partition(".")[0]
        if top in sys.stdlib_module_names or top in ("numpy", "kvlatch"):
            return None
        if name in self.PACKAGES:
            spec = ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = [str(Path(self.wheel, *name.split(".")))]
            return spec
        if name == "sglang.srt.environ" or name.startswith(f"{PACKAGE}."):
            found = PathFinder.find_spec(name, path)
            return found and spec_from_loader(name, WheelLoader(found.loader))
        own = PathFinder.find_spec(name, self.beside if name == top else path) if top != "sglang" else None
        if own is not None and own.has_location:
            return own
        return ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]  # a finder may be its own loader

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return StubModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ == "msgspec":
            vars(module)["Struct"] = Struct


class WheelLoader(InspectLoader):
    """Loads a module of the wheel, whose managers' constructors pass over what needs an engine."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def get_source(self, fullname: str) -> str | None:
        source: str | None = self.loader.get_source(fullname)
        return source

    def is_package(self, fullname: str) -> bool:
        return bool(self.loader.is_package(fullname))

    def get_filename(self, fullname: str) -> str:
        return str(self.loader.get_filename(fullname))

    def get_code(self, fullname: str) -> CodeType | None:
        path = self.get_filename(fullname)
        code: CodeType = compile(lenient(self.get_source(fullname) or "", path), path, "exec")
        return code


class Ranks:
    """Stands in for torch where polls are reduced over ranks; `others` is what every other rank has polled."""

    class ReduceOp:
        MIN, MAX = min, max

    uint8 = int32 = None

    def __init__(self) -> None:
        self.others: list[int] = []

    def get_world_size(self, group: object) -> int:
        return 1 + len(self.others)

    def tensor(self, values: list[int], **_: object) -> Any:
        return SimpleTensor(values)

    def all_reduce(self, tensor: SimpleTensor, *, op: Any, group: object = None) -> None:
        tensor.values = [op(value, *self.others) for value in tensor.values] if self.others else tensor.values


@dataclasses.dataclass
class SimpleTensor:
    """As much of a tensor as a reduction of polls needs."""

    values: list[int]

    def tolist(self) -> list[int]:
        return self.values


class Upstream:
    """What one backend of the code defines, with overlays laid over it."""

    def __init__(self, code: str, backend: str, overlays: Sequence[str] = ()) -> None:
        self.finder = WheelFinder(code)
        sys.meta_path.insert(0, self.finder)
        logger: Any = logging.Logger
        logger.warning_once = logger.warning  # which the engine adds when it starts

        self.backend = backend
        self.threads = Threading()
        self.ranks = Ranks()
        self.conn: Any = importlib.import_module(f"{PACKAGE}.{backend}.conn")
        base: Any = importlib.import_module(f"{PACKAGE}.base.conn")
        self.utils: Any = importlib.import_module(f"{PACKAGE}.utils")
        self.values = {n: v for n, v in vars(base.KVPoll).items() if not n.startswith("_")}
        self.names = {value: name for name, value in self.values.items()}

        prefix = backend.capitalize()
        self.manager: Any = getattr(self.conn, f"{prefix}KVManager")
        self.sender: Any = concrete(getattr(self.conn, f"{prefix}KVSender"))
        self.receiver: Any = getattr(self.conn, f"{prefix}KVReceiver", None)
        self.scheduler: Any = None
        for number, overlay in enumerate(overlays):
            self.lay_over(f"overlay_{number}", overlay)
        self.sender_accepts = inspect.signature(self.sender).parameters
        self.worker = next((name for name in WORKERS if hasattr(self.manager, name)), None)

        self.replace_threading()
        vars(self.utils).update(torch=self.ranks, dist=self.ranks)
        if "get_local_ip_by_remote" in vars(self.conn):  # up to 0.4.8 it goes into decode's messages
            vars(self.conn).update(get_local_ip_by_remote=lambda: "127.0.0.1")

    def lay_over(self, name: str, path: str) -> None:
        """The classes `Manager`, `Sender`, `Receiver` and `Scheduler` of a file come before upstream's own.

        Its function `lay_over`, if it has one, is given this object first, for what no class can change. Raises Fault
        if the file has none of these.
        """
        spec = spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise Fault(f"{path} is no Python file")
        overlay: Any = module_from_spec(spec)
        before = {*sys.modules}
        self.finder.beside.append(str(Path(path).parent))
        sys.modules[name] = overlay
        spec.loader.exec_module(overlay)
        for imported in {*sys.modules} - before:
            if imported.partition(".")[0] not in sys.stdlib_module_names:
                self.replace_locks(sys.modules[imported])
        found = [part for part in ("manager", "sender", "receiver", "scheduler") if hasattr(overlay, part.capitalize())]
        if not found and not hasattr(overlay, "lay_over"):
            raise Fault(f"{path} has no class Manager, Sender, Receiver or Scheduler, and no function lay_over")
        if hasattr(overlay, "lay_over"):
            overlay.lay_over(self)
        for part in found:
            over, under = getattr(overlay, part.capitalize()), getattr(self, part)
            if part == "scheduler" and under is None:
                under = self.prefill_module().SchedulerDisaggregationPrefillMixin
            setattr(self, part, type(under)(f"{under.__name__}", (over, under), {}))

    def replace_locks(self, module: ModuleType) -> None:
        """Makes an overlay, or a module that it imports, take locks that the player sees, by whatever name."""
        ours = {"threading": self.threads, "Lock": self.threads.Lock, "RLock": self.threads.RLock}
        theirs = {"threading": threading, "Lock": threading.Lock, "RLock": threading.RLock}
        vars(module).update({n: ours[n] for n, theirs_is in theirs.items() if vars(module).get(n) is theirs_is})

    def replace_threading(self) -> None:
        for name, module in sys.modules.items():
            if name.startswith(PACKAGE) and vars(module).get("threading") is threading:
                vars(module)["threading"] = self.threads

    def new_queue(self) -> Any:
        """A transfer queue: the package's own, or the standard library's, which 0.4.6 uses."""
        common = sys.modules.get(f"{PACKAGE}.common.utils")
        return getattr(common, "FastQueue", queue.SimpleQueue)()

    def prefill(self) -> Any:
        """The scheduler's part of a prefill engine; loaded when it is asked for, since few scripts do."""
        return self.scheduler or self.prefill_module().SchedulerDisaggregationPrefillMixin

    def prefill_module(self) -> Any:
        return importlib.import_module(f"{PACKAGE}.prefill")


def concrete(cls: type) -> type:
    """A subclass that can be instantiated although some methods are still abstract.

    The common sender is abstract in most versions: its poll then does nothing and returns None.
    """
    subclass = type(cls)(cls.__name__, (cls,), {})
    subclass.__abstractmethods__ = frozenset()  # type: ignore[attr-defined]  # what ABCMeta sets
    return subclass
