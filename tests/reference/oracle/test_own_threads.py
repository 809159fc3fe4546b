"""Managers with threads of their own: what is still under way is held against nobody, and what never comes is."""

from __future__ import annotations

import inspect
import queue
import threading
from collections.abc import Callable

import pytest

from kvlatch.reference.oracle.checks import Probe
from kvlatch.reference.oracle.explore import replay
from kvlatch.reference.oracle.formulas import broken
from kvlatch.reference.oracle.inprocess import InProcess
from kvlatch.spec.status import KVPoll
from tests.reference.oracle.managers import KeepsPages, Right


class Posts(Right):
    """Its handlers post to a thread of its own; only poll and start wait for it."""

    def __init__(self, probe: Probe) -> None:
        super().__init__(probe)
        self.inbox: queue.SimpleQueue[tuple[Callable[[], object], queue.SimpleQueue[object]]] = queue.SimpleQueue()
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self) -> None:
        while True:
            act, reply = self.inbox.get()
            reply.put(act())

    def post(self, act: Callable[[], object]) -> queue.SimpleQueue[object]:
        reply: queue.SimpleQueue[object] = queue.SimpleQueue()
        self.inbox.put((act, reply))
        return reply

    def create(self, room: int, request: int) -> None:
        self.post(lambda: Right.create(self, room, request))

    def metadata(self, room: int, request: int) -> None:
        self.post(lambda: Right.metadata(self, room, request))

    def abort_notice(self, room: int, request: int) -> None:
        self.post(lambda: Right.abort_notice(self, room, request))

    def abort(self, room: int, request: int) -> None:
        self.post(lambda: Right.abort(self, room, request))

    def clear(self, room: int, request: int) -> None:
        self.post(lambda: Right.clear(self, room, request))

    def poll(self, room: int, request: int) -> KVPoll | None:
        return self.post(lambda: Right.poll(self, room, request)).get()  # type: ignore[return-value]  # as posted


class LatePages(Right):
    """Pages go back when anybody polls again."""

    def __init__(self, probe: Probe) -> None:
        super().__init__(probe)
        self.due: list[tuple[int, int]] = []

    def drained(self, room: int, request: int) -> None:
        if not self.reading[room, request]:
            self.due.append((room, request))

    def poll(self, room: int, request: int) -> KVPoll | None:
        for key in self.due:
            self.probe.release(*key)
        self.due.clear()
        return super().poll(room, request)


def end(make: type[Right], moves: str) -> list[str]:
    """The laws that the end of a play breaks, in which a thread is held where it takes a message, and nowhere else."""
    player = InProcess(make, held=False)
    player.hold([f"test_own_threads.py:{inspect.getsourcelines(Posts.serve)[1] + 2}"])
    try:
        return broken(replay(player, moves).world)
    finally:
        player.close()


THREE = "thread1+ thread1+ thread1+"
OTHER = "thread1+ scheduler+ thread1+"
LAST = "thread1+ poll@1 thread1+ scheduler+"


@pytest.mark.parametrize(
    "moves",
    [
        f"orderly-1-1-2-overlap create reuse create abort {THREE}",
        f"disorderly-1-1-2-overlap create reuse abort_notice#1 create {THREE} poll thread1+ scheduler+",
        "disorderly-1-1-1@0,7 metadata create thread1+ thread1+ poll thread1+ scheduler+",
        f"disorderly-1-1-1@0,7 create abort thread1+ thread1+ poll metadata@1 {OTHER} create@1 {LAST}",
    ],
)
def test_what_waits_in_a_queue_is_no_fault(moves: str) -> None:
    """A request that waits to be made has no entry yet: what the table says is of the one before it."""
    assert end(Posts, moves) == []


LIFE = "orderly-1-1-1 create metadata poll send start/0 abort poll clear finish/0 tick"


def test_a_round_of_the_scheduler_is_another_request() -> None:
    """Pages that go back with the next poll of anybody have gone back after a round; those that never do have not."""
    assert end(LatePages, LIFE) == []
    assert end(KeepsPages, LIFE) == ["settlement"]


def test_a_request_that_has_lost_its_room() -> None:
    """It polls Failed although its transfer ended well, and decode was told so: each of them is right."""
    moves = "create metadata poll send start/0 reuse finish/0 create poll#1"
    assert end(TakesOver, f"orderly-1-1-2-overlap {moves}") == []


class TakesOver(Right):
    """A newer request takes the room over, and the older one has failed as far as its sender is concerned."""

    def conclude(self, room: int, request: int, status: KVPoll) -> None:
        if request < self.owner.get(room, 0):
            self.probe.tell(room, request, status)
        super().conclude(room, request, status)

    def poll(self, room: int, request: int) -> KVPoll | None:
        return KVPoll.Failed if request < self.owner.get(room, 0) else super().poll(room, request)
