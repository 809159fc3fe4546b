"""Collective calls of two ranks of an engine, over a socket."""

from __future__ import annotations

import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from kvlatch.reference.live.upstream import tensors
from kvlatch.reference.live.upstream.ranks import Diverged, Group


def on_both(first: Callable[[Group], Any], second: Callable[[Group], Any]) -> tuple[Any, Any]:
    """What two ranks do at the same time: what each returns, or raises."""
    ends = socket.socketpair()
    groups = [Group(rank, 2, [end]) for rank, end in enumerate(ends)]
    with ends[0], ends[1], ThreadPoolExecutor(2) as pool:
        done = [pool.submit(do, group) for do, group in zip((first, second), groups, strict=True)]
        errors = [one.exception() for one in done]
        zero, one = (error or done[rank].result() for rank, error in enumerate(errors))
    return zero, one


@pytest.mark.parametrize(("op", "expected"), [("min", [0, 2, 3]), ("max", [3, 2, 4]), ("sum", [3, 4, 7])])
def test_every_rank_gets_the_reduced_values(op: str, expected: list[int]) -> None:
    """As `all_reduce` of torch gives them, in place: one Failed (0) makes both ranks fail."""

    def reduced(values: list[int]) -> Callable[[Group], list[int]]:
        def go(group: Group) -> list[int]:
            values_here = tensors.tensor(values, np.int32)
            tensors.all_reduce(values_here, op, group)
            return [int(value) for value in values_here]

        return go

    assert on_both(reduced([3, 2, 4]), reduced([0, 2, 3])) == (expected, expected)


def test_what_came_in_is_the_same_on_every_rank_in_every_turn() -> None:
    """A turn without requests too, room ids of 64 bits too; what the second rank says is not looked at."""
    turns = [[], [["request", "a", "a prompt", 2**64 - 1]], [["abort", "a"]]]

    def go(group: Group) -> Any:
        return [group.hand_on(turn if group.rank == 0 else ["nothing"]) for turn in turns]

    assert on_both(go, go) == (turns, turns)


def test_ranks_that_do_different_things_are_told_apart() -> None:
    """Queues of different lengths: no rank gets values, and both say which two they were."""
    zero, one = on_both(
        lambda group: group.reduce(np.zeros(2, np.uint8), "min"),
        lambda group: group.reduce(np.zeros(3, np.uint8), "min"),
    )
    assert isinstance(zero, Diverged)
    assert isinstance(one, Diverged)
    assert str(zero) == str(one) == "rank 0 reduces min uint8 (2,), rank 1 min uint8 (3,)"


def test_the_only_rank_reduces_nothing() -> None:
    """A group of None has one rank."""
    values = tensors.tensor([3, 0])
    tensors.all_reduce(values, "min", None)
    assert list(values) == [3, 0]
    assert tensors.get_world_size(None) == 1
