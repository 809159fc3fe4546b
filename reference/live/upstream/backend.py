"""The transfer backend that published code runs: where its classes are, and where a transfer starts and ends."""

from __future__ import annotations

import functools
import importlib
import os
import time
from collections.abc import Callable
from typing import Any, Final

import attrs

from kvlatch.reference.live.upstream.load import SRT

_NAMES: Final = {"nixl": "Nixl", "mooncake": "Mooncake"}
_ENGINE: Final = f"{SRT}.distributed.device_communicators.mooncake_transfer_engine"


@attrs.frozen
class Backend:
    """One of upstream's, by the name that its server argument has."""

    name: str

    @property
    def modules(self) -> tuple[Any, Any]:
        """Its package, and the module in it; a class is looked up in either."""
        package = f"{SRT}.disaggregation.{self.name}"
        return importlib.import_module(package), importlib.import_module(f"{package}.conn")

    def full(self, part: str) -> str:
        """What a class is called: KVManager, KVSender, KVReceiver, KVBootstrapServer."""
        return f"{_NAMES[self.name]}{part}"

    def get(self, part: str) -> Any:
        """A class of it."""
        return vars(self.modules[1])[self.full(part)]

    def put(self, part: str, kind: Any) -> None:
        """A class in the place of its own."""
        for module in self.modules:
            setattr(module, self.full(part), kind)

    def on_the_host(self) -> None:
        """Make it transfer between memories of the host: before its manager is made."""
        if self.name == "nixl":
            vars(self.modules[1])["_normalize_kv_mem_kinds"] = _on_the_host
            return
        os.environ.update(MC_FORCE_TCP="1", MOONCAKE_PROTOCOL="tcp")
        engine = importlib.import_module(_ENGINE).init_mooncake_transfer_engine("127.0.0.1", 0, None)
        vars(self.modules[1])["get_mooncake_transfer_engine"] = lambda: engine


def _on_the_host(_: object, count: int) -> list[str]:
    """Where the buffers are: in the place of upstream's function, which says on the GPU."""
    return ["DRAM"] * count


def follow_transfers(manager: Any, begun: Callable[[int], None], ended: Callable[[int], None], seconds: float) -> None:
    """Mooncake sends a chunk in one call, which returns when it has arrived; it takes ``seconds`` at least.

    ``manager`` is the class, whose methods are replaced before one is made: a recorder that looks at them later sees
    the slow wire. NIXL's are followed by its agent.
    """
    for name in ("send_kvcache", "send_kvcache_slice"):
        method = getattr(manager, name)

        def sent(self: Any, *arguments: Any, send: Any = method, **options: Any) -> Any:
            handle, due = id(arguments), time.monotonic() + seconds
            begun(handle)
            try:
                result = send(self, *arguments, **options)
                time.sleep(max(0.0, due - time.monotonic()))  # the wire of a real network
                return result
            finally:
                ended(handle)

        setattr(manager, name, functools.wraps(method)(sent))
