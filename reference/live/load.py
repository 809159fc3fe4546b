"""What a storm asks: how much, how fast, and by whom. All of it is drawn from the seed.

So control and treatment are asked the same, one of them perhaps for longer: see :attr:`Load.hits`.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from itertools import count
from typing import Final

import attrs

POLITE: Final = 3
"""Requests of the baseline, which come before those that are counted in a load."""
_NAMED: Final = re.compile(r"room-([0-9]{1,19})")
_NUMBERED: Final = re.compile(r"storm -?[0-9]+ request (-?[0-9]+)(?: word)*")
ROUNDS: Final = 6
"""Most rounds of a storm."""


@attrs.frozen(kw_only=True)
class Load:
    """How hard the storm blows: all bounds that it keeps.

    ``clients`` are at work at a time, until ``requests`` have been sent or ``seconds`` are over: a round. A storm has
    one round, and further ones as long as fewer than ``hits`` aborts have landed inside the window of the race, up to
    :data:`ROUNDS`. On a slow machine that takes more rounds. The rule is fixed before the storm and does not look at
    what is pinned, so runs of two builds that do not differ remain alike, and Fisher's test on them exact. Where hits
    cannot be counted, there is one round.

    With ``reuse``, a client that has hung up sends its next request at once, and with the same room id.

    ``rate`` is the most requests begun in a second, None for no limit. A client hangs up after ``patience`` seconds,
    evenly between two bounds, or, one in ``patient``, waits for its answer. Prompts are ``chunks`` long, evenly between
    two bounds. ``unread`` clients of a round never read an answer. After ``limit`` seconds even a patient one gives up.
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
    hits: int = 0
    reuse: bool = False

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


def rounds(load: Load, seed: int, chunk_tokens: int) -> Iterator[list[Ask]]:
    """What all clients do in each round, from the seed, for as many rounds as are asked for."""
    chance = random.Random(seed)  # noqa: S311  # for no secret
    numbers = count()
    while True:
        yield [_ask(load, seed, next(numbers), chance, chunk_tokens) for _ in range(load.requests)]


def _ask(load: Load, seed: int, number: int, chance: random.Random, chunk_tokens: int) -> Ask:
    chunks = chance.randint(*load.chunks)
    reads = number % load.requests >= load.unread
    waits = chance.randrange(load.patient) == 0 or not reads
    patience = None if waits else chance.uniform(*load.patience)
    stream = chance.random() < 0.5
    return Ask(number, prompt(seed, number, chunks * chunk_tokens), chunks, patience, stream, reads)


def room_id(room: int) -> str:
    """The id of a request that wants this room: the router hands it on, and draws a new room each time by itself."""
    return f"room-{room}"


def room_of(rid: object) -> int | None:
    """The room that a request id wants; None if it wants none."""
    named = _NAMED.fullmatch(rid) if isinstance(rid, str) else None
    return int(named[1]) if named else None


def prompt(seed: int, number: int, tokens: int) -> str:
    """A prompt of ``tokens`` words (four at least) that no other request has."""
    return " ".join(["storm", f"{seed}", "request", f"{number}", *["word"] * max(0, tokens - 4)])


def number_of(prompt: str) -> int | None:
    """The number of the request that has this prompt; None if it is none of a storm's."""
    numbered = _NUMBERED.match(prompt)
    return int(numbered[1]) if numbered else None
