"""Which request a chunk belongs to, where a room id is used again: by a client that has hung up, say.

Upstream's chunks carry a room id, and nothing that tells two requests on it apart. So the senders are counted here, by
room, and a chunk is marked with the sender that has queued it.
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

from kvlatch.reference.live.upstream.backend import Backend
from kvlatch.spec.status import KVPoll


class Lives:
    """How many requests each room id has had, and how often a chunk of an earlier one was transferred."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._mine = threading.local()
        self._newest: Counter[int] = Counter()
        self.reused = 0
        """Requests that got an id which an earlier one has had."""
        self.old_chunks = 0
        """Transfers of chunks whose request is not the newest of its room."""

    def begin(self, room: int) -> int:
        """A sender is made: the number of its request among those of the room."""
        with self._lock:
            self._newest[room] += 1
            self.reused += self._newest[room] > 1
            return self._newest[room]

    def transferred(self) -> None:
        """The calling worker starts the transfer of the chunk that it has taken last."""
        chunk = getattr(self._mine, "chunk", None)
        life = getattr(chunk, "life", None)
        if chunk is None or life is None:
            return
        with self._lock:
            self.old_chunks += life != self._newest[int(chunk.room)]

    # --- Where it is heard of ------------------------------------------------------------------------------------

    def follow_senders(self, backend: Backend) -> None:
        """Every sender that is made from now on is counted; before the scheduler is made."""
        lives = self
        under: Any = backend.get("KVSender")

        class Sender(under):  # type: ignore[misc]  # the class is upstream's
            def __init__(self, mgr: Any, bootstrap_addr: str, bootstrap_room: int, *rest: Any, **more: Any) -> None:
                super().__init__(mgr, bootstrap_addr, bootstrap_room, *rest, **more)
                refused = getattr(self, "conclude_state", None) == KVPoll.Failed  # another one has the room
                self.life = None if refused else lives.begin(bootstrap_room)

            def send(self, *arguments: Any, **options: Any) -> None:
                lives._mine.sends = self.life
                try:
                    super().send(*arguments, **options)
                finally:
                    lives._mine.sends = None

        backend.put("KVSender", Sender)

    def follow_chunks(self, queue: type, manager: Any) -> None:
        """Chunks are marked when they are put into a queue of this class, and looked at when they are transferred."""
        put, get = queue.put, queue.get  # type: ignore[attr-defined]  # the class is upstream's
        lives = self

        def put_marked(queue: Any, chunk: Any) -> None:
            chunk.life = getattr(lives._mine, "sends", None)
            put(queue, chunk)

        def get_known(queue: Any, *arguments: Any, **options: Any) -> Any:
            lives._mine.chunk = chunk = get(queue, *arguments, **options)
            return chunk

        queue.put, queue.get = put_marked, get_known  # type: ignore[attr-defined]
        if hasattr(manager, "agent"):
            manager.agent = _Agent(manager.agent, self)


class _Agent:
    """An agent that says when a transfer starts."""

    def __init__(self, agent: Any, lives: Lives) -> None:
        self._agent, self._lives = agent, lives

    def __getattr__(self, name: str) -> Any:
        return getattr(self._agent, name)

    def transfer(self, *arguments: Any, **options: Any) -> Any:
        """Start a transfer."""
        self._lives.transferred()
        return self._agent.transfer(*arguments, **options)
