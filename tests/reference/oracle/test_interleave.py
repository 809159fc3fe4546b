"""Threads are held where they should be, one runs at a time, and the order of the calls is the interleaving."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator

import pytest

from kvlatch.reference.oracle.interleave import Cast, Lock, Stuck, Table, visible_locks


@pytest.fixture
def cast() -> Iterator[Cast]:
    """Threads that are closed after the test."""
    made = Cast(patience=5)
    yield made
    made.close()


def increment(table: Table) -> Callable[[], None]:
    """An update without a lock: a read, then a store."""

    def act() -> None:
        table["n"] = table["n"] + 1

    return act


def test_held_before_each_access(cast: Cast) -> None:
    """What a thread is given begins with its first access; it is held before the second, and then comes to its end."""
    table = Table()
    dict.__setitem__(table, "n", 1)
    moved = cast.go("a", increment(table))
    assert (moved.at, moved.trail, table.peek("n")) == ("stores n", (("read n", 1),), 1)
    moved = cast.go("a")
    assert (moved.at, moved.error, table.peek("n")) == (None, None, 2)


def test_every_interleaving_of_two_updates(cast: Cast) -> None:
    """Of the six orders of two reads and two stores, the two that do not overlap count both updates."""
    finals = {}
    for order in sorted(set(itertools.permutations("aabb"))):
        table = Table()
        dict.__setitem__(table, "n", 0)
        begun: set[str] = set()
        for thread in order:
            cast.go(thread, None if thread in begun else increment(table))
            begun.add(thread)
        finals["".join(order)] = table.peek("n")
    assert finals == {"aabb": 2, "abab": 1, "abba": 1, "baab": 1, "baba": 1, "bbaa": 2}


def test_the_same_100_times(cast: Cast) -> None:
    """One order of moves gives one outcome, 100 of 100 times."""
    outcomes = set()
    for _ in range(100):
        table = Table()
        dict.__setitem__(table, "n", 0)
        trails = (cast.go("a", increment(table)), cast.go("b", increment(table)), cast.go("b"), cast.go("a"))
        outcomes.add((trails, table.peek("n")))
    assert len(outcomes) == 1


def test_passes(cast: Cast) -> None:
    """A thread passes as many places as it is told."""
    table = Table()

    def act() -> None:
        for number in range(5):
            table[number] = number

    assert cast.go("a", act, passes=2).at == "stores 3"
    assert list(table) == [0, 1, 2]


def test_value_and_error(cast: Cast) -> None:
    """What the act returns or raises is what its thread came to."""
    assert cast.go("a", lambda: 7).value == 7
    error = cast.go("a", lambda: Table()["missing"]).error
    assert isinstance(error, KeyError)


@pytest.mark.parametrize("access", ["get", "in", "del", "pop", "setdefault"])
def test_every_kind_of_access(cast: Cast, access: str) -> None:
    """Each way to touch an entry is a place where a thread is held."""
    table = Table()
    dict.__setitem__(table, 1, 1)
    acts: dict[str, Callable[[], object]] = {
        "get": lambda: table.get(1),
        "in": lambda: 1 in table,
        "del": lambda: table.__delitem__(1),
        "pop": lambda: table.pop(1),
        "setdefault": lambda: table.setdefault(1, 2),
    }
    first = cast.go("a", lambda: (table.get(0), acts[access]()))
    assert first.at is not None
    assert first.at.endswith(" 1")
    assert cast.go("a").at is None
    assert table.keys_used == {0, 1}


def test_lock_keeps_others_out(cast: Cast) -> None:
    """Under one lock nobody is held inside, and whoever comes second waits for whoever came first."""
    with visible_locks():
        lock = threading.Lock()
    table, other = Table(), Table()

    def act() -> None:
        with lock:
            table[1] = 1
            other[1] = 1

    assert cast.go("a", act).at is None
    assert cast.guarded


def test_stores_under_different_locks_are_held(cast: Cast) -> None:
    """Once two stores have no lock in common, threads are held within locks too."""
    with visible_locks():
        locks = threading.Lock(), threading.RLock()
    table = Table()

    def act(number: int) -> None:
        with locks[number]:
            table[1] = number
            table[1] = number

    assert cast.go("a", lambda: act(0)).at is None
    assert cast.guarded
    assert cast.go("b", lambda: act(1)).at == "stores 1"
    assert not cast.guarded


def test_deadlock_is_seen(cast: Cast) -> None:
    """Two locks taken in opposite orders: both threads say that they wait, and nothing hangs."""
    one, two = Lock(number=1), Lock(number=2)

    def act(first: Lock, second: Lock) -> None:
        with first, second:
            pass

    assert cast.go("a", lambda: act(one, two)).at == "takes a lock"
    assert cast.go("b", lambda: act(two, one)).at == "takes a lock"
    assert cast.go("a").at == "waits for a lock that b holds"
    assert cast.go("b").blocked
    cast.reset()
    assert not one.locked()
    assert not two.locked()


def test_lock_is_a_lock() -> None:
    """Outside a cast, the locks are like those of ``threading``."""
    lock, again = Lock(), Lock(reentrant=True)
    assert lock.acquire()
    assert not lock.acquire(blocking=False)
    lock.release()
    with pytest.raises(RuntimeError, match="release unlocked lock"):
        lock.release()
    with again, again:
        assert again.locked()
    assert not again.locked()
    with lock, pytest.raises(Stuck, match="MainThread holds a lock"):
        lock.acquire()


def test_locks_are_put_back() -> None:
    """Locks can be seen within the block, and nowhere else."""
    real = threading.Lock
    with visible_locks():
        assert isinstance(threading.Lock(), Lock)
    assert threading.Lock is real


def test_stuck(cast: Cast) -> None:
    """A thread that waits for what nobody can see is reported after the time limit."""
    cast.patience = 0.2
    event = threading.Event()
    with pytest.raises(Stuck, match=r"a has not come to rest in 0\.2 s"):
        cast.go("a", event.wait)
    event.set()


def test_whose_turn(cast: Cast) -> None:
    """A thread at rest cannot go on, and a held one cannot be given anything."""
    with pytest.raises(ValueError, match="a is at rest"):
        cast.go("a")
    table = Table()
    cast.go("a", lambda: (table.get(1), table.get(2)))
    with pytest.raises(ValueError, match="a is held"):
        cast.go("a", lambda: None)


def test_reset_gives_up(cast: Cast) -> None:
    """After a reset nobody is held, what was held has not gone on, and handlers on the way out have run."""
    table, log = Table(), list[str]()

    def act() -> None:
        try:
            table[1] = 1
            table[2] = 2
            log.append("went on")
        finally:
            log.append("cleaned up")
            table.pop(1)

    assert cast.go("a", act).at == "stores 2"
    cast.reset()
    assert log == ["cleaned up"]
    assert cast.go("a", lambda: 1).value == 1


def test_watched_lines(cast: Cast) -> None:
    """Before each line of watched code a thread is held."""
    seen: list[int] = []

    def act() -> None:
        seen.append(1)
        seen.append(2)

    cast.watch(act.__code__)
    moved = cast.go("a", act)
    assert moved.at is not None
    assert moved.at.startswith("runs line")
    assert seen == [1]
    assert cast.go("a").at is None
    assert seen == [1, 2]
