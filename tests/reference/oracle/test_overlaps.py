"""Two calls at once: which pairs, in which ways, and what that finds."""

from __future__ import annotations

import pytest

from kvlatch.reference.oracle.inprocess import InProcess
from kvlatch.reference.oracle.moves import Bounds, Move
from kvlatch.reference.oracle.overlaps import SPINES, Overlap, ended, handed_over, interleaved, overlaps, rested
from kvlatch.reference.oracle.wander import as_play
from kvlatch.spec.status import KVPoll
from tests.reference.oracle.managers import LockedLoop, Loop, Right, Unlocked

CALLS = (Move.parse("create"), Move.parse("metadata"))


def test_which() -> None:
    """Each spine is gone along; of each kind one comes before the second of any; calls on one thread never meet."""
    found = overlaps(InProcess(Right))
    assert {one.bounds for one in found} == {bounds for bounds, _ in SPINES}
    kinds = [one.kind for one in found]
    assert len(set(kinds)) > 40
    assert len(set(kinds[: len(set(kinds))])) == len(set(kinds))
    assert all(one.calls[0].thread != one.calls[1].thread for one in found)
    longest = {bounds: max(len(one.before) for one in found if one.bounds == bounds) for bounds, _ in SPINES}
    assert all(longest[bounds] >= len(moves) - 3 for bounds, moves in SPINES)


def test_every_way() -> None:
    """Without a lock both calls may read before either writes, and either may write last."""
    player = InProcess(Unlocked)
    start = as_play(player, Bounds("disorderly"), (), player.places)
    ends = [play for play in interleaved(player, start, CALLS) if ended(play, CALLS, 0)]
    assert {play.seen[-1].status for play in ends} == {KVPoll.Bootstrapping, KVPoll.WaitingForInput}
    assert any(play.world.preemptions for play in ends)


def test_to_rest() -> None:
    """After the overlap the room is played on until nothing is left to do."""
    player = InProcess(Right)
    overlap = Overlap(Bounds("disorderly"), (), CALLS)
    runs = [run for run, _, _ in rested(player, overlap, CALLS)]
    assert runs[-1].world.life.now.phase == "done"
    assert runs[-1].moves[:2] == list(CALLS)
    assert all(runs[-1].whole[2:])


@pytest.mark.parametrize(("manager", "counted"), [(Loop, 1), (LockedLoop, 2)])
def test_calls_that_are_handed_over(manager: type[Loop], counted: int) -> None:
    """The loop gets both before it begins one, so the second task reads what the first is about to replace."""
    both_over = [
        seen.status
        for run, _, seen in handed_over(InProcess(manager), Overlap(Bounds("disorderly"), (), CALLS))
        if all(call in run.moves for call in CALLS) and not run.world.active
    ]
    assert both_over[0] == KVPoll(counted)
