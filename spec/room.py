"""The room protocol as a value: its sizes, its table of statuses, and everything that the other files say of it."""

from __future__ import annotations

from typing import ClassVar, Final

import attrs

from kvlatch.spec import designs, protocol
from kvlatch.spec.designs import DESIGNS, SWITCHES, Design
from kvlatch.spec.lemmas import FEW, LEMMAS, POTENTIAL
from kvlatch.spec.merges import KEEP, Table, table
from kvlatch.spec.properties import PROPERTIES
from kvlatch.spec.protocol import RULES, STATE, THREADS
from kvlatch.spec.schema import ANY, AnyDesign, Entry, Home, Older, Protocol, Sizes, World
from kvlatch.spec.status import ABSENT, STATUS, TOMBSTONE, KVPoll
from kvlatch.spec.terms import Field

MAX_CHUNKS: Final = len(protocol.job.labels)
HERE: Final = "0"
job_room = Field("job_room", "worker", ("elsewhere", HERE, "1", "2", "3"))
"""The room of the worker's chunk; only instances with several rooms, or any number, have it."""


@attrs.frozen
class Instance(Sizes):
    """How many transfer workers, chunks per request, requests (one by one) per room id, and rooms.

    Of all but rooms there may be ``ANY`` number. Requests beyond the second are then what :class:`Older` makes of them.
    """

    crowd: ClassVar[str | None] = "worker"
    workers: int = 1
    chunks: int = 2
    requests: int = 1
    rooms: int = 1

    def __attrs_post_init__(self) -> None:
        sizes = self.workers or 1, self.chunks or 1, self.requests or 1, self.rooms
        if not all(1 <= size <= most for size, most in zip(sizes, (8, MAX_CHUNKS, 2, MAX_CHUNKS), strict=True)):
            raise ValueError(
                f"an instance has 1 to 8 workers, 1 to {MAX_CHUNKS} chunks and rooms, 1 or 2 requests: {self}"
            )

    @property
    def any(self) -> bool:
        """Any number of workers, and of rooms."""
        return self.workers == ANY


def merge_rows(merge: Table) -> tuple[tuple[int | None, ...], ...]:
    """A merge table by index of ``status``: one row per label of the entry; None where nothing is stored.

    A tombstone is to the merge what no entry is; whether a write reaches it at all is the protocol's business.
    """
    labels = protocol.status.labels
    rows: dict[str, tuple[int | None, ...]] = {}
    for name, cells in zip((*STATUS[:5], ABSENT), merge, strict=True):
        rows[name] = tuple(None if cell == KEEP else labels.index(KVPoll(cell).name) for cell in cells)
    rows[TOMBSTONE] = rows[ABSENT]
    return tuple(rows[label] for label in labels)


def _merge(design: AnyDesign) -> tuple[tuple[int | None, ...], ...]:
    if not isinstance(design, Design):
        raise TypeError(f"{design.name} has no merge: it is no design of the room protocol")
    return merge_rows(table(design.merge))


ONE: Final = Instance(requests=1, chunks=2)
AGAIN: Final = Instance(requests=2, chunks=1)

ROOM: Final = Protocol(
    "room",
    "One request with all its actors on the prefill side, while its KV cache moves to decode.",
    sizes=Instance,
    sorts=("worker", "chunk"),
    state=STATE,
    threads=THREADS,
    rows=RULES,
    switches=SWITCHES,
    designs=DESIGNS,
    properties=PROPERTIES,
    worlds=(
        World("orderly network", "", "orderly", ONE),
        World(
            "several faults of the network",
            "d",
            "disorderly",
            ONE,
            parts=(
                World("a message is lost", "x", "lossy", ONE),
                World("a message comes early", "e", "early", ONE),
                World("a message is overdue", "o", "overdue", ONE),
                World("a message comes twice", "t", "doubling", ONE),
            ),
        ),
        World(
            "room id used again, with a late message about the first request",
            "rl",
            "late",
            AGAIN,
            parts=(World("room id used again", "r", "orderly", AGAIN),),
        ),
        World(
            "room id used again, with several faults of the network",
            "rd",
            "disorderly",
            AGAIN,
            parts=(
                World("room id used again, a message is lost", "rx", "lossy", AGAIN),
                World("room id used again, a message comes early", "re", "early", AGAIN),
                World("room id used again, a message is overdue", "ro", "overdue", AGAIN),
                World("room id used again, a message comes twice", "rt", "doubling", AGAIN),
            ),
        ),
    ),
    everything=World("everything", "", "disorderly", Instance(chunks=ANY, requests=ANY)),
    bounded=World("two chunks, two requests", "", "disorderly", Instance(chunks=2, requests=2)),
    counts=(1, 2),
    lemmas=LEMMAS,
    few=FEW,
    potential=POTENTIAL,
    lives=protocol.gen,
    numbers={protocol.job: "chunk"},
    entry=Entry(
        protocol.status,
        protocol.stamp,
        protocol.first_terminal,
        counts=protocol.fresh,
        stamped=protocol.tombstones,
        atomicity=designs.atomicity,
        standing=designs.tell == "standing",
        merge=_merge,
    ),
    home=Home(job_room, protocol.worker, "idle"),
    older=Older(
        lemmas=("old entry", "cleared", "infos are gone", "no old infos", "old workers"),
        when=protocol.tombstones,
        piles={protocol.stale: "yes", protocol.straggler: "due"},
    ),
)
