"""The oracle's own exploration finds the races of published code, without being told where they are."""

from __future__ import annotations

import pytest

from kvlatch.reference.oracle.explore import explore
from kvlatch.reference.oracle.moves import Bounds
from kvlatch.reference.published.sglang.player import SglangPlayer

pytestmark = pytest.mark.network


@pytest.fixture(scope="module")
def player() -> SglangPlayer:
    """The newest version."""
    return SglangPlayer("0.5.23", "nixl")


def test_lost_failure(player: SglangPlayer) -> None:
    """A worker that has read the status before an abort writes Transferring over Failed; 100 of 100 times."""
    found = explore(player, Bounds(), ["no-resurrection"], preemptions=1).found["no-resurrection"]
    assert (found.lives[-2].status, found.life.status) == ("Failed", "Transferring")
    assert found.moves[-1].event is None
    assert player.play([found.script] * 100) == [found.seen[-1]] * 100


def test_lost_wakeup(player: SglangPlayer) -> None:
    """The constructor that has found no entry writes Bootstrapping over the WaitingForInput of the bootstrap thread."""
    found = explore(player, Bounds(network="disorderly"), ["no-lost-wakeup"], preemptions=1).found["no-lost-wakeup"]
    assert (found.lives[-2].status, found.life.status) == ("WaitingForInput", "Bootstrapping")
    assert len(found.moves) == 4
