"""The reference manager by itself: batches, pages, polls, and what it refuses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import combinations
from types import ModuleType
from typing import Any

import attrs
import numpy as np
import pytest

from kvlatch.reference.arrays.device import to_host
from kvlatch.reference.arrays.manager import Batch, Manager, NotEnabled, Operation, Part, PoolExhausted
from kvlatch.reference.arrays.tables import NONE
from kvlatch.spec.designs import DESIGNS, Design
from kvlatch.spec.status import KVPoll
from tests.reference.arrays import cupy_facade
from tests.reference.arrays.lockstep import contents

BOTH = pytest.mark.parametrize("xp", [np, cupy_facade.xp], ids=["numpy", "facade"])
LATCH = DESIGNS["latch"]
AT_ONCE = attrs.evolve(LATCH, name="latch without the drain", release="at once")

# A life of one chunk, as (operation, names a worker, names a chunk).
TO_TRANSFER = ("create", "hear_metadata", "write_w", "admit", "enqueue", "take", "check_status", "check_infos",
               "write_t", "post")  # fmt: skip
TO_SUCCESS = ("complete", "write_s", "tell_success", "conclude_pop")
TO_FAILURE = ("hear_abort", "write_f", "settle_failed", "clear_status", "clear_infos", "release")
OF_WORKER = {"take", "check_status", "check_infos", "write_t", "post", "tell_nothing", *TO_SUCCESS}
OF_CHUNK = {"enqueue", "take", "check_status", "check_infos", "complete"}


def operations(xp: ModuleType, *steps: tuple[str, int], chunk: int = 0) -> Batch:
    """A batch of (operation, room), in which the worker of a room has its number."""
    return Batch.of(
        xp,
        [Operation[name] for name, _ in steps],
        [room for _, room in steps],
        worker=[room if name in OF_WORKER else NONE for name, room in steps],
        chunk=[chunk if name in OF_CHUNK else NONE for name, _ in steps],
    )


def life(room: int, *parts: tuple[str, ...]) -> list[tuple[str, int]]:
    """The steps of a room."""
    return [(name, room) for part in parts for name in part]


def polls(manager: Manager) -> list[str]:
    """What the senders report, by name."""
    return [KVPoll(number).name for number in to_host(manager.poll()).tolist()]


@BOTH
def test_a_life(xp: ModuleType) -> None:
    """Requests go from creation to Success in one batch, decode has their bytes, and the pages come back."""
    manager = Manager(LATCH, "locked", rooms=3, workers=3, xp=xp)
    manager.apply(operations(xp, *life(2, TO_TRANSFER), *life(0, TO_TRANSFER), ("create", 1)))
    assert polls(manager) == ["Transferring", "Bootstrapping", "Transferring"]
    assert (manager.inflight(), manager.free_pages()) == (2, 1)
    manager.apply(operations(xp, *life(0, TO_SUCCESS), *life(2, TO_SUCCESS)))
    assert polls(manager) == ["Success", "Bootstrapping", "Success"]
    assert to_host(manager.tables.delivered.array)[:, 0, 0].tolist() == [1, 0, 1]
    assert to_host(manager.wrong_bytes()).tolist() == []
    manager.apply(operations(xp, *((name, 2) for name in ("settle_success", "clear_status", "clear_infos", "release"))))
    assert (manager.inflight(), manager.free_pages()) == (1, 2)


@BOTH
def test_the_order_of_two_writes_in_one_batch_counts(xp: ModuleType) -> None:
    """Of two writes to one room in one batch, the first terminal one wins for latch, and the last for plain order."""
    start = operations(xp, *life(0, TO_TRANSFER), ("hear_abort", 0))
    late_failure = operations(xp, ("complete", 0), ("write_s", 0), ("write_f", 0))
    late_success = operations(xp, ("write_f", 0), ("complete", 0), ("write_s", 0))
    ends = {}
    for name in ("latch", "seed-control"):
        for what, ending in (("F last", late_failure), ("S last", late_success)):
            manager = Manager(DESIGNS[name], "locked", xp=xp)
            manager.apply(start)
            manager.apply(ending)
            ends[name, what] = KVPoll(int(manager.tables.status[xp.asarray([0])][0])).name
    assert ends == {
        ("latch", "F last"): "Success",
        ("latch", "S last"): "Failed",
        ("seed-control", "F last"): "Failed",
        ("seed-control", "S last"): "Success",
    }


@BOTH
def test_the_seed_incident(xp: ModuleType) -> None:
    """A worker past its checks writes Transferring over Failed: seed-control pins the request, and latch does not."""
    steps = (*TO_TRANSFER[:-2], "hear_abort", "write_f", "write_t")
    pinned, settled = Manager(DESIGNS["seed-control"], "locked", xp=xp), Manager(LATCH, "locked", xp=xp)
    for manager in (pinned, settled):
        manager.apply(operations(xp, *life(0, steps)))
        assert manager.inflight() == 1
    assert (polls(pinned), polls(settled)) == (["Transferring"], ["Failed"])
    with pytest.raises(NotEnabled, match="settle_failed of room 0"):
        pinned.apply(operations(xp, ("settle_failed", 0)))
    settled.apply(operations(xp, ("settle_failed", 0)))
    assert (pinned.inflight(), settled.inflight()) == (1, 0)


@BOTH
def test_rooms_of_one_kind_are_one_wave(xp: ModuleType) -> None:
    """A batch about distinct rooms is one wave, and one with a room three times is three."""
    manager = Manager(LATCH, "locked", rooms=5, xp=xp)
    distinct = operations(xp, *(("create", room) for room in (3, 1, 4, 0, 2)))
    again = operations(xp, ("create", 1), ("hear_metadata", 1), ("create", 2), ("write_w", 1))
    waves = [[to_host(wave).tolist() for wave in manager._waves(b)] for b in (distinct, again)]
    assert waves == [[[0, 1, 2, 3, 4]], [[0, 2], [1], [3]]]


@BOTH
def test_an_empty_batch_is_no_step(xp: ModuleType) -> None:
    """A batch without operations is one, and changes nothing."""
    manager = Manager(LATCH, "locked", xp=xp)
    before = contents(manager)
    manager.apply(Batch.of(xp, [], []))
    assert contents(manager) == before


# --------------------------------------------------------------------------------------------------------------------
# Pages


@BOTH
def test_pages_go_round(xp: ModuleType) -> None:
    """In a full pool a batch may release pages and then hold them, but not hold them first; then nothing happens."""
    manager = Manager(LATCH, "locked", rooms=2, workers=2, pages=1, xp=xp)
    manager.apply(operations(xp, *life(0, TO_TRANSFER[:5], TO_FAILURE[:-3]), *life(1, TO_TRANSFER[:3])))
    assert manager.free_pages() == 0
    before = contents(manager)
    release = life(0, TO_FAILURE[-3:])
    with pytest.raises(PoolExhausted, match=r"^operation 2 of the batch, admit: pages needed 1, free 0$"):
        manager.apply(operations(xp, *release[:2], ("admit", 1), release[2]))
    assert contents(manager) == before
    manager.apply(operations(xp, *release, ("admit", 1)))
    assert manager.free_pages() == 0
    assert to_host(manager.tables.page.array)[:, 0, 0].tolist() == [0, 0]


@BOTH
def test_a_release_under_a_transfer_is_wrong_bytes(xp: ModuleType) -> None:
    """Pages released at once are computed anew by the next request, and the transfer still running delivers those."""
    manager = Manager(AT_ONCE, "locked", rooms=2, workers=2, pages=1, xp=xp)
    manager.apply(operations(xp, *life(0, TO_TRANSFER, TO_FAILURE), *life(1, TO_TRANSFER[:5])))
    assert to_host(manager.wrong_bytes()).tolist() == []
    manager.apply(operations(xp, ("complete", 0)))
    assert to_host(manager.wrong_bytes()).tolist() == [[0, 0, 0]]


@BOTH
def test_latch_waits_for_the_transfer(xp: ModuleType) -> None:
    """In the same situation latch does not release, so the next request finds no page free."""
    manager = Manager(LATCH, "locked", rooms=2, workers=2, pages=1, xp=xp)
    manager.apply(operations(xp, *life(0, TO_TRANSFER, TO_FAILURE[:-1]), *life(1, TO_TRANSFER[:3])))
    with pytest.raises(NotEnabled, match="release of room 0"):
        manager.apply(operations(xp, ("release", 0)))
    with pytest.raises(PoolExhausted):
        manager.apply(operations(xp, ("admit", 1)))
    manager.apply(operations(xp, ("complete", 0), ("write_s", 0), ("tell_nothing", 0), ("release", 0), ("admit", 1)))
    assert to_host(manager.wrong_bytes()).tolist() == []


THREADS = {
    "abort": life(0, TO_FAILURE),
    "transfer": [("complete", 0), ("write_s", 0), ("tell_nothing", 0)],
    "next request": [("admit", 1), ("enqueue", 1)],
}
"""Three threads, from where the first request is being transferred and the next one waits for its pages."""


def orders() -> Iterator[list[str]]:
    """Every order of the six steps of the abort, the end of the transfer, and the two steps of the next request."""
    for first, second in combinations(range(9), 2):
        for end in set(range(9)) - {first, second}:
            turns = {first: "next request", second: "next request", end: "transfer"}
            yield [turns.get(turn, "abort") for turn in range(9)]


def wrong_bytes_in(design: Design) -> int:
    """In how many orders decode ends up with wrong bytes; a thread that cannot take its step waits."""
    found = 0
    for order in orders():
        manager = Manager(design, "locked", rooms=2, workers=2, pages=1, xp=np)
        manager.apply(operations(np, *life(0, TO_TRANSFER), *life(1, TO_TRANSFER[:3])))
        waiting = {thread: list(steps) for thread, steps in THREADS.items()}
        for thread in [*order, *THREADS, *THREADS, *THREADS]:
            for step in waiting[thread][:1]:
                with suppress(NotEnabled, PoolExhausted):
                    manager.apply(operations(np, step))
                    waiting[thread].pop(0)
        found += len(manager.wrong_bytes()) > 0
    return found


def test_latch_never_delivers_wrong_bytes() -> None:
    """Two requests want the one page, in every order: with the drain decode only has what was computed for it."""
    assert len(list(orders())) == 252
    assert wrong_bytes_in(LATCH) == 0
    # The page must be free when the next request asks for it, and computed anew when the transfer ends: one order.
    assert wrong_bytes_in(AT_ONCE) == 1


# --------------------------------------------------------------------------------------------------------------------
# What it refuses

BAD: list[tuple[dict[str, Any], str]] = [
    ({"operation": 34, "room": 0}, "34 is not an operation"),
    ({"operation": 0, "room": -1}, "room -1 of create is out of range: there are 2 rooms"),
    ({"operation": 0, "room": 2}, "room 2 of create is out of range: there are 2 rooms"),
    ({"operation": 0, "room": 0, "part": 5}, "5 is not a part"),
    ({"operation": 0, "room": 0, "part": Part.read}, "a manager that is locked has no create.read"),
    ({"operation": 3, "room": 0, "part": Part.read}, "a manager that is locked has no admit.read"),
    ({"operation": 0, "room": 0, "worker": 1}, "create has no worker, and 1 is given"),
    ({"operation": 25, "room": 0, "worker": 0, "chunk": 2}, "chunk 2 of break is out of range: there are 2 chunks"),
    ({"operation": 23, "room": 0}, "worker -1 of post is out of range: there are 1 workers"),
]


@BOTH
@pytest.mark.parametrize(("columns", "says"), BAD)
def test_a_batch_that_makes_no_sense_is_refused(xp: ModuleType, columns: dict[str, Any], says: str) -> None:
    """Out of range or unknown: one line says which operation and why, and nothing has changed."""
    manager = Manager(LATCH, "locked", rooms=2, workers=1, chunks=2, xp=xp)
    before = contents(manager)
    good = {"operation": 0, "room": 0, "part": Part.whole, "worker": NONE, "chunk": NONE}
    bad = {name: [good[name], given] for name, given in columns.items()}
    for ask in (manager.apply, manager.enabled):
        with pytest.raises(ValueError, match=f"^operation 1 of the batch: {re.escape(says)}$"):
            ask(Batch.of(xp, **bad))
    assert contents(manager) == before


@BOTH
def test_columns_have_their_dtypes_and_one_length(xp: ModuleType) -> None:
    """A column of another dtype raises TypeError, one of another shape ValueError, and nothing has changed."""
    manager = Manager(LATCH, "locked", rooms=2, xp=xp)
    good, before = operations(xp, ("create", 0), ("create", 1)), contents(manager)
    with pytest.raises(TypeError, match=r"^room of a batch is int32, not float32$"):
        manager.apply(attrs.evolve(good, room=xp.zeros(2, "float32")))
    with pytest.raises(TypeError, match=r"^operation of a batch is uint8, not int64$"):
        manager.apply(attrs.evolve(good, operation=xp.zeros(2, "int64")))
    with pytest.raises(ValueError, match=r"^room of a batch has shape \(3,\), not \(2,\)$"):
        manager.apply(attrs.evolve(good, room=xp.zeros(3, "int32")))
    assert contents(manager) == before


@pytest.mark.parametrize(
    ("columns", "error", "says"),
    [
        ({"operation": 0, "room": [0.5]}, TypeError, "room is made of integers, not of float64"),
        ({"operation": 0, "room": [True]}, TypeError, "room is made of integers, not of bool"),
        ({"operation": 0, "room": ["0"]}, TypeError, "room is made of integers, not of <U1"),
        ({"operation": 256, "room": 0}, ValueError, "operation goes from 256 to 256, which uint8 does not hold"),
        ({"operation": 0, "room": [0, 2**31]}, ValueError, f"room goes from 0 to {2**31}, which int32 does not hold"),
        ({"operation": [0, 0], "room": [0, 1, 2]}, ValueError,
         "the columns of a batch have one length: operation (2,), room (3,)"),
    ],
)  # fmt: skip
def test_what_is_no_batch(columns: dict[str, Any], error: type[Exception], says: str) -> None:
    """What does not fit the columns of a batch raises before there is one."""
    with pytest.raises(error) as refused:
        Batch.of(np, **columns)
    assert str(refused.value) == says


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"rooms": 0}, r"rooms is 0, not a number from 1 to \d+"),
        ({"workers": -1}, r"workers is -1, not a number from 1 to \d+"),
        ({"chunks": 2**31}, r"chunks is 2147483648, not a number from 1 to \d+"),
        ({"pages": -3}, r"pages is -3, not a number from 1 to \d+"),
        ({"page_bytes": 12}, "page_bytes is 12, not a multiple of 8"),
        ({"atomicity": "split"}, "latch is locked or cas, not split"),
        (
            {"network": "down"},
            "unknown network 'down'; it is orderly, lossy, early, overdue, doubling, late, disorderly",
        ),
    ],
)
def test_what_is_no_manager(arguments: dict[str, Any], says: str) -> None:
    """A negative count, an atomicity that the design does not claim, a network that there is not."""
    with pytest.raises(ValueError, match=f"^{says}$"):
        Manager(**{"design": LATCH, "atomicity": "locked", **arguments})


@BOTH
def test_a_step_that_cannot_happen_is_named(xp: ModuleType) -> None:
    """The second creation of a room in one batch is refused with its place and name, and the first is taken back."""
    manager = Manager(LATCH, "locked", rooms=2, xp=xp)
    before = contents(manager)
    with pytest.raises(NotEnabled, match=r"^operation 2 of the batch, create of room 1, is not enabled$"):
        manager.apply(operations(xp, ("create", 0), ("create", 1), ("create", 1)))
    assert contents(manager) == before
