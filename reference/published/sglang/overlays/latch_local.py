"""What can be mended in 0.5.23 without changing the wire format: an implementation of the design `latch-local`.

* One lock. The first terminal status wins under it; create, clear and conclude are steps under it.
* A room is opened by its sender and by nobody else: metadata that comes before is kept, and makes no entry. A second
  sender on a room that is open fails at once, and clears nothing. What is left of a request that has failed is dropped.
* A chunk belongs to the sender that sent it, which sends none when it does not have the room. It is counted until the
  worker comes back for more, and dropped if its sender has the room no more, or the room has failed.
* An end is reported when no chunk is counted any more: neither to the scheduler, which would release pages under a
  transfer, nor to decode.
* A chunk whose transfer infos are gone fails the request, in `send` and in the worker.
* Decode is told once how a request ended, also when the client has aborted it.
* A request that is aborted while it waits for a batch, or between two of its chunks, is cleared, as any other one that
  has failed; decode is told when the last chunk in flight has been given back.
* Metadata that nobody will serve is answered with Failed: it has come after the end of its request, or of another one.
* Metadata whose request decode has given up before its sender was made is dropped, and the sender fails at once.

What is left: metadata of one request that arrives late is adopted by the next one on that room id. No local change can
tell the two apart: that takes a field on the wire. Decode's half is the overlay `one-receiver`.
"""

from __future__ import annotations

import threading
from collections import UserDict
from typing import Any

from sglang.srt.disaggregation.base.conn import KVPoll

TERMINAL = (KVPoll.Failed, KVPoll.Success)
REMEMBERED = 4096


class Infos(UserDict[int, Any]):
    """A view of the transfer infos for one thread: what it has looked up of a room stays there while it goes on.

    Upstream's threads look a room up again and again, and a clear may come between.
    """

    def __init__(self, infos: Any, seen: dict[int, Any]) -> None:
        self.data = infos
        self.seen = seen

    def __contains__(self, room: Any) -> bool:
        self.seen.clear()
        found = self.data.get(room)
        if found is not None:
            self.seen[room] = found
        return found is not None

    def __getitem__(self, room: int) -> Any:
        found = self.data.get(room)
        if found is not None:
            self.seen[room] = found
        return self.seen[room]

    def __setitem__(self, room: int, peers: Any) -> None:
        self.seen[room] = self.data[room] = peers

    def get(self, room: int, default: Any = None) -> Any:
        return self.data.get(room, default)

    def setdefault(self, room: int, default: Any = None) -> Any:
        """Stores what is missing, though the thread may have looked up what the request before it had."""
        self.seen[room] = found = self.data.setdefault(room, default)
        return found

    def pop(self, room: int, default: Any = None) -> Any:
        return self.data.pop(room, default)


class Owned:
    """A worker's queue whose chunks are counted for the sender that has the room, and given out only while it has."""

    def __init__(self, queue: Any, manager: Any) -> None:
        self.queue = queue
        self.manager = manager
        self.in_hand: Any = None

    def put(self, chunk: Any) -> None:
        with self.manager.latch:
            chunk.sender = self.manager.senders.get(chunk.room)
            if chunk.sender is not None:
                chunk.sender.counted += 1
            self.queue.put(chunk)

    def get(self, *arguments: Any, **options: Any) -> Any:
        while True:
            self.give_back()
            chunk = self.queue.get(*arguments, **options)
            self.in_hand = self.manager.of_thread.chunk = chunk
            with self.manager.latch:
                if self.manager.may_be_sent(chunk):
                    return chunk

    def give_back(self) -> None:
        """The chunk that was given out last has been dealt with."""
        chunk, self.in_hand = self.in_hand, None
        self.manager.of_thread.chunk = None
        if chunk is not None and chunk.sender is not None:
            with self.manager.latch:
                chunk.sender.counted -= 1
                self.manager.tell_end(chunk.sender)


class Manager:
    """The latch, and who has which room."""

    request_status: Any
    failure_records: Any
    _room_notify_targets: Any
    send_kv_status_message: Any

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.latch = threading.RLock()
        self.senders: dict[int, Any] = {}
        self.unheard: dict[int, None] = {}
        """Rooms whose request has failed before decode's metadata came: it is told when that comes. The newest ones."""
        self.given_up: set[int] = set()
        """Rooms whose next request has been given up by decode, after its metadata had come and before its sender."""
        self.of_thread = threading.local()
        super().__init__(*arguments, **options)

    @property
    def transfer_infos(self) -> Any:
        mine = vars(self.of_thread)
        return Infos(vars(self)["transfer_infos"], mine.setdefault("seen", {}))

    @transfer_infos.setter
    def transfer_infos(self, infos: Any) -> None:
        vars(self)["transfer_infos"] = infos

    @property
    def transfer_queues(self) -> list[Owned]:
        return [Owned(queue, self) for queue in vars(self)["transfer_queues"]]

    @transfer_queues.setter
    def transfer_queues(self, queues: list[Any]) -> None:
        vars(self)["transfer_queues"] = queues

    @property
    def _transfer_queues(self) -> list[Owned]:
        return [Owned(queue, self) for queue in vars(self)["_transfer_queues"]]

    @_transfer_queues.setter
    def _transfer_queues(self, queues: list[Any]) -> None:
        vars(self)["_transfer_queues"] = queues

    def check_status(self, bootstrap_room: int) -> int:
        status: int = self.request_status.get(bootstrap_room, KVPoll.Failed)
        return status

    def update_status(self, bootstrap_room: int, status: int) -> None:
        with self.latch:
            if not self.decodes and status == KVPoll.WaitingForInput:
                self.refuse(bootstrap_room)
            opened = self.decodes or bootstrap_room in self.senders
            if not opened or self.works_for_another(bootstrap_room):
                return
            if status == KVPoll.WaitingForInput and not self.may_wait_for_input(bootstrap_room):
                return
            if self.request_status.get(bootstrap_room) in TERMINAL:
                return
            parent: Any = super()
            parent.update_status(bootstrap_room, status)

    def may_wait_for_input(self, room: int) -> bool:
        """Whether decode's metadata is still there: a sender that took over the room may just have dropped it."""
        return self.decodes or vars(self)["is_dummy_cp_rank"] or bool(self.transfer_infos.get(room))

    @property
    def decodes(self) -> bool:
        """Whether this is decode's manager, whose rooms have receivers."""
        return bool(vars(self)["disaggregation_mode"].value == "decode")

    def will_hear(self, room: int) -> None:
        """The request has failed; its metadata may still come."""
        self.unheard[room] = None
        if len(self.unheard) > REMEMBERED:
            self.unheard.pop(next(iter(self.unheard)))

    def refuse(self, room: int) -> None:
        """All metadata of a request is there: if nobody will serve it, decode is told so at once, and it is dropped."""
        sender = self.senders.get(room)
        if sender is not None and self.request_status.get(room) not in TERMINAL:
            sender.served = True
            return
        if sender is None and room not in self.unheard:
            return  # its sender is yet to be made
        self.unheard.pop(room, None)
        if sender is not None and not sender.served:
            sender.told = True
        reason = "the request that has this room id has ended"
        targets = self._room_notify_targets(room)
        self.transfer_infos.pop(room, None)
        self.send_kv_status_message(targets=targets, bootstrap_room=room, status=KVPoll.Failed, failure_reason=reason)

    def _handle_abort_notification(self, msg: Any) -> bool:
        """Decode has given a request up: the one that has the room, or else the one whose metadata has come early."""
        with self.latch:
            parent: Any = super()
            handled: bool = parent._handle_abort_notification(msg)
            room = int(msg[1]) if handled else None
            if room is not None and room in self.senders:
                self.senders[room].served = True  # or never will be: decode sends no metadata any more
            elif room is not None:
                self.unheard.pop(room, None)
                if self.transfer_infos.pop(room, None) is not None:
                    self.given_up.add(room)
            return handled

    def conclude_transfer(self, *, bootstrap_room: int, status: int, **options: Any) -> int | None:
        """The end is what stands; decode hears of it when the last chunk has been given back."""
        with self.latch:
            if bootstrap_room not in self.senders or self.works_for_another(bootstrap_room):
                return None
            sender = self.senders[bootstrap_room]
            if status == KVPoll.Failed:
                self.record_failure(bootstrap_room, options.get("failure_reason") or "KV transfer failed")
            self.update_status(bootstrap_room, status)
            sender.targets = sender.targets or options.get("targets") or self._room_notify_targets(bootstrap_room)
            stands: int = self.request_status.get(bootstrap_room)
            return stands

    def works_for_another(self, room: int) -> bool:
        """Whether this thread works on a chunk of a request that has the room no more."""
        chunk = vars(self.of_thread).get("chunk")
        return chunk is not None and chunk.room == room and chunk.sender is not self.senders.get(room)

    def may_be_sent(self, chunk: Any) -> bool:
        """Whether a chunk's sender has the room, and the room is alive; without transfer infos it fails."""
        if self.senders.get(chunk.room) is not chunk.sender or self.check_status(chunk.room) in TERMINAL:
            return False
        if not self.transfer_infos.get(chunk.room):
            self.fail(chunk.room, "its transfer infos are gone")
            return False
        return True

    def record_failure(self, bootstrap_room: int, failure_reason: str) -> None:
        """The reason of a failure; nobody would fetch that of a room that nobody has, or that has ended already."""
        with self.latch:
            opened = self.decodes or bootstrap_room in self.senders
            ended = self.request_status.get(bootstrap_room) in TERMINAL
            if opened and not ended and not self.works_for_another(bootstrap_room):
                self.failure_records[bootstrap_room] = failure_reason

    def forget(self, sender: Any) -> None:
        """Nobody will ask why this sender's request has failed."""
        with self.latch:
            if self.senders.get(sender.bootstrap_room) in (None, sender):
                self.failure_records.pop(sender.bootstrap_room, None)

    def fail(self, room: int, reason: str) -> None:
        """The room's request has failed."""
        self.record_failure(room, reason)
        self.update_status(room, KVPoll.Failed)

    def ending(self, room: int) -> tuple[Any, str | None]:
        """The status of a room, and why its request has failed."""
        return self.request_status.get(room), self.failure_records.get(room)

    def tell_end(self, sender: Any) -> None:
        """Tells decode how a request ended, once, and when nothing of it is in flight any more."""
        room = sender.bootstrap_room
        status, reason = sender.cleared or self.ending(room)
        owner = None if sender.cleared else sender
        over = status in TERMINAL and self.senders.get(room) in (sender, owner)
        if not over or sender.counted or sender.told:
            return
        targets = sender.targets or self._room_notify_targets(room)
        sender.told = bool(targets)
        self.send_kv_status_message(targets=targets, bootstrap_room=room, status=status, failure_reason=reason)


class Sender:
    """A request that has its room, or has failed because another one has it."""

    kv_mgr: Any
    bootstrap_room: int
    conclude_state: int | None
    dropped: int | None = None
    """How it had ended when another request got its room."""
    counted = 0
    cleared: tuple[int, str | None] | None = None
    """How it had ended, and why, when it was cleared with chunks in flight."""
    told = False
    served = False
    """Whether the metadata of its request has come."""
    targets: Any = None

    def __init__(self, mgr: Any, bootstrap_addr: str, bootstrap_room: int, *arguments: Any, **options: Any) -> None:
        parent: Any = super()
        with mgr.latch:
            given_up = bootstrap_room in mgr.given_up
            mgr.given_up.discard(bootstrap_room)
            if not given_up and mgr.check_status(bootstrap_room) in TERMINAL:
                self._drop(mgr, bootstrap_room)
            self.has_room = not given_up and mgr.senders.setdefault(bootstrap_room, self) is self
            parent.__init__(mgr, bootstrap_addr, bootstrap_room, *arguments, **options)
            if not self.has_room:
                self.conclude_state = KVPoll.Failed
                if given_up or mgr.senders[bootstrap_room].served:
                    mgr.will_hear(bootstrap_room)
            elif self._bootstrapped():
                mgr.update_status(bootstrap_room, KVPoll.WaitingForInput)

    def _drop(self, mgr: Any, room: int) -> None:
        """Drops what is left of a request that has ended, or of nobody."""
        ended = mgr.check_status(room)
        if room in mgr.request_status:
            mgr.request_status.pop(room)
            mgr.transfer_infos.pop(room, None)
        mgr.failure_records.pop(room, None)
        if (before := mgr.senders.pop(room, None)) is not None:
            before.has_room, before.dropped = False, ended

    def _bootstrapped(self) -> bool:
        """Whether the metadata of all peers had come before."""
        infos = self.kv_mgr.transfer_infos.get(self.bootstrap_room)
        return bool(infos) and len(infos) >= next(iter(infos.values())).required_dst_info_num

    def send(self, *arguments: Any, **options: Any) -> None:
        with self.kv_mgr.latch:
            if not self.has_room:
                return  # its chunk would go where the next request on this room id wants its own
            parent: Any = super()
            parent.send(*arguments, **options)
            if not self.kv_mgr.transfer_infos.get(self.bootstrap_room):
                self.kv_mgr.fail(self.bootstrap_room, "its transfer infos are gone")

    def poll(self) -> int:
        with self.kv_mgr.latch:
            ended = self.kv_mgr.request_status.get(self.bootstrap_room) in TERMINAL
            if self.counted and (self.dropped is not None or (self.has_room and ended)):
                return int(KVPoll.Transferring)
            if self.dropped is not None:
                self.conclude_state = self.dropped
                return int(self.dropped)
            parent: Any = super()
            status: int = parent.poll()
            if self.has_room and status == KVPoll.Failed:
                self.kv_mgr.tell_end(self)
            return status

    def abort(self) -> None:
        with self.kv_mgr.latch:
            if not self.has_room:
                return
            stands = self.kv_mgr.request_status.get(self.bootstrap_room)
            parent: Any = super()
            parent.abort()
            if stands == KVPoll.Success:
                self.conclude_state = stands
            self.kv_mgr.tell_end(self)

    def clear(self) -> None:
        with self.kv_mgr.latch:
            if not self.has_room or self.kv_mgr.senders.get(self.bootstrap_room) is not self:
                return
            if self.counted:
                self.kv_mgr.update_status(self.bootstrap_room, KVPoll.Failed)
                self.targets = self.targets or self.kv_mgr._room_notify_targets(self.bootstrap_room)
                self.cleared = self.kv_mgr.ending(self.bootstrap_room)
            self.kv_mgr.tell_end(self)
            ended = self.kv_mgr.request_status.get(self.bootstrap_room)
            if ended == KVPoll.Failed and not self.served:
                self.kv_mgr.will_hear(self.bootstrap_room)
            if ended == KVPoll.Success:
                self.kv_mgr.failure_records.pop(self.bootstrap_room, None)  # of an abort that Success has forestalled
            parent: Any = super()
            parent.clear()
            self.kv_mgr.senders.pop(self.bootstrap_room, None)
            self.has_room = False


class Scheduler:
    """Prefill's, two of whose ways of aborting a request clear nothing."""

    chunked_req: Any
    _pending_chunked_abort_req: Any

    def release_aborted_prefill_waiting_req(self, req: Any) -> None:
        parent: Any = super()
        parent.release_aborted_prefill_waiting_req(req)
        forget(req)

    def process_pending_chunked_abort(self) -> None:
        req = self._pending_chunked_abort_req
        aborts = req is not None and req is self.chunked_req
        parent: Any = super()
        parent.process_pending_chunked_abort()
        if aborts:
            forget(req)


def forget(req: Any) -> None:
    """Clears what a request's sender has, with the reason of its failure, for which nobody asks."""
    sender = getattr(req, "disagg_kv_sender", None)
    if sender is not None:
        sender.clear()
        sender.kv_mgr.forget(sender)
