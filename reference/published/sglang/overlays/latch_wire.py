"""`latch-local` with a nonce on the wire, for 0.5.23: an implementation of the design `latch`.

Whoever gives a request its room id gives both of its engines a nonce as well, a number that grows with each use of
that id: the sender's constructor takes it, and the receiver has it as an attribute. The receiver puts it behind the
frames of its metadata and of its abort notice. The bootstrap thread takes it off again:

* what is about the request that has the room, it hears as before;
* metadata of a later one is kept aside until the sender of that request is constructed;
* metadata of an older one is dropped; and an abort notice of any other one fails nobody.

Messages without a nonce, from a decode engine without it, are heard as by `latch-local`.
"""

from __future__ import annotations

from typing import Any

from kvlatch.reference.published.sglang.overlays import latch_local
from kvlatch.reference.published.sglang.overlays.latch_local import Scheduler

__all__ = ["Manager", "Receiver", "Scheduler", "Sender"]

TAG = b"NONCE"
ABORT = b"ABORT"


def tail(room: int, nonce: int | None) -> list[bytes]:
    """The frames behind a message that say which request it is about."""
    return [] if nonce is None else [TAG, b"%d" % room, b"%d" % nonce]


class Infos(latch_local.Infos):
    """A view of the transfer infos, or of what is kept aside: where a room's infos go is looked up at the store.

    A sender may be constructed between the thread's look at the table and its store.
    """

    def __init__(self, infos: Any, seen: dict[int, Any], manager: Any) -> None:
        super().__init__(infos, seen)
        self.manager = manager

    def __setitem__(self, room: int, peers: Any) -> None:
        with self.manager.latch:
            self.data = self.manager.infos_of(room)
            super().__setitem__(room, peers)

    def setdefault(self, room: int, default: Any = None) -> Any:
        with self.manager.latch:
            self.data = self.manager.infos_of(room)
            return super().setdefault(room, default)


class Socket:
    """Where the bootstrap thread reads: without nonces, and without what is about older requests."""

    def __init__(self, socket: Any, manager: Any) -> None:
        self.socket = socket
        self.manager = manager

    def __getattr__(self, name: str) -> Any:
        return getattr(self.socket, name)

    def recv_multipart(self, *arguments: Any, **options: Any) -> list[bytes]:
        while True:
            frames: list[bytes] = self.socket.recv_multipart(*arguments, **options)
            if self.manager.hears(frames):
                return frames


class Manager(latch_local.Manager):
    """The latch, who has which room, and what has been heard of requests that are still to come."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.aside: dict[int, dict[int, dict[int, Any]]] = {}
        """By room and nonce: the transfer infos, as a table of that one room."""
        super().__init__(*arguments, **options)

    @property
    def server_socket(self) -> Any:
        return Socket(vars(self)["server_socket"], self)

    @server_socket.setter
    def server_socket(self, socket: Any) -> None:
        vars(self)["server_socket"] = socket

    @property
    def transfer_infos(self) -> Any:
        mine = vars(self.of_thread)
        room = mine.get("heard", (None, None))[0]
        infos = vars(self)["transfer_infos"] if room is None else self.infos_of(room)
        return Infos(infos, mine.setdefault("seen", {}), self)

    @transfer_infos.setter
    def transfer_infos(self, infos: Any) -> None:
        vars(self)["transfer_infos"] = infos

    def hears(self, frames: list[bytes]) -> bool:
        """Takes the nonce off a message; whether the thread should hear the rest."""
        mine = vars(self.of_thread)
        mine["heard"] = None, None
        if frames[-3:-2] == [TAG]:
            mine["heard"] = room, nonce = int(frames[-2]), int(frames[-1])
            del frames[-3:]
            with self.latch:
                return frames[0] == ABORT or not self.is_over(room, nonce)
        return True

    def is_over(self, room: int, nonce: int) -> bool:
        """Whether a request is older than the one that has the room."""
        sender = self.senders.get(room)
        return sender is not None and sender.nonce is not None and nonce < sender.nonce

    def is_about_another(self, room: int) -> bool:
        """Whether this thread has heard a message about a request that does not have the room."""
        heard, nonce = vars(self.of_thread).get("heard", (None, None))
        sender = self.senders.get(room)
        return heard == room and (sender is None or sender.nonce not in (None, nonce))

    def infos_of(self, room: int) -> Any:
        """Where the transfer infos are that this thread hears of, or looks for."""
        with self.latch:
            if not self.is_about_another(room):
                return vars(self)["transfer_infos"]
            nonce = vars(self.of_thread)["heard"][1]
            return {} if self.is_over(room, nonce) else self.aside.setdefault(room, {}).setdefault(nonce, {})

    def take_in(self, sender: Any) -> None:
        """What was kept aside for a request is its own now; what is older is dropped."""
        room = sender.bootstrap_room
        kept = self.aside.pop(room, {})
        if own := kept.pop(sender.nonce, None):
            vars(self)["transfer_infos"][room] = own[room]
        if later := {nonce: infos for nonce, infos in kept.items() if sender.nonce is None or nonce > sender.nonce}:
            self.aside[room] = later

    def works_for_another(self, room: int) -> bool:
        return self.is_about_another(room) or super().works_for_another(room)


class Sender(latch_local.Sender):
    """A sender that knows its request's nonce."""

    def __init__(
        self,
        mgr: Any,
        bootstrap_addr: str,
        bootstrap_room: int,
        *arguments: Any,
        nonce: int | None = None,
        **options: Any,
    ) -> None:
        self.nonce = nonce
        super().__init__(mgr, bootstrap_addr, bootstrap_room, *arguments, **options)

    def _bootstrapped(self) -> bool:
        self.kv_mgr.take_in(self)
        return super()._bootstrapped()


class Receiver:
    """Decode's end of a request: it says in each message which one."""

    bootstrap_room: int
    nonce: int | None = None
    _connect_to_bootstrap_server: Any

    def _send_bootstrap_message(self, *, message: list[bytes], operation: str, **options: Any) -> bool:
        if operation == "send_metadata":
            message = [*message, *tail(self.bootstrap_room, self.nonce)]
        parent: Any = super()
        sent: bool = parent._send_bootstrap_message(message=message, operation=operation, **options)
        return sent

    def _send_abort_notification(self, **options: Any) -> None:
        connect, frames = self._connect_to_bootstrap_server, tail(self.bootstrap_room, self.nonce)

        def tagged(*arguments: Any) -> tuple[Any, Any]:
            socket, lock = connect(*arguments)
            return Tagged(socket, frames), lock

        self._connect_to_bootstrap_server = tagged  # where the notice is put together no class can add a frame
        try:
            parent: Any = super()
            parent._send_abort_notification(**options)
        finally:
            del self._connect_to_bootstrap_server


class Tagged:
    """A socket that puts frames behind a message."""

    def __init__(self, socket: Any, frames: list[bytes]) -> None:
        self.socket = socket
        self.frames = frames

    def send_multipart(self, message: list[bytes]) -> None:
        self.socket.send_multipart([*message, *self.frames])
