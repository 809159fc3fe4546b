"""The reference manager: the statuses of many rooms as arrays, on a GPU or without one, same code, same answers.

It is a real manager, written for arrays and by hand: status table, transfer infos, latches, chunk queues, workers,
page ledger and pages. Nothing of it is derived from the rows of ``spec/protocol.py``, which are what it is checked
against; from the spec it takes a design's merge table and switches, so that every design can be run, the broken ones
too. Its steps are those of the spec, an operation each::

    manager = Manager(DESIGNS["latch"], "locked", rooms=3, workers=1, chunks=2)
    manager.apply(Batch.of(manager.xp, Operation.create, room=[0, 1, 2]))
    manager.poll()                                      # array([1, 1, 1], dtype=uint8): Bootstrapping

**A batch means what its operations mean one after the other**, whatever rooms they share. The manager takes it in
*waves*: a wave has no two operations about one room or one worker, in an order that keeps theirs, and every step treats
all operations of a wave at once. A batch about distinct rooms is one wave, one about a single room as many as it is
long.

**All or nothing.** A batch with an operation that cannot happen when its turn comes, or that needs a page when none is
free, raises and changes nothing, as malformed input does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import IntEnum
from types import ModuleType
from typing import Any, Final

import attrs
import numpy as np
import numpy.typing as npt

from kvlatch.reference.arrays import steps
from kvlatch.reference.arrays.core import At, Core
from kvlatch.reference.arrays.device import UNSEEN, Array, first_of_each, to_host
from kvlatch.reference.arrays.tables import NONE, Pages, Phase, Tables
from kvlatch.spec.designs import Design
from kvlatch.spec.schema import NETWORKS, Atomicity, Network

Integers = int | npt.ArrayLike


class NotEnabled(ValueError):
    """An operation of a batch cannot happen when its turn comes; nothing of the batch has happened."""


class PoolExhausted(ValueError):
    """An operation of a batch needs more pages than are free then; nothing of the batch has happened."""


class Operation(IntEnum):
    """What can be done, by the names of the spec's rows."""

    create = 0
    time_out = 1
    abort = 2
    admit = 3
    enqueue = 4
    settle_failed = 5
    settle_success = 6
    clear_status = 7
    clear_infos = 8
    release = 9
    reuse = 10
    hear_metadata = 11
    write_w = 12
    hear_abort = 13
    write_f = 14
    abort_pop = 15
    hear_stale_metadata = 16
    hear_stale_abort = 17
    take = 18
    take_stale = 19
    check_status = 20
    check_infos = 21
    write_t = 22
    post = 23
    complete = 24
    break_ = 25
    write_t_again = 26
    conclude = 27
    write_s = 28
    fail = 29
    tell_success = 30
    tell_failed = 31
    tell_nothing = 32
    conclude_pop = 33


class Part(IntEnum):
    """Which part of an update of the status: all of it, or one step of a split or a cas update."""

    whole = 0
    read = 1
    store = 2
    swap = 3
    retry = 4


UPDATES: Final = (
    Operation.create, Operation.time_out, Operation.abort, Operation.write_w, Operation.write_f,
    Operation.write_t, Operation.write_t_again, Operation.write_s, Operation.fail,
)  # fmt: skip
"""The operations that call ``update_status``, and so come in parts."""
OF_CHUNKS: Final = (
    Operation.enqueue, Operation.take, Operation.take_stale, Operation.check_status, Operation.check_infos,
    Operation.complete, Operation.break_,
)  # fmt: skip
"""The operations that name a chunk."""
OF_WORKERS: Final = tuple(op for op in Operation if op >= Operation.take)
"""The operations that name a worker."""
PARTS: Final[dict[Atomicity, tuple[Part, ...]]] = {
    "locked": (Part.whole,),
    "split": (Part.read, Part.store),
    "cas": (Part.read, Part.swap, Part.retry),
}

_ROWS: Final[dict[Operation, steps.Row]] = {op: getattr(steps, op.name) for op in Operation}
_COLUMNS: Final = {"operation": "uint8", "part": "uint8", "room": "int32", "worker": "int32", "chunk": "int32"}


@attrs.frozen(eq=False)
class Batch:
    """Operations in their order: five arrays of one length, of the manager's array module.

    ``operation`` and ``part`` are uint8, ``room``, ``worker`` and ``chunk`` int32; NONE where an operation has no
    worker or no chunk.
    """

    operation: Array
    part: Array
    room: Array
    worker: Array
    chunk: Array

    @classmethod
    def of(
        cls,
        xp: ModuleType,
        operation: Integers,
        room: Integers,
        *,
        part: Integers = Part.whole,
        worker: Integers = NONE,
        chunk: Integers = NONE,
    ) -> Batch:
        """A batch of what is on the host: a number is for all operations, a list or an array has one for each.

        What is not an integer raises TypeError; one that its column cannot hold, or lists of different lengths, raise
        ValueError.
        """
        given = {"operation": operation, "part": part, "room": room, "worker": worker, "chunk": chunk}
        columns = {name: _integers(name, value) for name, value in given.items()}
        lengths = {name: column.shape for name, column in columns.items() if column.ndim}
        if len(set(lengths.values())) > 1:
            said = ", ".join(f"{name} {shape}" for name, shape in lengths.items())
            raise ValueError(f"the columns of a batch have one length: {said}")
        shape = next(iter(lengths.values()), (1,))
        return cls(*(xp.asarray(np.broadcast_to(column, shape).copy()) for column in columns.values()))

    def __len__(self) -> int:
        return len(self.operation)


def _integers(name: str, value: Integers) -> npt.NDArray[Any]:
    dtype = np.dtype(_COLUMNS[name])
    column = np.asarray(value)
    if column.size == 0:
        return column.astype(dtype)
    if column.dtype.kind not in "iu":
        raise TypeError(f"{name} is made of integers, not of {column.dtype}")
    limits = np.iinfo(dtype)
    if column.min() < limits.min or column.max() > limits.max:
        raise ValueError(f"{name} goes from {column.min()} to {column.max()}, which {dtype} does not hold")
    return column.astype(dtype)


class Manager:
    """The statuses of ``rooms`` rooms and all that belongs to them; ``chunks`` chunks a request, a page a chunk.

    ``network`` says which messages may come (see ``spec/designs.py``). ``pages`` is the size of the prefill pool, by
    default enough for every room; ``page_bytes`` a positive multiple of 8. ``xp`` is the array module, NumPy unless
    another one is given (``device.module("gpu")``). A count below one, an unknown network, or an atomicity that the
    design does not claim, raises ValueError.
    """

    def __init__(
        self,
        design: Design,
        atomicity: Atomicity,
        network: Network = "orderly",
        *,
        rooms: int = 1,
        workers: int = 1,
        chunks: int = 1,
        pages: int | None = None,
        page_bytes: int = 16,
        xp: ModuleType | None = None,
    ) -> None:
        pages = rooms * chunks if pages is None else pages
        sizes = {"rooms": rooms, "workers": workers, "chunks": chunks, "pages": pages, "page_bytes": page_bytes}
        for name, size in sizes.items():
            if not 1 <= size < UNSEEN:
                raise ValueError(f"{name} is {size}, not a number from 1 to {UNSEEN - 1}")
        if page_bytes % 8:
            raise ValueError(f"page_bytes is {page_bytes}, not a multiple of 8")
        if network not in NETWORKS:
            raise ValueError(f"unknown network {network!r}; it is {', '.join(NETWORKS)}")
        if atomicity not in design.atomicities:
            raise ValueError(f"{design.name} is {' or '.join(design.atomicities)}, not {atomicity}")
        self.xp = xp = np if xp is None else xp
        self.tables = Tables.empty(xp, rooms, workers, chunks, pages, page_bytes)
        self.core = Core.of(xp, self.tables, design, network)
        self.atomicity = atomicity
        self.sizes = sizes
        self._is_update, self._names_worker, self._names_chunk = (
            xp.asarray([op in kind for op in Operation]) for kind in (UPDATES, OF_WORKERS, OF_CHUNKS)
        )
        self._first_of_room = xp.full(rooms, UNSEEN, "int32")
        self._first_of_worker = xp.full(workers + 1, UNSEEN, "int32")  # the last element is for NONE

    # ----------------------------------------------------------------------------------------------------------------
    # Questions

    def poll(self, room: Array | None = None) -> Array:
        """What ``sender.poll()`` returns for the rooms (by default all, in order): uint8 numbers of ``KVPoll``."""
        return self.core.poll(self.xp.arange(self.sizes["rooms"]) if room is None else room)

    def inflight(self) -> int:
        """How many requests are in the inflight queue."""
        return int((self.tables.phase.array == Phase.INFLIGHT).sum())

    def free_pages(self) -> int:
        """How many pages of the prefill pool are free."""
        held, freed = to_host(self.tables.ring.array).tolist()
        return int(freed - held)

    def wrong_bytes(self) -> Array:
        """The chunks that decode has received with other bytes than were computed: (n, 3) of room, request, chunk."""
        xp, t = self.xp, self.tables
        place = xp.nonzero(t.delivered.array)
        wrong = (t.decode[place] != self.core.content(*place)).any(axis=1)
        return xp.stack(place, axis=1)[wrong]

    def enabled(self, batch: Batch) -> Array:
        """Which operations, each for itself, could happen now: a mask. Whether pages are free is not asked."""
        self._check(batch)
        enabled = self.xp.zeros(len(batch), bool)
        for rows, step, _ in self._steps(batch, self.xp.arange(len(batch))):
            enabled[rows] = next(step)
        return enabled

    # ----------------------------------------------------------------------------------------------------------------
    # Batches

    def apply(self, batch: Batch) -> None:
        """Do the operations of a batch, in the meaning of one after the other.

        Malformed batches raise TypeError or ValueError; one that cannot happen raises NotEnabled, which names the
        operation, or PoolExhausted. Whatever it raises, nothing has changed.
        """
        self._check(batch)
        journal = self.tables.journal
        try:
            for wave in self._waves(batch):
                self._do(batch, wave)
        except BaseException:
            journal.undo()
            raise
        journal.entries.clear()

    def _waves(self, batch: Batch) -> Iterator[Array]:
        """The operations in waves: each waits for earlier ones of its room, of its worker, and for the same pages."""
        xp = self.xp
        of_pool = (batch.operation == int(Operation.admit)) | (batch.operation == int(Operation.release))
        left = xp.arange(len(batch))
        while len(left):
            ready = first_of_each(xp, batch.room[left], self._first_of_room)
            worker = batch.worker[left]
            ready &= (worker == NONE) | first_of_each(xp, worker, self._first_of_worker)
            waits = of_pool[left] & ~ready
            if bool(waits.any()):
                ready &= ~of_pool[left] | (xp.arange(len(left)) < waits.argmax())
            yield left[ready]
            left = left[~ready]

    def _do(self, batch: Batch, wave: Array) -> None:
        """One wave: ask every step about all its operations, then do them."""
        waiting = []
        for rows, step, operation in self._steps(batch, wave):
            enabled = next(step)
            if not bool(enabled.all()):
                index = int(rows[int((~enabled).argmax())])
                room = int(batch.room[index])
                raise NotEnabled(f"operation {index} of the batch, {_name(operation)} of room {room}, is not enabled")
            waiting.append((operation != Operation.release, step))
        self._reserve(batch, wave)
        # Pages come back before they are held again; in a ring the order of the operations decides which are which.
        for _, step in sorted(waiting, key=lambda pair: pair[0]):
            next(step, None)

    def _steps(self, batch: Batch, wave: Array) -> Iterator[tuple[Array, steps.Step, Operation]]:
        """The operations of a wave by kind: which they are, their step, not begun, and its name."""
        kind = batch.operation[wave] * len(Part) + batch.part[wave]
        for code in to_host(self.xp.flatnonzero(self.xp.bincount(kind))).tolist():
            operation, part = Operation(code // len(Part)), Part(code % len(Part))
            rows = wave[kind == code]
            at = At(batch.room[rows], batch.worker[rows], batch.chunk[rows], part.name)
            yield rows, _ROWS[operation](self.core, at), operation

    def _reserve(self, batch: Batch, wave: Array) -> None:
        """The pages that a wave needs are free when they are needed, or PoolExhausted."""
        xp, operation, chunks = self.xp, batch.operation[wave], self.sizes["chunks"]
        taken = operation == int(Operation.admit)
        if not bool(taken.any()):
            return
        freed = (operation == int(Operation.release)) & (self.tables.pages[batch.room[wave]] == Pages.HELD)
        free = self.free_pages() + xp.cumsum((freed.astype("int64") - taken) * chunks)
        short = free < 0
        if bool(short.any()):
            index = int(wave[int(short.argmax())])
            left = int(free[short][0]) + chunks
            raise PoolExhausted(f"operation {index} of the batch, admit: pages needed {chunks}, free {left}")

    # ----------------------------------------------------------------------------------------------------------------
    # Input

    def _check(self, batch: Batch) -> None:
        """A batch that makes sense, whatever the state: TypeError for a dtype, else ValueError for the first row."""
        for name, dtype in _COLUMNS.items():
            column = getattr(batch, name)
            if column.dtype != dtype:
                raise TypeError(f"{name} of a batch is {dtype}, not {column.dtype}")
            if column.shape != (len(batch),):
                raise ValueError(f"{name} of a batch has shape {column.shape}, not ({len(batch)},)")
        _refuse(batch.operation >= len(Operation), lambda i: f"{int(batch.operation[i])} is not an operation")
        _refuse(batch.part >= len(Part), lambda i: f"{int(batch.part[i])} is not a part")
        self._check_part(batch)
        self._check_range(batch.room, "room", "rooms", self.xp.ones(len(batch), bool), batch)
        self._check_range(batch.worker, "worker", "workers", self._names_worker[batch.operation], batch)
        self._check_range(batch.chunk, "chunk", "chunks", self._names_chunk[batch.operation], batch)

    def _check_part(self, batch: Batch) -> None:
        is_update = self._is_update[batch.operation]
        fits = ~is_update & (batch.part == int(Part.whole))
        for part in PARTS[self.atomicity]:
            fits |= is_update & (batch.part == int(part))

        def say(i: int) -> str:
            operation, part = Operation(int(batch.operation[i])), Part(int(batch.part[i]))
            return f"a manager that is {self.atomicity} has no {_name(operation)}.{part.name}"

        _refuse(~fits, say)

    def _check_range(self, column: Array, name: str, size: str, named: Array, batch: Batch) -> None:
        """Where an operation names one it is in range, and elsewhere it is NONE."""
        limit = self.sizes[size]
        wrong = self.xp.where(named, (column < 0) | (column >= limit), column != NONE)

        def say(i: int) -> str:
            operation = _name(Operation(int(batch.operation[i])))
            if not bool(named[i]):
                return f"{operation} has no {name}, and {int(column[i])} is given"
            return f"{name} {int(column[i])} of {operation} is out of range: there are {limit} {size}"

        _refuse(wrong, say)


def _refuse(wrong: Array, say: Callable[[int], str]) -> None:
    if bool(wrong.any()):
        index = int(wrong.argmax())
        raise ValueError(f"operation {index} of the batch: {say(index)}")


def _name(operation: Operation) -> str:
    """The name of the row: ``break`` is a word of Python."""
    return operation.name.removesuffix("_")
