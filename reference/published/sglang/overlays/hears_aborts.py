"""The abort notice of the incident's build: prefill hears it, writes Failed, and removes the transfer infos.

Published 0.5.13 to 0.5.15.post1 have decode send the notice over NIXL and no branch that hears it: the bootstrap thread
dies of the first one. With this overlay it lives, so that the incident's race can be looked at.
"""

from __future__ import annotations

from typing import Any

from sglang.srt.disaggregation.base.conn import KVPoll

NOTICE = b"ABORT"


class Listening:
    """The socket of the bootstrap thread, which is given every message but abort notices."""

    def __init__(self, socket: Any, manager: Any) -> None:
        self.socket = socket
        self.manager = manager

    def __getattr__(self, name: str) -> Any:
        return getattr(self.socket, name)

    def recv_multipart(self, *arguments: Any, **options: Any) -> Any:
        while (message := self.socket.recv_multipart(*arguments, **options))[0] == NOTICE:
            self.manager.hear_abort(int(message[1]))
        return message


class Manager:
    """Hears abort notices."""

    server_socket: Any
    transfer_infos: dict[int, Any]
    record_failure: Any
    update_status: Any

    def _start_bootstrap_thread(self) -> None:
        self.server_socket = Listening(self.server_socket, self)
        parent: Any = super()
        parent._start_bootstrap_thread()

    def hear_abort(self, room: int) -> None:
        """Decode has given the request up."""
        self.record_failure(room, "aborted by decode")
        self.update_status(room, KVPoll.Failed)
        self.transfer_infos.pop(room, None)
