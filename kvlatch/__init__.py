"""kvlatch: a specification, a reference implementation and a conformance oracle for KV-transfer status managers.

What most users need can be imported from here; each name is loaded when it is first asked for, so that importing
``kvlatch`` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from kvlatch.reference.oracle.adapter import Adapter, Probe
    from kvlatch.reference.oracle.checks import Check, check_manager, conforms
    from kvlatch.spec.designs import DESIGNS
    from kvlatch.spec.status import KVPoll

    __version__: str

__all__ = ["DESIGNS", "Adapter", "Check", "KVPoll", "Probe", "__version__", "check_manager", "conforms"]

_HOME: Final = {
    "Adapter": "kvlatch.reference.oracle.adapter",
    "Check": "kvlatch.reference.oracle.checks",
    "DESIGNS": "kvlatch.spec.designs",
    "KVPoll": "kvlatch.spec.status",
    "Probe": "kvlatch.reference.oracle.adapter",
    "check_manager": "kvlatch.reference.oracle.checks",
    "conforms": "kvlatch.reference.oracle.checks",
}


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version

        return version("kvlatch")
    if (home := _HOME.get(name)) is None:
        raise AttributeError(f"module 'kvlatch' has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
