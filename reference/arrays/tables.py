"""The tables of the reference manager: one array a column, one row a room or a transfer worker.

Codes are small integers, each family in a class of its own. A program counter that is named for an operation is the
place between the read and the store of that operation's update.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, Final

import attrs

from kvlatch.reference.arrays.device import Array
from kvlatch.spec.status import KVPoll

F, B, W, T, S = (int(status) for status in KVPoll)
ABSENT: Final = 5
"""The status of a room without an entry."""
TOMBSTONE: Final = 6
"""The status of a room whose entry was cleared, where the design remembers for which request."""
NOTHING: Final = 7
"""In a column of terminal statuses (``first_terminal``, ``latch``, ``wire``): none."""
BOTH: Final = 8
"""In ``wire``: decode has been told Failed and Success."""
NOBODY: Final = 2
"""In ``infos``: there are none; 0 and 1 are the requests that they can belong to."""

NONE: Final = -1
"""No worker, no chunk, no room: of an operation that has none, or of a worker that has never had one."""


class Phase:
    """The place of a request."""

    NEW, BOOT, RUNNING, INFLIGHT, CLEARING, FORGETTING, RELEASING, DONE = range(8)


class Pages:
    """The KV pages of a request."""

    NONE, HELD, RELEASED, RELEASED_TWICE = range(4)


class Chunk:
    """A chunk of a request."""

    UNSENT, QUEUED, TAKEN, DONE, LOST = range(5)


class Scheduler:
    """The program counter of the scheduler, for one room."""

    FREE, CREATE, TIME_OUT, ABORT = range(4)


class Bootstrap:
    """The program counter of the bootstrap thread, for one room."""

    IDLE, REGISTERED, WRITE_W, ABORTING, WRITE_F, POPPING = range(6)


class Worker:
    """The program counter of a transfer worker."""

    (IDLE, TAKEN, CHECKED, READY, WRITE_T, POSTING, TRANSFERRING, MARKING, WRITE_T_AGAIN,
     ARRIVED, CONCLUDING, WRITE_S, FAILING, FAIL, TELLING, POPPING) = range(16)  # fmt: skip

    OUTSTANDING = (CHECKED, READY, WRITE_T, POSTING, TRANSFERRING, MARKING, WRITE_T_AGAIN, FAILING, FAIL)
    """Past its first check, and its chunk neither arrived nor given up."""


@attrs.frozen(eq=False)
class Journal:
    """What a batch has overwritten, in order, so that it can be undone."""

    entries: list[tuple[Array, Any, Array]] = attrs.field(factory=list)

    def undo(self) -> None:
        """Put back everything, the last first."""
        while self.entries:
            array, index, old = self.entries.pop()
            array[index] = old


@attrs.frozen(eq=False)
class Column:
    """An array whose assignments are journalled. An index is made of arrays, and names no element twice."""

    array: Array
    journal: Journal

    def __getitem__(self, index: Any) -> Array:
        return self.array[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        self.keep(index)
        self.array[index] = value

    def keep(self, index: Any) -> None:
        """Remember what is there, for whoever writes into the array itself."""
        self.journal.entries.append((self.array, index, self.array[index]))


@attrs.frozen(eq=False)
class Tables:
    """Everything that the manager remembers; R rooms, W workers, C chunks a request, P pages.

    uint8 unless said otherwise. What counts the same thing as another column (``outstanding``, ``serving``) is kept up
    to date with it, so that no question has to look at every worker.
    """

    journal: Journal
    # By room (R).
    entry: Column
    """uint32: the next three columns in one word, a byte each from the lowest on; see ``kernels.write_entry``."""
    status: Column
    stamp: Column
    """The request (0 or 1) that the entry or the tombstone belongs to."""
    first_terminal: Column
    """History: the first terminal status of the entry since it was created."""
    infos: Column
    """Whose metadata the transfer infos are."""
    gen: Column
    """The request that the room id is used by: the first, 0, or the second, 1."""
    phase: Column
    latch: Column
    """The terminal status that the sender has reported."""
    pages: Column
    wire: Column
    """The terminal status that decode has been told."""
    scheduler: Column
    scheduler_seen: Column
    bootstrap: Column
    bootstrap_seen: Column
    bootstrap_gen: Column
    metadata: Column
    """How often decode's metadata has come, up to 2."""
    notice: Column
    """How often decode's abort notice has come, up to 2."""
    straggler: Column
    """1 while a message about the first request may still come in the life of the second."""
    outstanding: Column
    """int32: how many workers are in :attr:`Worker.OUTSTANDING` for the room."""
    serving: Column
    """(R, 2) int32: how many workers are not idle, by the request that they work for."""
    chunk: Column
    """(R, C)"""
    stale: Column
    """(R, C): 1 for a chunk of the first request that is still queued in the life of the second."""
    # By worker (W).
    worker: Column
    worker_seen: Column
    job: Column
    """int32: the chunk it has taken."""
    job_gen: Column
    """The request that this chunk belongs to."""
    job_room: Column
    """int32: the room that this chunk belongs to."""
    # Pages.
    page: Column
    """(R, 2, C) int32: the page that a request's chunk was given; it goes on naming it after the release."""
    free: Column
    """(P) int32: a ring of free pages, first released, first held again."""
    ring: Column
    """(2) int64: how many pages have ever been held, and how many ever freed; these positions bound the free part."""
    prefill: Column
    """(P, bytes): the pool that transfers read."""
    decode: Column
    """(R, 2, C, bytes): where decode receives each chunk of each request."""
    delivered: Column
    """(R, 2, C): 1 when the chunk has been copied to decode."""

    @classmethod
    def empty(cls, xp: ModuleType, rooms: int, workers: int, chunks: int, pages: int, page_bytes: int) -> Tables:
        """Every room new, every worker idle, every page free."""
        journal = Journal()

        def column(shape: int | tuple[int, ...], start: int = 0, dtype: str = "uint8") -> Column:
            return Column(xp.full(shape, start, dtype), journal)

        per_request = (rooms, 2, chunks)
        fields = xp.tile(xp.asarray([ABSENT, 0, NOTHING, 0], "uint8"), rooms)
        entry = fields.reshape(-1, 4)
        return cls(
            journal=journal,
            entry=Column(fields.view("uint32"), journal),
            status=Column(entry[:, 0], journal),
            stamp=Column(entry[:, 1], journal),
            first_terminal=Column(entry[:, 2], journal),
            **{name: column(rooms) for name in _ZERO_BY_ROOM},
            infos=column(rooms, NOBODY),
            latch=column(rooms, NOTHING),
            wire=column(rooms, NOTHING),
            scheduler_seen=column(rooms, ABSENT),
            bootstrap_seen=column(rooms, ABSENT),
            outstanding=column(rooms, dtype="int32"),
            serving=column((rooms, 2), dtype="int32"),
            chunk=column((rooms, chunks)),
            stale=column((rooms, chunks)),
            worker=column(workers),
            worker_seen=column(workers, ABSENT),
            job=column(workers, dtype="int32"),
            job_gen=column(workers),
            job_room=column(workers, NONE, dtype="int32"),
            page=column(per_request, dtype="int32"),
            free=Column(xp.arange(pages, dtype="int32"), journal),
            ring=Column(xp.asarray([0, pages], dtype="int64"), journal),
            prefill=column((pages, page_bytes)),
            decode=column((*per_request, page_bytes)),
            delivered=column(per_request),
        )


_ZERO_BY_ROOM: Final = (
    "gen", "phase", "pages", "scheduler", "bootstrap", "bootstrap_gen", "metadata", "notice", "straggler",
)  # fmt: skip
