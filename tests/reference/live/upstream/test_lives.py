"""Chunks of an earlier request on a room id that is used again."""

from __future__ import annotations

import sys
from collections import deque
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from kvlatch.reference.live.upstream.backend import Backend
from kvlatch.reference.live.upstream.lives import Lives

CONN = "sglang.srt.disaggregation.nixl.conn"


class Queue:
    """A queue as upstream's."""

    def __init__(self) -> None:
        self.chunks: deque[Any] = deque()

    def put(self, chunk: Any) -> None:
        self.chunks.append(chunk)

    def get(self) -> Any:
        return self.chunks.popleft()


class Agent:
    """An agent that transfers nothing."""

    name = "agent"

    def transfer(self, handle: str) -> str:
        return f"{handle} is on its way"


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Senders of a manager with one queue, in place of upstream's."""

    class NixlKVSender:
        def __init__(self, mgr: Any, bootstrap_addr: str, bootstrap_room: int) -> None:
            self.manager, self.room = mgr, bootstrap_room
            self.conclude_state = 0 if bootstrap_room in mgr.refuses else None

        def send(self, page: int) -> None:
            self.manager.queue.put(SimpleNamespace(room=self.room, page=page))

    for name in ("sglang", "sglang.srt", "sglang.srt.disaggregation", CONN.removesuffix(".conn"), CONN):
        module: Any = ModuleType(name)
        module.NixlKVSender = NixlKVSender
        monkeypatch.setitem(sys.modules, name, module)
    lives = Lives()
    lives.follow_senders(Backend("nixl"))
    manager = SimpleNamespace(agent=Agent(), queue=Queue(), refuses=set())
    kind = type("Queue", (Queue,), {})
    manager.queue = kind()
    lives.follow_chunks(kind, manager)
    conn, package = sys.modules[CONN], sys.modules[CONN.removesuffix(".conn")]
    assert vars(conn)["NixlKVSender"] is vars(package)["NixlKVSender"]
    return SimpleNamespace(lives=lives, manager=manager, sender=vars(conn)["NixlKVSender"])


def work(engine: SimpleNamespace) -> None:
    """A worker takes a chunk, and transfers it."""
    engine.manager.queue.get()
    assert engine.manager.agent.transfer("a handle") == "a handle is on its way"


def test_a_chunk_that_is_transferred_in_the_life_of_the_next_request_is_old(engine: SimpleNamespace) -> None:
    """The one that was queued before; neither the new request's own, nor one of another room, nor one in its time."""
    first = engine.sender(engine.manager, "a", 7)
    first.send(1)
    work(engine)
    first.send(2)
    other = engine.sender(engine.manager, "a", bootstrap_room=8)
    other.send(3)
    again = engine.sender(engine.manager, "a", 7)
    again.send(4)
    assert (engine.lives.reused, engine.lives.old_chunks) == (1, 0)
    work(engine)
    assert engine.lives.old_chunks == 1
    work(engine)
    work(engine)
    assert engine.lives.old_chunks == 1


def test_a_request_that_is_refused_has_no_life(engine: SimpleNamespace) -> None:
    """A manager that lets nobody have a room that another one has is right: the first one's chunks are not old."""
    first = engine.sender(engine.manager, "a", 7)
    first.send(1)
    engine.manager.refuses.add(7)
    engine.sender(engine.manager, "a", 7)
    work(engine)
    assert (engine.lives.reused, engine.lives.old_chunks) == (0, 0)


def test_what_is_put_by_nobody_is_not_judged(engine: SimpleNamespace) -> None:
    """A chunk that no sender has queued has no life; the agent is upstream's for all else."""
    engine.manager.queue.put(SimpleNamespace(room=7))
    engine.sender(engine.manager, "a", 7)
    work(engine)
    assert engine.lives.old_chunks == 0
    assert engine.manager.agent.name == "agent"
