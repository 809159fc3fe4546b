"""The pinned sglang wheels, and which backends each has; offline but for the last tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvlatch.reference.published.sglang import wheels as sglang_wheels
from kvlatch.reference.published.wheels import CannotFetch, UnknownVersion
from tests.reference.published.sglang.sglang_fake import make_wheel

MANAGER = "def update_status(self, room, status): ..."


def test_every_version_is_pinned() -> None:
    """From 0.4.6 to 0.5.23: the versions are in order, and each has its own file and hash."""
    pins = sglang_wheels.PACKAGE.pins
    assert list(pins) == list(sglang_wheels.versions())
    numbers = [tuple(map(int, version.replace(".post", ".").split("."))) for version in pins]
    assert numbers == sorted(numbers)
    assert {f"0.5.{number}" for number in range(1, 24)} <= {*pins}
    assert len({pin.filename for pin in pins.values()}) == len({pin.sha256 for pin in pins.values()}) == len(pins) == 62
    assert all(len(pin.sha256) == 64 and pin.filename.startswith(f"sglang-{v}-") for v, pin in pins.items())


def test_unknown_version() -> None:
    """A version that is not pinned is refused, with the known ones."""
    with pytest.raises(UnknownVersion, match=r"sglang 9\.9.*0\.5\.11, .*0\.5\.23") as caught:
        sglang_wheels.fetch("9.9")
    assert caught.value.exit_code == 2


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
    except CannotFetch as reason:
        pytest.skip(str(reason))
