"""Random plays for tests: within bounds that a player can be asked about, and what they break."""

from __future__ import annotations

import random

from kvlatch.reference.oracle.formulas import broken
from kvlatch.reference.oracle.moves import Bounds, Player
from kvlatch.reference.oracle.wander import Drawn, walk


def wandered(player: Player, widest: Bounds, *, walks: int, seed: int = 0) -> set[str]:
    """The laws that some random play within these bounds breaks."""
    chance = random.Random(seed)  # noqa: S311  # plays, no secrets
    found: set[str] = set()
    for _ in range(walks):
        for run, _before, _seen in walk(player, chance, Drawn.of(chance, widest, words=False)):
            found.update(broken(run.world))
    return found
