"""A breadth-first walk over whatever can be extended: plays of the oracle, scripts of two engines.

Standard library only, and nothing of kvlatch: a child process that runs foreign code walks here too.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def breadth_first(
    first: Iterable[T], grow: Callable[[Sequence[T]], Iterable[tuple[T, Hashable | None]]], known: set[Hashable]
) -> Iterator[T]:
    """Every node that can be reached, shortest first; of nodes in the same place only the first is extended.

    ``grow`` takes all nodes of one depth and gives each longer node with its place, or with None if it is not to be
    extended. ``known`` has the places of ``first``, and gets every place that is met.
    """
    level = list(first)
    while level:
        longer = []
        for node, place in grow(level):
            if place is not None and place not in known:
                known.add(place)
                longer.append(node)
            yield node
        level = longer
