"""What a storm has left behind, as figures."""

from __future__ import annotations

from typing import Any

from kvlatch.reference.live.left import Left
from kvlatch.reference.live.records import HELD


def ledger(**changes: Any) -> dict[str, Any]:
    """A rank of published code that has nothing left."""
    left = dict.fromkeys(("request_status", "transfer_infos", "failure_records"), 0)
    empty = {"deaths": [], "ghosts": [], "open": [], "wrong": [], "waiting": 0, "pages_out": 0, "reused": 0}
    prefill = {"hits": 0, "released_early": 0, "old_chunks": 0, "ended": {"wrong digest": 0}}
    return {**empty, **prefill, "left": left, "stays": {HELD: [], **{table: [] for table in left}}, **changes}


def test_what_decode_alone_still_holds_is_starved() -> None:
    """What both hold, or prefill alone, is held for ever too, and has not starved."""
    both = Left(0.0, ledger(open=["1", "2"], waiting=2), ledger(open=["2", "3", "4"], waiting=3, pages_out=64))
    counts = both.counts([], 0.0)
    assert (counts.unsettled, counts.starved, counts.pages_left) == (5, 2, 64)
    nothing = Left(0.0, ledger(), ledger()).counts([], 0.0)
    assert (nothing.unsettled, nothing.starved, nothing.pages_left, nothing.leaks) == (0, 0, 0, 0)


def test_two_ranks_are_added_up_and_kept_apart() -> None:
    """A request with wrong bytes on both ranks is one request; each rank says what it has by itself."""
    stays = {HELD: ["3"], "request_status": ["1"], "transfer_infos": ["2"], "failure_records": []}
    tables = {"request_status": 1, "transfer_infos": 1, "failure_records": 0}
    prefill = ledger(hits=2, old_chunks=1, left=tables, stays=stays)
    second = ledger(hits=3, old_chunks=4, deaths=[{"thread": "scheduler", "error": "E", "where": "a.py:1"}])
    left = Left(
        0.0, prefill, ledger(wrong=["a", "b"]), (("prefill", second), ("decode", ledger(wrong=["b", "c"])))
    )  # fmt: skip
    counts = left.counts([], 0.0)
    assert (counts.hits, counts.old_chunks, counts.wrong_digests, counts.leaks) == (5, 5, 3, 1)
    ranks = {rank.part: rank for rank in left.ranks}
    assert list(ranks) == ["prefill", "decode", "prefill rank 1", "decode rank 1"]
    assert [rank.figures["wrong_digests"] for rank in ranks.values()] == [0, 2, 0, 2]
    assert (ranks["prefill"].figures["hits"], ranks["prefill rank 1"].figures["hits"]) == (2, 3)
    assert ranks["prefill"].leaks == {"transfer_infos": 1}
    assert ranks["prefill"].stays == {HELD: ("3",), "request_status": ("1",), "transfer_infos": ("2",)}
    assert ranks["decode"].stays == {}
    assert [death.part for death in left.deaths] == ["prefill rank 1"]


def test_of_an_engine_that_says_less_no_more_is_known() -> None:
    """Engines of ours keep no such tables; a dead one says nothing."""
    ours = {"hits": 1, "ghosts": ["7"], "released_early": 0}
    counts = Left(1.0, ours, {"ended": {"wrong digest": 2}}).counts([], 0.0)
    assert (counts.hits, counts.ghosts, counts.wrong_digests, counts.starved, counts.leaks) == (1, 1, 2, None, None)
    dead = Left(None, None, None)
    assert (dead.counts([], 0.0).hits, list(dead.ranks), list(dead.deaths)) == (None, [], [])
