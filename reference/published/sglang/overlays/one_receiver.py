"""Decode has one receiver a room, and hears only of a request that prefill knows of.

In 0.5.23 a second receiver on a room id shares the entry of the first one. It begins with how that has ended: with
Success its queue raises, and decode's scheduler is gone. What prefill says about the first one is taken for a word
about the second.

* A second receiver fails at once. It writes nothing, tells prefill nothing, and clears nothing.
* An end that prefill tells is one of a receiver that has sent its metadata; before, it is another request's.
* Failed after Success is believed as long as the scheduler has not served the request: one of the two is a word about
  another request, and nobody can tell which.
"""

from __future__ import annotations

import threading
from typing import Any

from sglang.srt.disaggregation.base.conn import KVPoll


class Manager:
    """Decode's, with its receivers by room."""

    defer_decode_allocation: Any

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.rooms = threading.RLock()
        self.receivers: dict[int, Any] = {}
        self.refusing = threading.local()
        """Whether the calling thread makes a receiver that gets no room."""
        super().__init__(*arguments, **options)

    def update_status(self, bootstrap_room: int, status: int) -> None:
        if not vars(self.refusing).get("now"):
            parent: Any = super()
            parent.update_status(bootstrap_room, status)

    def apply_prefill_status(self, *, bootstrap_room: int, status: int, **said: Any) -> None:
        """What prefill tells of a room."""
        with self.rooms:
            receiver = self.receivers.get(bootstrap_room)
            if receiver is None or not (receiver.asked or self.defer_decode_allocation):
                return
            parent: Any = super()
            parent.apply_prefill_status(bootstrap_room=bootstrap_room, status=status, **said)
            if status == KVPoll.Failed:
                receiver.conclude_state = status


class Receiver:
    """A request that has its room, or has failed because another one has it."""

    kv_mgr: Any
    bootstrap_room: int
    conclude_state: int | None
    asked = False
    """Whether it has sent its metadata, or has begun to."""

    def __init__(self, mgr: Any, bootstrap_addr: str, bootstrap_room: int, *arguments: Any, **options: Any) -> None:
        with mgr.rooms:
            self.has_room = mgr.receivers.setdefault(bootstrap_room, self) is self
            mgr.refusing.now = not self.has_room
            try:
                parent: Any = super()
                parent.__init__(mgr, bootstrap_addr, bootstrap_room, *arguments, **options)
            finally:
                mgr.refusing.now = False
            if not self.has_room:
                self.conclude_state = KVPoll.Failed

    def send_metadata(self, *arguments: Any, **options: Any) -> None:
        self.asked = True
        parent: Any = super()
        parent.send_metadata(*arguments, **options)

    def abort(self) -> None:
        with self.kv_mgr.rooms:
            if self.has_room:
                parent: Any = super()
                parent.abort()

    def clear(self) -> None:
        with self.kv_mgr.rooms:
            if self.has_room:
                parent: Any = super()
                parent.clear()
                self.kv_mgr.receivers.pop(self.bootstrap_room, None)
                self.has_room = False

    def failure_exception(self) -> None:
        """Raises the reason. Where another request has the room, that one's stays."""
        records = self.kv_mgr.failure_records
        with self.kv_mgr.rooms:
            others = self.kv_mgr.receivers.get(self.bootstrap_room) not in (None, self)
            kept = records.pop(self.bootstrap_room, None) if others else None
            parent: Any = super()
            try:
                parent.failure_exception()
            finally:
                if kept is not None:
                    records[self.bootstrap_room] = kept
