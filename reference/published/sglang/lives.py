"""Lives of one request of one chunk, and their plays with one preemption: what inclusion in the rows is about.

Messages come in order, each once; besides, up to two of an abort by the client, an abort notice and a failed transfer,
at every place where an engine can have them. One operation is left before any access of the tables, any lock, any word
to decode or in its transfer, while one, two, … operations of other threads go on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations
from math import inf
from typing import Final

import attrs

from kvlatch.reference.published.sglang.explore import NOT_HELD, why_left_out
from kvlatch.reference.published.sglang.judge import play_all
from kvlatch.reference.published.sglang.plays import REST, Play
from kvlatch.reference.published.sglang.scenarios import (
    ABORT,
    BREAK,
    CLEAR,
    CREATE,
    METADATA,
    NOTICE,
    POLL,
    SEND_LAST,
    SETTLE,
    TIMEOUT,
    WORK,
)  # fmt: skip
from kvlatch.reference.published.sglang.scripts import Script, Step
from kvlatch.reference.published.sglang.subjects import Subject
from kvlatch.spec.status import F

Life = tuple[Step, ...]
IN_TRANSFER: Final = 0
"""Instead of the number of an access: a worker is left in its transfer."""
_BATCH: Final = 400
_MOST: Final = 18
"""More accesses than an operation makes."""
_ROUNDS: Final = ((IN_TRANSFER, 2), (3, 5), (6, 8), (9, 11), (12, _MOST))
"""From one round to the next it is known which operations have no further access."""
_PATIENCE: Final = 600.0


def lives() -> Iterator[Life]:
    """Whole operations in the orders that an engine allows."""
    base = (CREATE, METADATA, POLL, SEND_LAST, WORK, SETTLE)
    events = (ABORT, NOTICE, BREAK)
    for some in [(), *((one,) for one in events), *combinations(events, 2)]:
        yield from _with(base, some)
    yield (CREATE, METADATA, NOTICE, POLL, CLEAR)
    for ended in ((ABORT, POLL, CLEAR), (TIMEOUT, CLEAR)):
        yield (CREATE, *ended)
        for place in range(len(ended) + 1):
            yield (CREATE, *ended[:place], METADATA, *ended[place:])


def _with(life: Life, events: Sequence[Step]) -> Iterator[Life]:
    """The life with these events at every place."""
    if not events:
        yield life
        return
    first, *others = events
    for place in range(life.index(METADATA) + 1, len(life)):
        if first is ABORT and life.index(POLL) < place <= life.index(SEND_LAST):
            continue  # while a request is computed, an abort reaches no sender
        yield from _with((*life[:place], first, *life[place:]), others)


@attrs.frozen
class _Paused:
    """A script in which an operation of a life is left: which one of which life, and before which access."""

    script: Script
    place: tuple[int, int]
    access: int


def _paused(number: int, life: Life) -> Iterator[_Paused]:
    for index, step in enumerate(life):
        if step is BREAK:
            continue
        for access in range(IN_TRANSFER if step is WORK else 1, _MOST + 1):
            part = attrs.evolve(step, part="step" if access else "post")
            for others in range(1, len(life) - index):
                following = life[index + others]
                if following.thread == step.thread:
                    break  # the thread has to end this operation first
                if (step, following) == (METADATA, POLL) and SEND_LAST in life:
                    break  # the request would not be admitted
                after = index + 1 + others
                script = (*life[:index], *[part] * max(1, access), *life[index + 1 : after],
                          attrs.evolve(step, part="finish"), *life[after:], *REST)  # fmt: skip
                yield _Paused(script, (number, index), access)


@attrs.define
class Plays:
    """The plays of all lives on one backend of a subject, or every n-th of them, each as soon as it is made.

    ``left_out`` counts those that no engine could make, by the reason. Raises as ``scripts.outcomes`` does.
    """

    subject: Subject
    backend: str
    every: int = 1
    left_out: Counter[str] = attrs.field(factory=Counter)

    def __iter__(self) -> Iterator[Play]:
        known = list(lives())
        left = [one for number, life in enumerate(known) for one in _paused(number, life)][:: self.every]
        accesses: dict[tuple[int, int], float] = {}
        yield from self._played([_Paused((*life, *REST), (-1, -1), IN_TRANSFER) for life in known], accesses)
        for first, last in _ROUNDS if self.every == 1 else [(IN_TRANSFER, _MOST)]:
            some = [one for one in left if first <= one.access <= min(last, accesses.get(one.place, inf))]
            yield from self._played(some, accesses)

    def _played(self, some: Sequence[_Paused], accesses: dict[tuple[int, int], float]) -> Iterator[Play]:
        """Make plays; where an operation has no such access, it is not looked for at later ones."""
        for start in range(0, len(some), _BATCH):
            batch = some[start : start + _BATCH]
            scripts = [one.script for one in batch]
            made = play_all(self.subject, self.backend, scripts, timeout=_PATIENCE)
            for one, play in zip(batch, made, strict=True):
                reason = _no_play(play)
                if reason is None:
                    yield play
                elif reason != NOT_HELD:
                    self.left_out[reason] += 1
                elif one.access:
                    accesses[one.place] = min(one.access - 1, accesses.get(one.place, inf))


def _no_play(play: Play) -> str | None:
    """Why no engine could make the play; None if one could."""
    if reason := why_left_out(play):
        return reason
    failed = False
    for _, step, seen in play.steps:
        failed |= step.op in ("poll", "timeout") and seen.value == F
        if step.op == "clear" and not failed:
            return "a request that has not failed is cleared"
    return None
