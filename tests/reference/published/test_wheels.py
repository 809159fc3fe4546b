"""Pins, cache and download of published wheels, offline."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kvlatch.reference.published.wheels import CannotFetch, Package, Pin, WheelMismatch, cache


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel in the cache."""
    monkeypatch.setenv("KVLATCH_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "cache" / "tiny-0-py3-none-any.whl"
    path.parent.mkdir()
    path.write_bytes(b"as pinned")
    return path


@pytest.fixture
def package(wheel: Path, tmp_path: Path) -> Package:
    """A package of which that wheel is pinned as version 0."""
    pins = tmp_path / "pins.txt"
    pins.write_text(f"# version, file, sha256\n0 {wheel.name} {hashlib.sha256(wheel.read_bytes()).hexdigest()}\n")
    return Package("tiny", "tiny", pins)


def test_a_changed_wheel_is_refused(package: Package, wheel: Path) -> None:
    """The hash is checked at each use, not only at the download."""
    assert package.fetch("0") == wheel
    wheel.write_bytes(b"something else")
    with pytest.raises(WheelMismatch, match="sha256") as caught:
        package.fetch("0")
    assert caught.value.exit_code == 4


def test_a_failed_download_is_one_clear_line(package: Package, wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a network there is one line of pip's, and nothing is left in the cache."""
    wheel.unlink()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(CannotFetch, match="tiny 0: ERROR: No matching") as caught:
        package.fetch("0")
    assert caught.value.exit_code == 4
    assert "\n" not in str(caught.value)
    assert not list(wheel.parent.iterdir())


def test_a_download_without_end_is_given_up(package: Package, wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pip that hangs is ended at the time limit."""
    wheel.unlink()

    def pip(command: list[str], **options: Any) -> None:
        raise subprocess.TimeoutExpired(command, options["timeout"])

    monkeypatch.setattr(subprocess, "run", pip)
    with pytest.raises(CannotFetch, match="took more than 600 s"):
        package.fetch("0")


def test_another_file_is_no_download(package: Package, wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pip that is content but has brought something else is a failure."""
    wheel.unlink()
    monkeypatch.setattr(subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, 0))
    with pytest.raises(CannotFetch, match=r"pip brought no tiny-0-py3-none-any\.whl"):
        package.fetch("0")


def test_a_cache_that_cannot_be_written_is_one_clear_line(
    package: Package, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cache folder that is a file is named, with the system's reason."""
    monkeypatch.setenv("KVLATCH_CACHE", str(wheel))
    with pytest.raises(CannotFetch, match=r"tiny 0: .*(Not a directory|File exists)"):
        package.fetch("0")


@pytest.mark.parametrize(
    ("filename", "options"),
    [
        ("tiny-0-py3-none-any.whl", []),
        (
            "tiny-0-cp312-cp312-manylinux_2_17_x86_64.whl",
            ["--python-version", "3.12", "--implementation", "cp", "--platform", "manylinux_2_17_x86_64"],
        ),
    ],
)
def test_pip_is_told_for_what_the_wheel_was_built(filename: str, options: list[str]) -> None:
    """Any Python on any machine can fetch a wheel that was built for another."""
    assert Pin("0", filename, "").options == options


@pytest.mark.parametrize("content", [b"as pinned", b"forged"])
def test_a_download_is_moved_into_the_cache_only_if_it_is_the_pinned_one(
    package: Package, wheel: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    """A forged download never appears under the wheel's name, and leaves nothing behind."""
    pinned = wheel.read_bytes()
    wheel.unlink()

    def pip(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        folder = command[command.index("--dest") + 1]
        Path(folder, wheel.name).write_bytes(pinned if content == b"as pinned" else content)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", pip)
    if content == b"as pinned":
        assert package.fetch("0").read_bytes() == pinned
    else:
        with pytest.raises(WheelMismatch):
            package.fetch("0")
    assert [path.name for path in wheel.parent.iterdir()] == [wheel.name] * wheel.exists()


def test_the_cache_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """KVLATCH_CACHE comes first, then the user's cache, then the home folder's."""
    monkeypatch.setenv("KVLATCH_CACHE", "/somewhere")
    assert cache() == Path("/somewhere")
    monkeypatch.delenv("KVLATCH_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache() == tmp_path / "kvlatch"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    assert cache() == tmp_path / ".cache" / "kvlatch"
