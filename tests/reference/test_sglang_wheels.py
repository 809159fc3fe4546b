"""Pins, cache and download of the published wheels; offline but for the last tests."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from kvlatch.reference import sglang_wheels
from tests.reference.sglang_fake import make_wheel

MANAGER = "def update_status(self, room, status): ..."


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Version 0 is pinned and in the cache."""
    return make_wheel(tmp_path, monkeypatch, MANAGER)


def test_twenty_five_versions_are_pinned() -> None:
    """The versions are in order, without a gap from 0.5.5 to 0.5.23, and each has its own file and hash."""
    pins = sglang_wheels.pins()
    assert list(pins) == list(sglang_wheels.versions())
    numbers = [tuple(map(int, version.replace(".post", ".").split("."))) for version in pins]
    assert numbers == sorted(numbers)
    assert {f"0.5.{number}" for number in range(5, 24)} <= {*pins}
    assert {"0.4.6", "0.4.8", "0.4.10.post2", "0.5.1", "0.5.3", "0.5.15.post1"} == {*pins} - {
        f"0.5.{number}" for number in range(5, 24)
    }
    assert len({pin.filename for pin in pins.values()}) == len({pin.sha256 for pin in pins.values()}) == 25
    assert all(len(pin.sha256) == 64 and pin.filename.startswith(f"sglang-{v}-") for v, pin in pins.items())


def test_unknown_version() -> None:
    """A version that is not pinned is refused, with the known ones."""
    with pytest.raises(sglang_wheels.UnknownVersion, match=r"9\.9.*0\.5\.11, .*0\.5\.23") as caught:
        sglang_wheels.fetch("9.9")
    assert caught.value.exit_code == 2


def test_a_changed_wheel_is_refused(wheel: Path) -> None:
    """The hash is checked at each use, not only at the download."""
    assert sglang_wheels.fetch("0") == wheel
    wheel.write_bytes(b"something else")
    with pytest.raises(sglang_wheels.WheelMismatch, match="sha256") as caught:
        sglang_wheels.fetch("0")
    assert caught.value.exit_code == 4


def test_a_failed_download_is_one_clear_line(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a network there is one line of pip's, and nothing is left in the cache."""
    wheel.unlink()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(sglang_wheels.CannotFetch, match="sglang 0: ERROR: No matching") as caught:
        sglang_wheels.fetch("0")
    assert caught.value.exit_code == 4
    assert "\n" not in str(caught.value)
    assert not list(wheel.parent.iterdir())


def test_a_download_without_end_is_given_up(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pip that hangs is ended at the time limit."""
    wheel.unlink()

    def pip(command: list[str], **options: Any) -> None:
        raise subprocess.TimeoutExpired(command, options["timeout"])

    monkeypatch.setattr(subprocess, "run", pip)
    with pytest.raises(sglang_wheels.CannotFetch, match="took more than 600 s"):
        sglang_wheels.fetch("0")


def test_another_file_is_no_download(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pip that is content but has brought something else is a failure."""
    wheel.unlink()
    monkeypatch.setattr(subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, 0))
    with pytest.raises(sglang_wheels.CannotFetch, match=r"pip brought no sglang-0\.whl"):
        sglang_wheels.fetch("0")


def test_a_cache_that_cannot_be_written_is_one_clear_line(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache folder that is a file is named, with the system's reason."""
    monkeypatch.setenv("KVLATCH_CACHE", str(wheel))
    with pytest.raises(sglang_wheels.CannotFetch, match=r"sglang 0: .*(Not a directory|File exists)"):
        sglang_wheels.fetch("0")


@pytest.mark.parametrize("content", [b"as pinned", b"forged"])
def test_a_download_is_moved_into_the_cache_only_if_it_is_the_pinned_one(
    wheel: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
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
        assert sglang_wheels.fetch("0").read_bytes() == pinned
    else:
        with pytest.raises(sglang_wheels.WheelMismatch):
            sglang_wheels.fetch("0")
    assert [path.name for path in wheel.parent.iterdir()] == [wheel.name] * wheel.exists()


def test_the_cache_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """KVLATCH_CACHE comes first, then the user's cache, then the home folder's."""
    monkeypatch.setenv("KVLATCH_CACHE", "/somewhere")
    assert sglang_wheels.cache() == Path("/somewhere")
    monkeypatch.delenv("KVLATCH_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert sglang_wheels.cache() == tmp_path / "kvlatch"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    assert sglang_wheels.cache() == tmp_path / ".cache" / "kvlatch"


@pytest.mark.parametrize(("source", "there"), [(MANAGER, ("common",)), ("", ())])
def test_a_backend_is_there_if_its_manager_keeps_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, there: tuple[str, ...]
) -> None:
    """A conn.py without update_status is no backend that could be run."""
    make_wheel(tmp_path, monkeypatch, source)
    assert sglang_wheels.backends("0") == there


@pytest.mark.network
@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("0.4.6", ("mooncake",)),
        ("0.4.8", ("nixl", "mooncake")),
        ("0.5.9", ("nixl", "mooncake", "mori", "ascend")),
        ("0.5.23", ("common", "nixl", "mooncake", "mori", "ascend")),
    ],
)
def test_the_backends_of_published_versions(version: str, expected: tuple[str, ...]) -> None:
    """NIXL keeps no table in 0.4.6, the common manager none before 0.5.10; MoRI came with 0.5.9."""
    try:
        assert sglang_wheels.backends(version) == expected
    except sglang_wheels.CannotFetch as reason:
        pytest.skip(str(reason))
