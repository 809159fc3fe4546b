"""The published sglang wheels: pinned by hash, fetched when asked for, kept in a cache, never committed."""

from __future__ import annotations

import functools
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import ClassVar, Final

import attrs

BACKENDS: Final = ("common", "nixl", "mooncake", "mori", "ascend")
_BASES: Final = {"nixl": "common", "mooncake": "common", "mori": "common", "ascend": "mooncake"}
"""Whose manager each backend's derives from."""

_PINS: Final = Path(__file__).with_name("sglang_wheels.txt")
_PLATFORM: Final = ("--python-version", "3.11", "--implementation", "cp", "--platform", "manylinux_2_34_x86_64")
_DOWNLOAD_LIMIT: Final = 600.0


class SglangError(Exception):
    """Base of what the sglang adapter raises; `exit_code` is what the command line makes of it."""

    exit_code: ClassVar[int]


class UnknownVersion(SglangError):
    """No wheel of that version is pinned."""

    exit_code = 2


class CannotFetch(SglangError):
    """The wheel is not in the cache and could not be downloaded."""

    exit_code = 4


class WheelMismatch(SglangError):
    """The wheel is not the pinned one."""

    exit_code = 4


@attrs.frozen
class Pin:
    """One wheel: the file, and the hash that it must have."""

    version: str
    filename: str
    sha256: str


@functools.cache
def pins() -> dict[str, Pin]:
    """The pinned wheels by version, oldest first."""
    lines = _PINS.read_text(encoding="utf-8").splitlines()
    return {pin.version: pin for pin in (Pin(*line.split()) for line in lines if not line.startswith("#"))}


def versions() -> tuple[str, ...]:
    """The versions that are pinned, oldest first."""
    return tuple(pins())


def fetch(version: str) -> Path:
    """The pinned wheel of a version, from the cache or else downloaded by pip.

    The hash is checked at every call. Concurrent calls, of several processes too, are safe.
    Raises UnknownVersion, CannotFetch or WheelMismatch.
    """
    try:
        pin = pins()[version]
    except KeyError:
        raise UnknownVersion(f"sglang {version} is not pinned; known: {', '.join(versions())}") from None
    wheel = cache() / pin.filename
    if not wheel.exists():
        _download(pin, wheel)
    _verify(pin, wheel)
    return wheel


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


def cache() -> Path:
    """The folder that the wheels are kept in: KVLATCH_CACHE, or one in the user's cache."""
    if own := os.environ.get("KVLATCH_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvlatch"


def _download(pin: Pin, wheel: Path) -> None:
    """Puts the wheel into the cache in one move, so that nobody ever sees a part of it."""
    try:
        wheel.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=wheel.parent) as folder:
            _pip_download(pin, folder)
            downloaded = Path(folder, pin.filename)
            if not downloaded.exists():
                raise CannotFetch(f"sglang {pin.version}: pip brought no {pin.filename}")
            _verify(pin, downloaded)
            downloaded.replace(wheel)
    except OSError as error:
        raise CannotFetch(f"sglang {pin.version}: {error}") from error


def _pip_download(pin: Pin, folder: str) -> None:
    """Wheels since 0.5.11 are tagged for one Python and one platform: named, so that any other can run them, too."""
    command = [sys.executable, "-m", "pip", "download", f"sglang=={pin.version}"]
    command += ["--no-deps", "--only-binary=:all:", "--dest", folder, *_PLATFORM]
    command += ["--disable-pip-version-check", "--no-input", "--retries", "2"]
    try:
        pip = subprocess.run(command, capture_output=True, text=True, timeout=_DOWNLOAD_LIMIT, check=False)
    except subprocess.TimeoutExpired:
        raise CannotFetch(f"sglang {pin.version}: pip took more than {_DOWNLOAD_LIMIT:g} s") from None
    if pip.returncode != 0:
        lines = pip.stderr.strip().splitlines()
        errors = [line for line in lines if line.startswith("ERROR")] or lines or ["pip said nothing"]
        raise CannotFetch(f"sglang {pin.version}: {errors[-1]}")


def _verify(pin: Pin, wheel: Path) -> None:
    with wheel.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != pin.sha256:
        raise WheelMismatch(f"{wheel}: sha256 is {found}, pinned is {pin.sha256}; delete the file to fetch it again")
