"""The published sglang wheels, and which backends each has."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Final

from kvlatch.reference.published.wheels import Package

BACKENDS: Final = ("common", "nixl", "mooncake", "mori", "ascend")
_BASES: Final = {"nixl": "common", "mooncake": "common", "mori": "common", "ascend": "mooncake"}
"""Whose manager each backend's derives from."""

PACKAGE: Final = Package("sglang", "sglang", Path(__file__).with_name("wheels.txt"))


def versions() -> tuple[str, ...]:
    """The versions that are pinned, oldest first."""
    return PACKAGE.versions()


def fetch(version: str) -> Path:
    """The pinned wheel of a version. Raises UnknownVersion, CannotFetch or WheelMismatch."""
    return PACKAGE.fetch(version)


def backends(version: str) -> tuple[str, ...]:
    """The backends of a version whose manager keeps a table of statuses. Raises as `fetch` does.

    The common one has none of its own before 0.5.10, nor has NIXL's in 0.4.6.
    """
    return backends_in(fetch(version))


def backends_in(wheel: Path) -> tuple[str, ...]:
    """The same, of a wheel that has been fetched."""
    with zipfile.ZipFile(wheel) as archive:
        files = {*archive.namelist()}

        def keeps_table(backend: str) -> bool:
            path = f"sglang/srt/disaggregation/{backend}/conn.py"
            if path not in files:
                return False
            if b"def update_status(" in archive.read(path):
                return True
            return backend in _BASES and keeps_table(_BASES[backend])

        return tuple(backend for backend in BACKENDS if keeps_table(backend))
