"""The merge of a foreign manager, extracted: all 30 cells, from what its own update does.

A manager that has an update can be driven through every cell of its table. Then nothing more has to be sampled: the
table takes the place of a merge of ``kvlatch.spec``, and what is proved of a design with it is proved of that code, as
far as its update is one step and depends on nothing but the entry and what is written. Both are checked here as far as
an onlooker can: the table is audited for accesses to other rooms, and every entry is reached in several ways.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

from kvlatch.reference.faults import AdapterFault
from kvlatch.reference.foreign import recorder
from kvlatch.reference.oracle.adapter import Probe
from kvlatch.reference.oracle.moves import ROOM
from kvlatch.reference.oracle.table import Table
from kvlatch.spec import merges
from kvlatch.spec.merges import KEEP, Kept
from kvlatch.spec.status import ABSENT, KVPoll

LONGEST: Final = 4
"""How many writes one manager gets at most: all but the last lead to an entry, and the last one is looked at."""


class Updatable(Protocol):
    """A manager with an update; the table is a mapping from ``probe.table()``."""

    def update(self, room: int, status: KVPoll) -> None:
        """One write."""

    def status(self, room: int) -> KVPoll | None:
        """The entry, or None, for an onlooker."""


MakeUpdatable = Callable[[Probe], Updatable]
Cell = tuple[KVPoll | None, KVPoll]


def extract(make: MakeUpdatable) -> merges.Table:
    """The table of a manager's update, with what it leaves alone told from what it stores again.

    Raises AdapterFault if an update raises, touches another room, cannot reach some entry, or if what it does depends
    on anything but the entry and the status that is written.
    """
    cells: dict[Cell, KVPoll | Kept] = {}
    witness: dict[Cell, tuple[KVPoll, ...]] = {}
    for writes in _sequences():
        current, stored = _last_write(make, writes)
        cell = current, writes[-1]
        if cells.setdefault(cell, stored) != stored:
            raise AdapterFault(
                f"no table: {_name(current)} <- {writes[-1].name} gives {_name(cells[cell])} after "
                f"{_names(witness[cell])}, and {_name(stored)} after {_names(writes[:-1])}"
            )
        witness.setdefault(cell, writes[:-1])
    for current in (*KVPoll, None):
        if (current, KVPoll.Failed) not in cells:
            raise AdapterFault(f"no table: no {LONGEST - 1} writes or fewer lead to {_name(current)}")
    return tuple(tuple(cells[current, incoming] for incoming in KVPoll) for current in (*KVPoll, None))


def as_merge(table: merges.Table) -> merges.Merge:
    """A table as a merge, to take the place of one of the spec's."""

    def looked_up(current: KVPoll | None, incoming: KVPoll) -> KVPoll | Kept:
        return table[len(KVPoll) if current is None else current][incoming]

    return looked_up


def _sequences() -> Iterator[tuple[KVPoll, ...]]:
    for length in range(1, LONGEST + 1):
        yield from itertools.product(KVPoll, repeat=length)


def _made(make: MakeUpdatable) -> tuple[Updatable, Table]:
    """A fresh manager, and its table."""
    tables: list[Table] = []

    class Audit(Probe):
        def table(self) -> Table:
            tables.append(super().table())
            return tables[-1]

    manager = make(Audit([]))
    if lacking := next((name for name in ("update", "status") if not callable(getattr(manager, name, None))), ""):
        raise AdapterFault(
            f"what is made, of class {type(manager).__name__}, has no {lacking}(): a merge can be extracted from what "
            "has update(room, status) and status(room), and keeps its statuses in the mapping that "
            "probe.table() gives it"
        )
    if len(tables) != 1:
        raise AdapterFault(
            f"the manager takes {len(tables)} tables from probe.table(), and it should be one: only so can a status "
            "that is left alone be told from one that is stored again"
        )
    return manager, tables[0]


def _last_write(make: MakeUpdatable, writes: Sequence[KVPoll]) -> tuple[KVPoll | None, KVPoll | Kept]:
    """The entry before the last of some writes, and what that stores, if it stores at all."""
    recorder.fresh()
    recorder.step("the making of the manager")
    manager, table = _made(make)
    before, stores = None, 0
    for status in writes:
        recorder.now("status()")
        before, stores = _status(manager), table.stores
        recorder.step(f"update(…, {status.name})")
        try:
            manager.update(ROOM, status)
        except Exception as error:
            raise AdapterFault(f"update, after {_names(writes)}, raised {type(error).__name__}: {error}") from error
    if others := table.keys_used - {ROOM}:
        raise AdapterFault(f"update of room {ROOM} also looks at room {min(map(str, others))}: that is no table")
    after = _status(manager)
    if table.stores == stores:
        return before, KEEP
    if after is None:
        raise AdapterFault(f"update, after {_names(writes)}, removes the entry: that is no write")
    return before, after


def _status(manager: Updatable) -> KVPoll | None:
    status = manager.status(ROOM)
    if status is not None and status not in tuple(KVPoll):
        raise AdapterFault(f"status() returned {status!r}: it is a KVPoll, or None for no entry")
    return None if status is None else KVPoll(status)


def _name(status: KVPoll | Kept | None) -> str:
    return ABSENT if status is None else status if isinstance(status, str) else status.name


def _names(writes: Sequence[KVPoll]) -> str:
    return ", ".join(status.name for status in writes) or "nothing"
