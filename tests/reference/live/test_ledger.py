"""The ledger counts what no status shows."""

from __future__ import annotations

from typing import Any

import pytest

from kvlatch.reference.live.ledger import PrefillLedger
from kvlatch.spec.status import KVPoll


def state(ledger: PrefillLedger, **table: KVPoll) -> dict[str, Any]:
    """The ledger beside a table of rooms: ``r7=KVPoll.Failed``."""
    return ledger.as_json({int(room[1:]): status for room, status in table.items()})


@pytest.mark.parametrize(
    ("before", "during", "answer", "hits"),
    [
        ([], [7], True, 1),
        ([], [7, 7], True, 1),
        ([], [7], False, 0),  # it saw the failure, and skipped
        ([], [8], True, 0),  # another room
        ([7], [], True, 0),  # before it looked
        ([], [], True, 0),
    ],
)
def test_a_hit_is_a_failure_that_a_deciding_worker_has_not_seen(
    before: list[int], during: list[int], answer: bool, hits: int
) -> None:
    """Failed has to be written between the begin and the end of the worker's decision, and the worker to go on."""
    ledger = PrefillLedger()
    for room in before:
        ledger.stored(room, KVPoll.Failed)
    with ledger.deciding(7) as answers:
        for room in during:
            ledger.stored(room, KVPoll.Failed)
        ledger.stored(7, KVPoll.Transferring)
        answers.append(answer)
    assert state(ledger)["hits"] == hits


def test_two_workers_in_one_room_can_both_be_hit() -> None:
    """One abort may fall into the decisions of two workers."""
    ledger = PrefillLedger()
    with ledger.deciding(7) as one, ledger.deciding(7) as two:
        ledger.stored(7, KVPoll.Failed)
        one.append(True)
        two.append(True)
    assert state(ledger)["hits"] == 2


def test_pages_released_under_a_transfer_are_counted_once() -> None:
    """Early is a release while a worker transfers, of this room."""
    ledger = PrefillLedger()
    with ledger.transferring(7), ledger.transferring(7):
        ledger.released(7)
        ledger.released(8)
    ledger.released(9)
    with ledger.transferring(10):
        pass
    ledger.released(10)
    assert (state(ledger)["released"], state(ledger)["released_early"]) == (4, 1)


def test_places_ghosts_and_orphans() -> None:
    """A ghost is an entry of a request that is over, an orphan one of a room that never had a request."""
    ledger = PrefillLedger()
    for room in (1, 2, 3):
        ledger.moved(room, "boot")
    ledger.moved(1, "inflight")
    ledger.moved(2, "inflight")
    before = state(ledger)["changes"]
    ledger.moved(2, "done")
    ledger.settled(KVPoll.Success)
    seen = state(ledger, r1=KVPoll.Transferring, r2=KVPoll.Success, r4=KVPoll.WaitingForInput)
    assert seen["changes"] == before + 1
    assert seen["requests"] == {"boot": 1, "inflight": 1, "done": 1}
    assert seen["settled"] == {"Success": 1, "Failed": 0}
    assert seen["inflight"] == {"1": "Transferring"}
    assert seen["ghosts"] == ["2"]
    assert seen["orphans"] == ["4"]
    assert state(ledger)["inflight"] == {"1": "Absent"}
    assert (ledger.place(2), ledger.place(4)) == ("done", None)
