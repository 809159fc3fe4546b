"""Sixteen shards by hash, each with a lock, a dict and a counter of its own."""

import threading
from dataclasses import dataclass, field

from rules import Handlers, Request, step

from kvlatch.spec.status import KVPoll


@dataclass
class Shard:
    lock: object = field(default_factory=threading.RLock)
    requests: dict = field(default_factory=dict)
    newest: dict = field(default_factory=dict)
    served: int = 0


class Adapter(Handlers):
    def __init__(self, probe):
        super().__init__(probe)
        self.shards = [Shard() for _ in range(16)]

    def shard(self, room):
        return self.shards[hash(room) & 15]

    def do(self, room, request, event, *details):
        shard = self.shard(room)
        with shard.lock:
            shard.served += 1
            now, answer, todo = step(shard.requests.get((room, request), Request()), event, *details)
            shard.requests[room, request] = now
            shard.newest[room] = max(request, shard.newest.get(room, 0))
            self.effects(room, request, todo)
            return answer

    def status(self, room):
        shard = self.shard(room)
        now = shard.requests.get((room, shard.newest.get(room)))
        return None if now is None or now.status is None else KVPoll(now.status)
