"""The worlds in which a counterexample is looked for, gentlest first; a proof is for all of them at once.

A maintainer rightly asks what a counterexample needs. So the search tries an orderly network and a single request
first, and only what holds there is tried with lost, doubled, early and late messages, then with a room id that is used
again, then with both. The suffix says in the matrix which world it took.
"""

from __future__ import annotations

from typing import Final

import attrs

from kvlatch.spec.designs import Network
from kvlatch.spec.model import ANY, Instance


@attrs.frozen
class World:
    """A network, how many requests use the room id, how many chunks each has."""

    name: str
    suffix: str
    network: Network
    requests: int
    chunks: int

    def instance(self, workers: int) -> Instance:
        """The instance of this world with so many workers."""
        return Instance(workers=workers, chunks=self.chunks, requests=self.requests)


WORLDS: Final = (
    World("orderly network", "", "orderly", requests=1, chunks=2),
    World("disorderly network", "d", "disorderly", requests=1, chunks=2),
    World("room id used again", "r", "late", requests=2, chunks=1),
    World("room id used again, disorderly network", "dr", "disorderly", requests=2, chunks=1),
)

EVERYTHING: Final = World("everything", "", "disorderly", requests=2, chunks=2)
"""The world of proofs: every run of every world above is one of its runs."""

WORKERS: Final = (1, 2)
"""The numbers of transfer workers of the matrix."""


def scope_of(workers: int) -> str:
    """What a proof is about, in words: so many workers, or any number."""
    many = "any number of rooms and workers" if workers == ANY else f"one room, up to {workers} workers"
    return f"{many}; {EVERYTHING.chunks} chunks, {EVERYTHING.requests} requests on a room id, disorderly network"
