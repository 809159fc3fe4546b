"""Published wheels of other projects: pinned by hash, fetched when asked for, kept in a cache, never committed."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import ClassVar, Final

import attrs

_DOWNLOAD_LIMIT: Final = 600.0


class PublishedError(Exception):
    """What keeps published code from being run; `exit_code` is what the command line makes of it."""

    exit_code: ClassVar[int]


class UnknownVersion(PublishedError):
    """No wheel of that version is pinned."""

    exit_code = 2


class CannotFetch(PublishedError):
    """The wheel is not in the cache and could not be downloaded."""

    exit_code = 4


class WheelMismatch(PublishedError):
    """The wheel is not the pinned one."""

    exit_code = 4


@attrs.frozen
class Pin:
    """One wheel: the file, and the hash that it must have."""

    version: str
    filename: str
    sha256: str

    @property
    def options(self) -> list[str]:
        """What pip has to be told to bring this file whatever it runs on: its name says for what it was built."""
        python, _, platform = self.filename.removesuffix(".whl").split("-")[-3:]
        if platform == "any":
            return []
        return ["--python-version", f"{python[2]}.{python[3:]}", "--implementation", "cp", "--platform", platform]


@attrs.frozen(slots=False)  # cached_property needs a __dict__
class Package:
    """The pinned wheels of one project.

    `engine` is what the project is called, `name` what its package is called, `pins_file` has a line for each wheel:
    version, file, sha256. `build` is what a wheel that is not pinned was built for; a pure one is taken as well.
    """

    engine: str
    name: str
    pins_file: Path
    build: str = "cp311-cp311-manylinux_2_34_x86_64"

    @functools.cached_property
    def pins(self) -> dict[str, Pin]:
        """The pinned wheels by version, oldest first."""
        lines = self.pins_file.read_text(encoding="utf-8").splitlines()
        return {pin.version: pin for pin in (Pin(*line.split()) for line in lines if not line.startswith("#"))}

    def versions(self) -> tuple[str, ...]:
        """The versions that are pinned, oldest first."""
        return tuple(self.pins)

    def fetch(self, version: str) -> Path:
        """The pinned wheel of a version, from the cache or else downloaded by pip.

        The hash is checked at every call. Concurrent calls, of several processes too, are safe.
        Raises UnknownVersion, CannotFetch or WheelMismatch.
        """
        try:
            pin = self.pins[version]
        except KeyError:
            known = ", ".join(self.versions())
            raise UnknownVersion(f"{self.engine} {version} is not pinned; known: {known}") from None
        wheel = cache() / pin.filename
        if not wheel.exists():
            self._download(pin, wheel)
        _verify(pin, wheel)
        return wheel

    def fetch_any(self, version: str) -> tuple[Path, str]:
        """The wheel of any version, and what the user should know of it: nothing if it is a pinned one.

        Raises UnknownVersion if nobody has published that version, CannotFetch or WheelMismatch.
        """
        if version in self.pins:
            return self.fetch(version), ""
        if not re.fullmatch(r"\d+(\.\w+)*", version):
            raise UnknownVersion(f"{version!r} is no version of {self.engine}; pinned are {', '.join(self.versions())}")
        folder = cache() / "unpinned" / f"{self.name}-{version}"
        if not (found := [*folder.glob("*.whl")]):
            self._download_unpinned(version, folder)
            found = [*folder.glob("*.whl")]
        with found[0].open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return found[0], f"{self.engine} {version} is not pinned: {found[0].name} has sha256 {digest}"

    def _download_unpinned(self, version: str, folder: Path) -> None:
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder.parent) as fresh:
                self._pip_download(Pin(version, f"any-1-{self.build}.whl", ""), fresh)
                Path(fresh).replace(folder)
                Path(fresh).mkdir()  # what the context manager is to remove
        except OSError as error:
            raise CannotFetch(f"{self.engine} {version}: {error}") from error

    def _download(self, pin: Pin, wheel: Path) -> None:
        """Puts the wheel into the cache in one move, so that nobody ever sees a part of it."""
        try:
            wheel.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=wheel.parent) as folder:
                self._pip_download(pin, folder)
                downloaded = Path(folder, pin.filename)
                if not downloaded.exists():
                    raise CannotFetch(f"{self.engine} {pin.version}: pip brought no {pin.filename}")
                _verify(pin, downloaded)
                downloaded.replace(wheel)
        except OSError as error:
            raise CannotFetch(f"{self.engine} {pin.version}: {error}") from error

    def _pip_download(self, pin: Pin, folder: str) -> None:
        command = [sys.executable, "-m", "pip", "download", f"{self.name}=={pin.version}"]
        command += ["--no-deps", "--only-binary=:all:", "--dest", folder, *pin.options]
        command += ["--disable-pip-version-check", "--no-input", "--retries", "2"]
        try:
            pip = subprocess.run(command, capture_output=True, text=True, timeout=_DOWNLOAD_LIMIT, check=False)
        except subprocess.TimeoutExpired:
            raise CannotFetch(f"{self.engine} {pin.version}: pip took more than {_DOWNLOAD_LIMIT:g} s") from None
        if pip.returncode != 0:
            lines = pip.stderr.strip().splitlines()
            errors = [line for line in lines if line.startswith("ERROR")] or lines or ["pip said nothing"]
            if "No matching distribution" in errors[-1] and "from versions: none" not in pip.stderr:
                raise UnknownVersion(f"{self.engine} {pin.version}: {self.name} has no wheel of that version")
            raise CannotFetch(f"{self.engine} {pin.version}: {errors[-1]}")


def cache() -> Path:
    """The folder that the wheels are kept in: KVLATCH_CACHE, or one in the user's cache."""
    if own := os.environ.get("KVLATCH_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvlatch"


def _verify(pin: Pin, wheel: Path) -> None:
    with wheel.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != pin.sha256:
        raise WheelMismatch(f"{wheel}: sha256 is {found}, pinned is {pin.sha256}; delete the file to fetch it again")
