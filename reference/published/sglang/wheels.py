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


def backends_in(code: Path) -> tuple[str, ...]:
    """The same, of a wheel that has been fetched, or of a folder."""

    def source(backend: str) -> bytes:
        path = f"sglang/srt/disaggregation/{backend}/conn.py"
        if code.is_dir():
            return (code / path).read_bytes() if (code / path).is_file() else b""
        with zipfile.ZipFile(code) as archive:
            return archive.read(path) if path in archive.namelist() else b""

    def keeps_table(backend: str) -> bool:
        text = source(backend)
        if b"def update_status(" in text:
            return True
        return bool(text) and backend in _BASES and keeps_table(_BASES[backend])

    return tuple(backend for backend in BACKENDS if keeps_table(backend))
