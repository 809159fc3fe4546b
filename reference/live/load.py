"""What a storm asks: how much, how fast, and by whom. All of it is drawn from the seed before the storm begins.

So control and treatment are asked the same.
"""

from __future__ import annotations

import random
from typing import Final

import attrs

POLITE: Final = 3
"""Requests of the baseline, which come before those that are counted in a load."""


@attrs.frozen(kw_only=True)
class Load:
    """How hard the storm blows: all bounds that it keeps.

    ``clients`` are at work at a time, until ``requests`` have been sent or ``seconds`` are over; ``rate`` is the most
    requests begun in a second, None for no limit. A client hangs up after ``patience`` seconds, evenly between
    two bounds, or, one in ``patient``, waits for its answer. Prompts are ``chunks`` long, evenly between two bounds.
    ``unread`` clients never read an answer. After ``limit`` seconds even a patient one gives up.
    """

    requests: int
    clients: int
    seconds: float
    patience: tuple[float, float]
    chunks: tuple[int, int] = (4, 10)
    rate: float | None = None
    unread: int = 0
    patient: int = 4
    limit: float = 20.0

    def __attrs_post_init__(self) -> None:
        for name in ("patience", "chunks"):
            least, most = getattr(self, name)
            if least > most:
                raise ValueError(f"{name}: the least, {least:g}, is more than the most, {most:g}")


@attrs.frozen
class Ask:
    """What one client does; ``patience`` is None for one that waits."""

    number: int
    prompt: str
    chunks: int
    patience: float | None
    stream: bool
    reads: bool = True


def asks(load: Load, seed: int, chunk_tokens: int) -> list[Ask]:
    """What all clients do, from the seed."""
    chance = random.Random(seed)  # noqa: S311  # for no secret
    drawn = []
    for number in range(load.requests):
        chunks = chance.randint(*load.chunks)
        reads = number >= load.unread
        waits = chance.randrange(load.patient) == 0 or not reads
        patience = None if waits else chance.uniform(*load.patience)
        stream = chance.random() < 0.5
        drawn.append(Ask(number, prompt(seed, number, chunks * chunk_tokens), chunks, patience, stream, reads))
    return drawn


def prompt(seed: int, number: int, tokens: int) -> str:
    """A prompt of so many words that no other request has."""
    return " ".join(["storm", f"{seed}", "request", f"{number}", *["word"] * max(0, tokens - 4)])
