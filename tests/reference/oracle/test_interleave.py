"""Threads halt where they should, one runs at a time, and the order of the calls is the interleaving."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator

import pytest

from kvlatch.reference.oracle.interleave import Abandoned, Cast, Hung, current, pause, wait


@pytest.fixture
def cast() -> Iterator[Cast]:
    """Threads that are closed after the test."""
    made = Cast(patience=5)
    yield made
    made.close()


def increment(table: dict[str, int]) -> Callable[[], None]:
    """An update without a lock: a read, then a store."""

    def act() -> None:
        pause("reads n", "here:1")
        read = table["n"]
        pause("stores n", "here:2")
        table["n"] = read + 1

    return act


def test_held_before_each_place_but_the_first(cast: Cast) -> None:
    """What a thread is given begins with its first place; it is held at the second, and then comes to its end."""
    table = {"n": 1}
    moved = cast.go("a", increment(table))
    assert (moved.at, table["n"]) == ("stores n", 1)
    assert [(task.name, task.place, can) for task, can in cast.halted()] == [("a", "here:2", True)]
    moved = cast.go("a")
    assert (moved.at, moved.error, table["n"]) == (None, None, 2)


def test_every_interleaving_of_two_updates(cast: Cast) -> None:
    """Of the six orders of two reads and two stores, the two that do not overlap count both updates."""
    finals = {}
    for order in sorted(set(itertools.permutations("aabb"))):
        table = {"n": 0}
        begun: set[str] = set()
        for thread in order:
            cast.go(thread, None if thread in begun else increment(table))
            begun.add(thread)
        finals["".join(order)] = table["n"]
    assert finals == {"aabb": 2, "abab": 1, "abba": 1, "baab": 1, "baba": 1, "bbaa": 2}


def test_passes(cast: Cast) -> None:
    """A thread passes as many places as it is told."""
    done: list[int] = []

    def act() -> None:
        for number in range(5):
            pause(f"does {number}", "")
            done.append(number)

    assert cast.go("a", act, passes=2).at == "does 3"
    assert done == [0, 1, 2]


def test_value_and_error(cast: Cast) -> None:
    """What the act returns or raises is what its thread came to, even if it wants to exit."""
    assert cast.go("a", lambda: 7).value == 7
    error = KeyError("missing")

    def fail() -> None:
        raise error

    assert cast.go("a", fail).error is error
    assert isinstance(cast.go("a", lambda: exit(3)).error, SystemExit)  # as foreign code does it


def test_one_thread_makes_all_calls_of_one_name(cast: Cast) -> None:
    """Whatever is kept for each thread stays where it is from one call to the next."""
    first, second = (cast.go("a", threading.get_ident).value for _ in range(2))
    other = cast.go("b", threading.get_ident).value
    assert first == second != other
    assert threading.get_ident() not in (first, other)


def test_who_waits_is_known(cast: Cast) -> None:
    """A wait halts until its predicate holds: until then the thread cannot go on, and nobody has to try."""
    box: list[int] = []
    assert cast.go("a", lambda: wait(lambda: bool(box), "waits for the box", "here:3")).at == "waits for the box"
    assert [can for _, can in cast.halted()] == [False]
    with pytest.raises(ValueError, match="a waits"):
        cast.go("a")
    cast.go("b", lambda: box.append(1))
    assert [can for _, can in cast.halted()] == [True]
    assert cast.go("a").value is True


def test_time_passes_only_if_nobody_else_can_go_on(cast: Cast) -> None:
    """A wait with a limit is over when the clock says so, and the clock moves when a call waits for nothing else."""
    begun = cast.now
    cast.go("a", lambda: wait(lambda: False, "waits", "", 60.0))
    cast.go("b", increment({"n": 0}))
    assert {task.name: can for task, can in cast.halted()} == {"a": False, "b": True}
    cast.go("b")
    assert [can for _, can in cast.halted()] == [True]
    assert cast.go("a").value is False
    assert cast.now == begun + 60


def test_threads_that_foreign_code_starts(cast: Cast) -> None:
    """They are there at once, begin when told to, and their waits alone make no time pass."""
    log: list[str] = []

    def child() -> None:
        log.append("begun")
        wait(lambda: False, "sleeps", "", 1.0)

    def parent() -> None:
        task = current()
        assert task is not None
        task.cast.spawn(child, "here:4")

    assert cast.go("a", parent).at is None
    assert [(task.name, task.own, can) for task, can in cast.halted()] == [("thread 1", True, True)]
    assert log == []
    assert cast.go("thread 1").at == "sleeps"
    assert [can for _, can in cast.halted()] == [False]
    cast.now += 2
    assert [can for _, can in cast.halted()] == [True]


def test_hung(cast: Cast) -> None:
    """A thread that runs for ever is given up after the time limit, with its place, and its thread ends."""
    cast.patience = 0.2

    def runs() -> None:
        while True:
            pass

    with pytest.raises(Hung, match=r"a has not come to rest in 0\.2 s") as found:
        cast.go("a", runs)
    assert found.value.frame is not None
    assert found.value.frame.f_code.co_name == "runs"
    assert cast.go("a", lambda: 1).value == 1


def test_whose_turn(cast: Cast) -> None:
    """A thread at rest cannot go on, and a held one cannot be given anything."""
    with pytest.raises(ValueError, match="a is at rest"):
        cast.go("a")
    cast.go("a", increment({"n": 0}))
    with pytest.raises(ValueError, match="a is held"):
        cast.go("a", lambda: None)


def test_reset_gives_up(cast: Cast) -> None:
    """After a reset nobody is held, what was held has not gone on, and handlers on the way out have run."""
    log: list[str] = []

    def act() -> None:
        try:
            pause("first", "")
            pause("second", "")
            log.append("went on")
        except Exception:  # noqa: BLE001  # as foreign code does it
            log.append("caught")
        finally:
            pause("on its way out", "")
            log.append("cleaned up")

    assert cast.go("a", act).at == "second"
    cast.reset()
    assert log == ["cleaned up"]
    assert cast.go("a", lambda: 1).value == 1


def test_nobody_waits_after_the_end_of_a_play(cast: Cast) -> None:
    """A thread that catches everything and waits again is unwound all the same."""

    def act() -> None:
        while True:
            try:
                wait(lambda: False, "waits", "")
            except Abandoned:
                wait(lambda: False, "waits once more", "")

    cast.go("a", act)
    cast.reset()
    assert cast.go("a", lambda: 1).value == 1


def test_the_same_100_times(cast: Cast) -> None:
    """One order of moves gives one outcome, 100 of 100 times."""
    outcomes = set()
    for _ in range(100):
        table = {"n": 0}
        ends = (cast.go("a", increment(table)), cast.go("b", increment(table)), cast.go("b"), cast.go("a"))
        outcomes.add((tuple(one.at for one in ends), table["n"]))
    assert outcomes == {(("stores n", "stores n", None, None), 1)}
