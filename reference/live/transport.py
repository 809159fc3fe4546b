"""Moving pages and messages between engines: one NIXL agent each, UCX, host memory, this machine only.

Data goes one way, from prefill's pages into decode's; messages go both ways, as NIXL notifications, and arrive in
their order. They are JSON objects.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

import attrs

from kvlatch.reference.live.pages import Pool

_WAIT: Final = 0.0005
"""Seconds between two looks at a transfer in progress."""


@attrs.frozen
class Peer:
    """Another engine: its agent's name, and where its pages begin in its memory."""

    name: str
    address: int


class Transport:
    """One agent with a pool of pages. Safe to be used by several threads."""

    def __init__(self, name: str, pool: Pool) -> None:
        # Before the first import of NIXL: no traffic leaves the machine, and its errors are ours to report.
        os.environ.update(UCX_NET_DEVICES="lo", UCX_WARN_UNUSED_ENV_VARS="n", NIXL_LOG_LEVEL="FATAL")
        from nixl_cu12 import _bindings
        from nixl_cu12._api import nixl_agent, nixl_agent_config, nixl_thread_sync_t

        self._errors = tuple(getattr(_bindings, name) for name in dir(_bindings) if name.endswith("Error"))
        # No progress thread: it would spin, a core for each engine. Whoever looks for messages makes progress.
        strict = nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT
        options = nixl_agent_config(enable_prog_thread=False, backends=["UCX"], sync_mode=strict)
        self._agent = nixl_agent(name, options)
        self._pool = pool
        self._registered = self._agent.register_memory(
            self._agent.get_reg_descs([(self.address, pool.memory.nbytes, 0, "")], "DRAM")
        )
        self._lock = threading.Lock()
        self._gone: set[str] = set()

    @property
    def address(self) -> int:
        """Where the pages begin."""
        return int(self._pool.memory.ctypes.data)

    @property
    def metadata(self) -> bytes:
        """What another agent needs to know of this one."""
        return bytes(self._agent.get_agent_metadata())

    def meet(self, metadata: bytes, address: int) -> Peer:
        """Make another engine known; ValueError if this is not the metadata of an agent."""
        try:
            name: bytes = self._agent.add_remote_agent(metadata)
        except self._errors as error:
            raise ValueError(f"NIXL does not accept the peer's metadata: {error}") from error
        return Peer(name.decode(), address)

    def send(self, peer: Peer, message: object) -> bool:
        """Send a message; False if the peer has gone."""
        try:
            self._agent.send_notif(peer.name, json.dumps(message).encode())
        except self._errors:
            self._lost(peer)
            return False
        return True

    def messages(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """The messages that have come since the last call, with the name of who sent them."""
        for name, notes in self._agent.get_new_notifs().items():
            for note in notes:
                yield name, json.loads(note)

    def write(self, peer: Peer, pages: Sequence[int], to: Sequence[int], seconds: float) -> bool:
        """Copy pages, one after the other, each in at least ``seconds``; False once one has failed."""
        for page, target in zip(pages, to, strict=True):
            end = time.monotonic() + seconds
            if peer.name in self._gone or not self._write(peer, page, target):
                return False
            time.sleep(max(0.0, end - time.monotonic()))  # the wire of a real network
        return True

    def _write(self, peer: Peer, page: int, target: int) -> bool:
        size = self._pool.memory.shape[1]
        mine = self._agent.get_xfer_descs([(self.address + page * size, size, 0)], "DRAM")
        theirs = self._agent.get_xfer_descs([(peer.address + target * size, size, 0)], "DRAM")
        try:
            handle = self._agent.initialize_xfer("WRITE", mine, theirs, peer.name)
            state = self._agent.transfer(handle)
            while state == "PROC":
                time.sleep(_WAIT)  # NIXL has no call that waits for a transfer
                state = self._agent.check_xfer_state(handle)
            self._agent.release_xfer_handle(handle)
        except self._errors:
            self._lost(peer)
            return False
        return bool(state == "DONE")

    def _lost(self, peer: Peer) -> None:
        with self._lock:
            self._gone.add(peer.name)
