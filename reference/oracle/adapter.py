"""Adapters: how the oracle drives a manager that lives in this process, and what it asks of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

import attrs

from kvlatch.reference.oracle.moves import RoomId
from kvlatch.reference.oracle.table import Table, Touched
from kvlatch.spec.status import KVPoll

Done = tuple[RoomId, int, KVPoll | None]
"""What a manager has done for a request of a room: told decode how it has ended, or (None) given its pages back."""


@attrs.frozen(eq=False)
class Probe:
    """What the oracle gives to each adapter, to be told what the manager does.

    Where threads are held is found out without it. ``table`` and ``watch`` help where a manager's code cannot be read.
    """

    _done: list[Done]
    _touched: Touched | None = None
    _watch: Callable[[Callable[..., object]], None] | None = None

    def table(self) -> Table:
        """A mapping for the status table, each access to which is seen. ``peek(room)`` is no access."""
        return Table(self._touched)

    def watch(self, function: Callable[..., object]) -> None:
        """Hold threads before each line of a function, too: for code that cannot be read but run."""
        if self._watch is not None:
            self._watch(function)

    def release(self, room: int, request: int) -> None:
        """The manager gives the request's pages back to their pool."""
        self._done.append((room, request, None))

    def tell(self, room: int, request: int, status: KVPoll) -> None:
        """The manager tells decode that the request has ended, with Failed or Success."""
        self._done.append((room, request, status))


class Adapter(Protocol):
    """A manager as the oracle drives it, in the role of prefill.

    ``room`` is the id that the client chose, ``request`` counts the requests on it from 1: a manager that does not tell
    them apart ignores it. Chunks are numbered from 0, ``last`` marks the last. Methods are
    called by several threads: ``create``, ``poll``, ``abort`` and ``clear`` by the scheduler, ``metadata`` and
    ``abort_notice`` by the bootstrap thread, ``start`` and ``finish`` by the transfer workers.
    """

    def create(self, room: int, request: int) -> None:
        """A request arrives: its sender is made (status Bootstrapping)."""

    def metadata(self, room: int, request: int) -> None:
        """All metadata of decode has arrived (WaitingForInput)."""

    def abort_notice(self, room: int, request: int) -> None:
        """Decode gives the request up (Failed)."""

    def abort(self, room: int, request: int) -> None:
        """The client has gone, or the time to bootstrap is up (Failed)."""

    def start(self, room: int, request: int, chunk: int, last: bool) -> bool:
        """A worker has this chunk in hand: True if it is to be transferred (Transferring), False to skip it."""

    def finish(self, room: int, request: int, chunk: int, last: bool, ok: bool) -> None:
        """The transfer of the chunk has ended, well or not (Success with all chunks; Failed)."""

    def poll(self, room: int, request: int) -> KVPoll | None:
        """What the scheduler is told when it asks for the request's status; None for none."""

    def clear(self, room: int, request: int) -> None:
        """The scheduler has settled the request: forget it, and release its pages as soon as nothing reads them."""

    def status(self, room: int) -> KVPoll | None:
        """The entry in the status table, for an onlooker: no access, no effect, no wait; None where there is none."""


class Lively(Adapter, Protocol):
    """What an adapter may have besides, if its manager does things by itself. The scheduler's thread calls them."""

    def tick(self) -> None:
        """The scheduler's loop goes round: do what is done now and then."""

    def quiesce(self) -> None:
        """Return when nothing is under way any more; called after each tick."""

    def close(self) -> None:
        """The manager is not needed any more: end its threads and give its files back."""


MakeAdapter = Callable[[Probe], Adapter]

_METHODS: Final = ("create", "metadata", "abort_notice", "abort", "start", "finish", "poll", "clear", "status")


def missing(adapter: object) -> str:
    """The first of the nine methods that something lacks, as it is called; empty if it is an adapter."""
    return next((f"{name}()" for name in _METHODS if not callable(getattr(adapter, name, None))), "")
