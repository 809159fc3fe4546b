"""What random plays draw."""

from __future__ import annotations

import random

from kvlatch.reference.oracle.wander import IDS, WIDEST, WORDS, Drawn


def test_ids() -> None:
    """All ids come, text beside numbers too, but no number beside its own text."""
    chance = random.Random(0)  # noqa: S311  # plays, no secrets
    rooms = [Drawn.of(chance, WIDEST, words=True).bounds.rooms for _ in range(2_000)]
    assert {room for some in rooms for room in some} == {*IDS, *WORDS}
    assert any({str, int} <= {type(room) for room in some} for some in rooms)
    assert all(len({str(room) for room in some}) == len(some) for some in rooms)
    only_numbers = [Drawn.of(chance, WIDEST, words=False).bounds.rooms for _ in range(200)]
    assert not any(isinstance(room, str) for some in only_numbers for room in some)
