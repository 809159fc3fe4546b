"""Fix B of the incident: the worker's guard, on meeting a room without transfer infos, forces it to Failed.

The rule of the design `fix-b`. The guard looks before each chunk that the worker takes, and drops those of such a room.
"""

from __future__ import annotations

from typing import Any

from sglang.srt.disaggregation.base.conn import KVPoll

TERMINAL = (KVPoll.Failed, KVPoll.Success)


class Guarded:
    """A worker's queue that gives out no chunk of a room without transfer infos."""

    def __init__(self, queue: Any, manager: Any) -> None:
        self.queue = queue
        self.manager = manager

    def put(self, chunk: Any) -> None:
        self.queue.put(chunk)

    def get(self, *arguments: Any, **options: Any) -> Any:
        while True:
            chunk = self.queue.get(*arguments, **options)
            if chunk.room in self.manager.transfer_infos:
                return chunk
            if self.manager.request_status.get(chunk.room, KVPoll.Failed) not in TERMINAL:
                self.manager.record_failure(chunk.room, "its transfer infos are gone")
                self.manager.update_status(chunk.room, KVPoll.Failed)


class Manager:
    """The guard."""

    def transfer_worker(self, queue: Any, *arguments: Any, **options: Any) -> None:
        parent: Any = super()
        parent.transfer_worker(Guarded(queue, self), *arguments, **options)
