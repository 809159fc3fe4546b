"""One examination: explore, walk at random, fill a manager with a thousand rooms; then a verdict for each law.

How the plays are chosen is in ``search.py``.
"""

from __future__ import annotations

import gc
import logging
import sys
import warnings
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Generator, Iterator
from contextlib import contextmanager
from typing import Final

from kvlatch.reference.laws import Judgement, Kept, NotJudged
from kvlatch.reference.oracle.budget import Budget
from kvlatch.reference.oracle.explore import Play
from kvlatch.reference.oracle.findings import Finding
from kvlatch.reference.oracle.looks import LOOKS, looked_at
from kvlatch.reference.oracle.moves import Holds, Player
from kvlatch.reference.oracle.report import Report
from kvlatch.reference.oracle.search import Search

SECONDS: Final = 8.0
"""How much work an examination does, in seconds: counted, not timed (``budget.py``)."""
LIMIT: Final = 3_000
"""How many plays are made in one stage, unless it is done before."""
WALKS: Final = 400


def examine(
    player: Player,
    subject: str,
    laws: Collection[str],
    *,
    limit: int = LIMIT,
    seed: int = 0,
    walks: int = WALKS,
    seconds: float | None = SECONDS,
    sequential: bool = False,
    known: Collection[str] = (),
    learnt: Callable[[Report], None] | None = None,
) -> Report:
    """Hold whatever can be played against some laws; AdapterFault if it cannot be played.

    ``limit`` bounds the plays of each stage, ``walks`` the random ones, ``seconds`` all of the work, which is counted:
    so much takes about so long on a quiet core, and is the same on any machine (None: no limit).
    ``sequential`` promises that one thread at a time calls the manager. ``known`` are texts of plays to begin with.
    ``learnt`` is told what is known whenever another law is broken, in case the end is never reached.
    """
    with _abandoned():
        return _examined(player, subject, tuple(laws), limit, seed, walks, seconds, sequential, known, learnt)


def _examined(
    player: Player, subject: str, laws: tuple[str, ...], limit: int, seed: int, walks: int, seconds: float | None,
    sequential: bool, known: Collection[str], learnt: Callable[[Report], None] | None,
) -> Report:  # fmt: skip
    if isinstance(player, Holds):
        _ = player.places  # what it takes to find these is not counted: a call that hangs may use up all there is
    budget = Budget(player, seconds)
    search = Search(player, subject, laws, limit, seed, walks, sequential, budget, learnt)
    search.again(known)
    search.run()
    return search.report()


@contextmanager
def _abandoned() -> Iterator[None]:
    """A play that is ended early leaves coroutines and tasks halfway: what their end prints is nobody's fault."""
    said, log = sys.unraisablehook, logging.getLogger("asyncio")

    def unless_halfway(about: sys.UnraisableHookArgs) -> None:
        if not isinstance(about.object, (Coroutine, Generator, AsyncGenerator)):
            said(about)

    def is_whole(record: logging.LogRecord) -> bool:
        return "was destroyed but it is pending" not in record.getMessage()

    sys.unraisablehook = unless_halfway
    log.addFilter(is_whole)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r"coroutine .* was never awaited", RuntimeWarning)
            yield
            gc.collect()
    finally:
        log.removeFilter(is_whole)
        sys.unraisablehook = said


def judged(play: Play, subject: str, laws: Collection[str]) -> tuple[Judgement, ...]:
    """A judgement for each law from one play: what its end breaks, what it has looked at."""
    looks: Counter[str] = Counter()
    for before, move, seen, after in zip(play.worlds, play.moves, play.seen, play.worlds[1:], strict=False):
        looks.update(looked_at(before, move, seen, after))
    broke = play.broken()
    return tuple(
        Judgement(
            law,
            Finding(law, subject, play).answer
            if law in broke
            else Kept(looks[law], LOOKS[law].unit)
            if looks[law]
            else NotJudged(f"in this play {LOOKS[law].missing}"),
        )
        for law in laws
    )
