"""A foreign merge is extracted whole, and what is no table is named."""

from __future__ import annotations

from typing import Any

import pytest

from kvlatch.reference.faults import AdapterFault
from kvlatch.reference.oracle.adapter import Probe
from kvlatch.reference.oracle.merge_table import MakeUpdatable, as_merge, extract
from kvlatch.reference.oracle.table import Table
from kvlatch.spec import merges
from kvlatch.spec.merges import KEEP, MERGES, Merge
from kvlatch.spec.status import KVPoll


class Manager:
    """A manager whose update is one of the spec's merges, on a table of the oracle's."""

    def __init__(self, probe: Probe, merge: Merge) -> None:
        self.table: Table = probe.table()
        self.merge = merge

    def update(self, room: int, status: KVPoll) -> None:
        stored = self.merge(self.table.get(room), status)
        if stored != KEEP:
            self.table[room] = stored

    def status(self, room: int) -> KVPoll | None:
        status: KVPoll | None = self.table.peek(room)
        return status


def manager(merge: Merge) -> MakeUpdatable:
    """What makes a manager with that merge."""
    return lambda probe: Manager(probe, merge)


@pytest.mark.parametrize("name", MERGES)
def test_extracted(name: str) -> None:
    """All 30 cells of every merge of the spec come back as they are, what is kept included."""
    found = extract(manager(MERGES[name]))
    assert found == merges.table(MERGES[name])
    assert merges.table(as_merge(found)) == found


class Sticky(Manager):
    """The first terminal status stays."""

    def __init__(self, probe: Probe) -> None:
        super().__init__(probe, MERGES["first_terminal_wins"])


class LooksAround(Manager):
    """Its rule depends on whether the next room exists."""

    def update(self, room: int, status: KVPoll) -> None:
        if room + 1 not in self.table:
            super().update(room, status)


class Counts(Manager):
    """It accepts two writes, and then no more."""

    writes = 0

    def update(self, room: int, status: KVPoll) -> None:
        self.writes += 1
        if self.writes < 3:
            super().update(room, status)


class Removes(Manager):
    """Failed removes the entry."""

    def update(self, room: int, status: KVPoll) -> None:
        super().update(room, status)
        if status == KVPoll.Failed:
            self.table.pop(room, None)


class Raises(Manager):
    """It does not know Transferring."""

    def update(self, room: int, status: KVPoll) -> None:
        if status == KVPoll.Transferring:
            raise KeyError(status.name)
        super().update(room, status)


class NeverSuccess(Manager):
    """No write ends in Success."""

    def update(self, room: int, status: KVPoll) -> None:
        if status != KVPoll.Success:
            super().update(room, status)


class Nonsense(Manager):
    """Its statuses are none."""

    def status(self, room: int) -> Any:
        return "fine"


class NoTable(Manager):
    """It keeps its entries where nobody can see them."""

    def __init__(self, probe: Probe, merge: Merge) -> None:
        self.table = Table()
        self.merge = merge


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (LooksAround, "update of room 7 also looks at room 8"),
        (Counts, "no table: .* gives .* after .*, and keep after"),
        (Removes, "removes the entry"),
        (Raises, "update, after .*Transferring, raised KeyError"),
        (NeverSuccess, "no 3 writes or fewer lead to Success"),
        (Nonsense, r"status\(\) returned 'fine'"),
        (NoTable, "takes 0 tables"),
    ],
)
def test_no_table(kind: type[Manager], says: str) -> None:
    """What is no table is a fault of the adapter, with the reason."""
    with pytest.raises(AdapterFault, match=says):
        extract(lambda probe: kind(probe, MERGES["sglang_0_5_20"]))
