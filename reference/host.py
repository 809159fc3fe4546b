"""What surrounds a status manager: a host with table, pages and decode; a watcher; and what stands in the table."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any, Protocol

import attrs

from kvlatch.spec.status import KVPoll


class Host(Protocol):
    """What surrounds a manager: the table it writes, the pool that pages go back to, and the way to decode."""

    def table(self) -> MutableMapping[int, Any]:
        """The status table, by room id, empty. Its entries are the manager's: :func:`status_of` reads one."""

    def release(self, room: int, request: int) -> None:
        """The request's pages go back to their pool."""

    def tell(self, room: int, request: int, status: KVPoll) -> None:
        """Tell decode that the request has ended: Failed or Success."""


class Watcher:
    """Is told what the manager does, for an event log; this one listens to nothing.

    Each call comes from the thread that does it, after what it says and before the next thing that the thread does.
    """

    def writes(self, status: KVPoll) -> None:
        """The calling thread goes on to write a status: the next store to the table is that."""

    def kept(self, room: int) -> None:
        """The write has left the table as it is; the lock is held as for a store."""

    def did(self, op: str, room: int, request: int, **more: Any) -> None:
        """Anything else, by its name in an event log, with the other fields of its line."""


@attrs.frozen
class Entry:
    """An entry with its generation, of a design that leaves tombstones: one value, so it is read and stored whole.

    ``status`` is None in a tombstone: the request has been cleared.
    """

    request: int
    status: KVPoll | None


def status_of(entry: object) -> KVPoll | None:
    """The status that an entry of the table says; None for no entry, and for a tombstone."""
    if isinstance(entry, Entry):
        return entry.status
    return entry if isinstance(entry, KVPoll) else None


def about(request: int, entry: object) -> KVPoll | None:
    """What an entry says about a request: with a generation, only about its own."""
    return None if isinstance(entry, Entry) and entry.request != request else status_of(entry)


def counts(request: int, entry: object) -> bool:
    """Whether a write for a request counts where this entry stands: not in a tombstone of it, nor after a newer one."""
    if not isinstance(entry, Entry):
        return True
    return entry.request < request or (entry.request == request and entry.status is not None)
