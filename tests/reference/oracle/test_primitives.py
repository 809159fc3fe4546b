"""Each primitive keeps out whom it should keep out, wakes whom it should wake, and nothing waits for ever unseen.

Each is used by a right program, in which no order of its threads goes wrong, and by a wrong one, in which some does.
"""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import gc
import queue
import random
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from types import ModuleType
from typing import Any, Final

import pytest

from kvlatch.reference.oracle.interleave import Cast, Moved, pause
from kvlatch.reference.oracle.primitives import Primitive, installed

Act = Callable[[], object]
Program = Callable[[], Sequence[Act]]
"""Makes what threads share, and what each thread does."""

DEADLOCK: Final = "deadlock"
ORDERS: Final = 200
"""As many orders of a program's threads are tried at most."""
STEPS: Final = 400


def outcomes(program: Program) -> set[object]:
    """What the threads return in many orders, drawn at random; DEADLOCK where some wait and nobody can go on."""
    found: set[object] = set()
    todo: list[tuple[int, ...]] = [()]
    cast, chance = Cast(120.0), random.Random(0)  # noqa: S311  # orders, no secrets
    before, Primitive.touch = Primitive.touch, _everywhere
    gc.disable()  # what is collected may run code, at any point of a play
    try:
        for _ in range(ORDERS):
            if not todo:
                break
            with installed():
                order = todo.pop(chance.randrange(len(todo)))
                outcome, branches = one_order(cast, program, order)
                cast.reset()
            found.add(outcome)
            todo += [
                (*order, *[0] * (at - len(order)), choice)
                for at, width in enumerate(branches)
                if at >= len(order)
                for choice in range(1, width)
            ]
    finally:
        cast.close()
        Primitive.touch = before
        with warnings.catch_warnings(action="ignore"):  # plays that end early leave coroutines and loops behind
            gc.collect()
        gc.enable()
    return found


def _everywhere(*_: object) -> bool:
    """Threads are held before each use of a primitive."""
    return True


def one_order(cast: Cast, program: Program, order: Sequence[int]) -> tuple[object, list[int]]:
    """Play one order: at each step the choice that it says, or the first; what came of it, how wide each choice was.

    The threads of the program's own rest at its end; what it is asked for has ended then.
    """
    made = cast.go("maker", program, 10**9)
    if made.error is not None:
        raise made.error
    assert isinstance(made.value, Sequence)
    acts = dict(enumerate(made.value))
    ended: dict[int, Moved] = {}
    branches: list[int] = []
    for step in range(STEPS):
        able: list[Any] = [number for number in acts if f"thread-{number}" not in cast.tasks]
        able += [task.name for task, can in cast.halted() if can]
        if len(ended) == len(acts):
            return tuple(said(ended[number]) for number in acts), branches
        if not able:
            return DEADLOCK, branches
        chosen = able[min(order[step], len(able) - 1) if step < len(order) else 0]
        branches.append(len(able))
        name = f"thread-{chosen}" if isinstance(chosen, int) else chosen
        moved = cast.go(name, acts[chosen] if isinstance(chosen, int) else None)
        if moved.at is None and name.startswith("thread-"):
            ended[int(name.removeprefix("thread-"))] = moved
    return "no end", branches


def said(moved: Moved) -> object:
    return type(moved.error).__name__ if moved.error is not None else moved.value


# --- To keep others out ---------------------------------------------------------------------------------------------


class Box:
    """A number that is read, and then written."""

    def __init__(self) -> None:
        self.number = 0

    def add(self) -> int:
        pause("reads", "")
        number = self.number
        pause("writes", "")
        self.number = number + 1
        return number


class Token:
    """Whoever has it may go in; ``count`` of them is too many."""

    def __init__(self, tokens: Any, count: int = 1) -> None:
        self.tokens = tokens
        for number in range(count):
            tokens.put(number)

    def __enter__(self) -> None:
        self.token = self.tokens.get()

    def __exit__(self, *_: object) -> None:
        self.tokens.put(0)


class Twice:
    """Takes a lock that may be taken again."""

    def __init__(self, lock: Any) -> None:
        self.lock = lock

    def __enter__(self) -> None:
        self.lock.acquire()
        self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.lock.release()
        self.lock.release()


class Spinning:
    """Tries until it gets the lock."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __enter__(self) -> None:
        while not self.lock.acquire(blocking=False):
            time.sleep(1)

    def __exit__(self, *_: object) -> None:
        self.lock.release()


class Lazy:
    """Makes its lock when it is first needed; without ``once``, each time."""

    def __init__(self, *, once: bool) -> None:
        self.once = once
        self.guard = threading.Lock()
        self.locks: dict[str, Any] = {}

    def __enter__(self) -> None:
        with self.guard:
            if not self.once or "lock" not in self.locks:
                self.locks["lock"] = threading.Lock()
            lock = self.locks["lock"]
        self.mine = threading.local()
        self.mine.lock = lock
        lock.acquire()

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(RuntimeError):
            self.locks["lock"].release()


def made(module: ModuleType, name: str) -> Any:
    """What a module's function makes now: while a program is played that is another one than where this is read."""
    return getattr(module, name)()


Guard = Callable[[], AbstractContextManager[Any]]

KEEP_OUT: Final[dict[str, Guard]] = {
    "Lock": partial(made, threading, "Lock"),
    "allocate_lock": partial(made, _thread, "allocate_lock"),
    "RLock": partial(made, threading, "RLock"),
    "RLock twice": lambda: Twice(threading.RLock()),
    "Condition": threading.Condition,
    "Condition twice": lambda: Twice(threading.Condition()),
    "Condition of a Lock": lambda: threading.Condition(threading.Lock()),
    "Semaphore": lambda: threading.Semaphore(1),
    "BoundedSemaphore": lambda: threading.BoundedSemaphore(1),
    "Queue": lambda: Token(queue.Queue()),
    "full Queue": lambda: Token(queue.Queue(1)),
    "LifoQueue": lambda: Token(queue.LifoQueue()),
    "PriorityQueue": lambda: Token(queue.PriorityQueue()),
    "SimpleQueue": lambda: Token(queue.SimpleQueue()),
    "tries": Spinning,
    "lazy": lambda: Lazy(once=True),
}
LET_IN: Final[dict[str, Guard]] = {
    "nothing": contextlib.nullcontext,
    "Semaphore of two": lambda: threading.Semaphore(2),
    "BoundedSemaphore of two": lambda: threading.BoundedSemaphore(2),
    "Queue of two": lambda: Token(queue.Queue(), 2),
    "LifoQueue of two": lambda: Token(queue.LifoQueue(), 2),
    "PriorityQueue of two": lambda: Token(queue.PriorityQueue(), 2),
    "SimpleQueue of two": lambda: Token(queue.SimpleQueue(), 2),
}


def two_add(guard: Guard) -> Sequence[Act]:
    """Two threads add to a number."""
    box, inside = Box(), guard()

    def add() -> int:
        with inside:
            return box.add()

    return [add, add]


@pytest.mark.parametrize("name", KEEP_OUT)
def test_a_guard_keeps_others_out(name: str) -> None:
    """In no order do two threads read the same number, and in none does anybody wait for ever."""
    assert outcomes(partial(two_add, KEEP_OUT[name])) == {(0, 1), (1, 0)}


@pytest.mark.parametrize("name", LET_IN)
def test_a_guard_that_lets_two_in(name: str) -> None:
    """In some order they do."""
    assert (0, 0) in outcomes(partial(two_add, LET_IN[name]))


def in_a_pool(workers: int) -> Sequence[Act]:
    """A pool does the adding."""
    box, pool = Box(), ThreadPoolExecutor(workers)
    return [lambda: pool.submit(box.add).result()] * 2


def in_a_loop(*, waits: bool) -> Sequence[Act]:
    """An event loop in a thread of its own does the adding, with or without a wait in the middle."""
    box, loop = Box(), asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()

    async def add() -> int:
        number = box.number
        if waits:
            await asyncio.sleep(0)
        box.number = number + 1
        return number

    return [lambda: asyncio.run_coroutine_threadsafe(add(), loop).result()] * 2


def test_pools_and_loops() -> None:
    """One worker, or a step of a loop, is as good as a lock; two workers, or an await, are not."""
    assert outcomes(partial(in_a_pool, 1)) == {(0, 1), (1, 0)}
    assert (0, 0) in outcomes(partial(in_a_pool, 2))
    assert outcomes(partial(in_a_loop, waits=False)) == {(0, 1), (1, 0)}
    assert (0, 0) in outcomes(partial(in_a_loop, waits=True))


# --- To wait for others ---------------------------------------------------------------------------------------------


def event(*, sets: bool) -> Sequence[Act]:
    flag = threading.Event()
    return [flag.wait, flag.set if sets else flag.is_set]


def condition(*, asks: bool) -> Sequence[Act]:
    """Who does not ask before waiting may have missed the word."""
    there, said = threading.Condition(), [False]

    def wait() -> bool:
        with there:
            return there.wait_for(lambda: said[0]) if asks else there.wait()

    def say() -> None:
        with there:
            said[0] = True
            there.notify_all()

    return [wait, say]


def barrier(parties: int) -> Sequence[Act]:
    meets = threading.Barrier(parties)
    return [lambda: meets.wait() >= 0] * 2


def future(*, answers: bool) -> Sequence[Act]:
    answer: Future[int] = Future()
    return [answer.result, (lambda: answer.set_result(7)) if answers else answer.done]


def semaphore(*, gives: bool) -> Sequence[Act]:
    permits = threading.Semaphore(0)
    return [permits.acquire, permits.release if gives else lambda: None]


def queue_of(kind: Any, *, puts: bool) -> Sequence[Act]:
    items = kind()
    return [items.get, lambda: items.put(1) if puts else items.qsize()]


def full_queue(*, takes: bool) -> Sequence[Act]:
    items: queue.Queue[int] = queue.Queue(1)
    items.put(0)
    return [lambda: items.put(1), items.get if takes else items.full]


def joined_queue(*, done: bool) -> Sequence[Act]:
    items: queue.Queue[int] = queue.Queue()
    items.put(0)

    def work() -> None:
        items.get()
        if done:
            items.task_done()

    return [items.join, work]


def joined_thread(*, ends: bool) -> Sequence[Act]:
    go_on = threading.Event()
    other = threading.Thread(target=go_on.wait, daemon=True)
    other.start()
    return [other.join, go_on.set if ends else other.is_alive]


def timer(*, fires: bool) -> Sequence[Act]:
    """Time passes when nobody can do anything else."""
    flag = threading.Event()
    alarm = threading.Timer(30.0, flag.set)
    alarm.start()
    return [flag.wait, (lambda: None) if fires else alarm.cancel]


def two_locks(*, same_order: bool) -> Sequence[Act]:
    one, other = threading.Lock(), threading.Lock()

    def take(first: Any, second: Any) -> None:
        with first, second:
            pass

    return [partial(take, one, other), partial(take, one, other) if same_order else partial(take, other, one)]


def lock_again(*, reentrant: bool) -> Sequence[Act]:
    lock = threading.RLock() if reentrant else threading.Lock()

    def take() -> None:
        with lock, lock:
            pass

    return [take]


def pool_in_a_pool(workers: int) -> Sequence[Act]:
    """A task that waits for a task in the same pool."""
    pool = ThreadPoolExecutor(workers)
    return [lambda: pool.submit(lambda: pool.submit(int).result()).result()]


def loop_waits_for_itself(*, waits: bool) -> Sequence[Act]:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()

    async def inner() -> int:
        return 1

    async def outer() -> int:
        asked = asyncio.run_coroutine_threadsafe(inner(), loop)
        return asked.result() if waits else await asyncio.wrap_future(asked)

    return [lambda: asyncio.run_coroutine_threadsafe(outer(), loop).result()]


WAITS: Final[dict[str, tuple[Program, Program]]] = {
    "Event": (partial(event, sets=True), partial(event, sets=False)),
    "Condition": (partial(condition, asks=True), partial(condition, asks=False)),
    "Barrier": (partial(barrier, 2), partial(barrier, 3)),
    "Future": (partial(future, answers=True), partial(future, answers=False)),
    "Semaphore": (partial(semaphore, gives=True), partial(semaphore, gives=False)),
    **{
        kind.__name__: (partial(queue_of, kind, puts=True), partial(queue_of, kind, puts=False))
        for kind in (queue.Queue, queue.LifoQueue, queue.PriorityQueue)
    },
    "SimpleQueue": (
        partial(queue_of, partial(made, queue, "SimpleQueue"), puts=True),
        partial(queue_of, partial(made, queue, "SimpleQueue"), puts=False),
    ),
    "full Queue": (partial(full_queue, takes=True), partial(full_queue, takes=False)),
    "Queue.join": (partial(joined_queue, done=True), partial(joined_queue, done=False)),
    "Thread.join": (partial(joined_thread, ends=True), partial(joined_thread, ends=False)),
    "Timer": (partial(timer, fires=True), partial(timer, fires=False)),
    "two locks": (partial(two_locks, same_order=True), partial(two_locks, same_order=False)),
    "a lock again": (partial(lock_again, reentrant=True), partial(lock_again, reentrant=False)),
    "a pool in a pool": (partial(pool_in_a_pool, 2), partial(pool_in_a_pool, 1)),
    "a loop that waits for itself": (
        partial(loop_waits_for_itself, waits=False),
        partial(loop_waits_for_itself, waits=True),
    ),
}


@pytest.mark.parametrize("name", WAITS)
def test_who_waits(name: str) -> None:
    """The right one comes to its end in every order; the wrong one waits for ever in some, and that is known."""
    right, wrong = WAITS[name]
    found = outcomes(right)
    assert DEADLOCK not in found
    assert "no end" not in found
    assert DEADLOCK in outcomes(wrong)


# --- Misuse, limits, time -------------------------------------------------------------------------------------------


def alone(act: Act) -> object:
    """What one thread comes to."""
    (found,) = outcomes(lambda: [act])
    return found


@pytest.mark.parametrize(
    ("act", "raised"),
    [
        (lambda: threading.Lock().release(), "RuntimeError"),
        (lambda: threading.RLock().release(), "RuntimeError"),
        (lambda: threading.BoundedSemaphore(1).release(), "ValueError"),
        (lambda: threading.Condition().notify(), "RuntimeError"),
        (lambda: queue.SimpleQueue().get(block=False), "Empty"),
        (lambda: queue.Queue().get_nowait(), "Empty"),
    ],
)
def test_misuse_raises_as_ever(act: Act, raised: str) -> None:
    """What the library refuses is refused here."""
    assert alone(act) == (raised,)


def test_a_lock_of_another_thread_is_not_given_back() -> None:
    """An RLock belongs to a thread; a Lock does not."""

    def program(name: str) -> Sequence[Act]:
        lock = made(threading, name)
        lock.acquire()
        return [lock.release]

    assert outcomes(partial(program, "RLock")) == {("RuntimeError",)}
    assert outcomes(partial(program, "Lock")) == {(None,)}


def _waits_for_a_lock() -> bool:
    lock = threading.Lock()
    lock.acquire()
    return lock.acquire(timeout=5)


def _waits_for_a_word() -> bool:
    there = threading.Condition()
    with there:
        return there.wait(5)


@pytest.mark.parametrize(
    "act",
    [
        lambda: threading.Event().wait(5),
        _waits_for_a_lock,
        lambda: threading.Semaphore(0).acquire(timeout=5),
        _waits_for_a_word,
    ],
)
def test_a_limit_comes_to_its_end(act: Act) -> None:
    """Five seconds go by at once where nobody else can do anything."""

    def timed() -> object:
        begin = time.monotonic()
        return act(), time.monotonic() - begin

    assert alone(timed) == ((False, 5.0),)


def test_clocks_go_together() -> None:
    """What has slept sees it on every clock."""

    def act() -> object:
        clocks: list[Callable[[], float]] = [time.time, time.monotonic, time.perf_counter]
        before = [clock() for clock in clocks] + [time.time_ns() / 1e9]
        time.sleep(2.5)
        after = [clock() for clock in clocks] + [time.time_ns() / 1e9]
        return tuple(round(now - then, 6) for now, then in zip(after, before, strict=True))

    assert alone(act) == ((2.5,) * 4,)


@pytest.fixture
def real() -> Iterator[None]:
    """What is virtual is in place, and this thread is of no cast."""
    with installed():
        yield


@pytest.mark.usefixtures("real")
def test_other_threads_get_the_real_things() -> None:
    """The machine's own threads notice nothing."""
    results: queue.SimpleQueue[int] = queue.SimpleQueue()
    flag, lock = threading.Event(), threading.RLock()
    assert type(lock).__module__ == "_thread"

    def work() -> None:
        with lock:
            flag.wait(60)
            results.put(1)

    thread = threading.Thread(target=work)
    thread.start()
    flag.set()
    thread.join(60)
    assert not thread.is_alive()
    assert results.get(timeout=60) == 1
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(time.sleep, 0).result(60) is None
    assert asyncio.run(asyncio.sleep(0, 5)) == 5
