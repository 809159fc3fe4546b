"""Looks for plays that break a law: every play within bounds, shortest first; then random ones beyond them.

A *play* is a sequence of moves (``harness.py``). A :class:`Player` plays one on a fresh manager and says what is seen
after its last move. :func:`explore` is exhaustive: breadth first, so what it finds is shortest. Two plays that an
observer cannot tell apart are continued once; that is sound for what is found, and complete as far as the manager has
no state that no observation shows. :func:`wander` makes no such assumption: Hypothesis draws plays from the moves that
are possible, deeper, and shrinks what breaks.

The number of *preemptions* is bounded: how often a thread is left although it could go on. Most races need one or two
(Musuvathi and Qadeer, PLDI 2007), and with few of them a trace is read more easily.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final

import attrs
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from kvlatch.reference.oracle.formulas import broken
from kvlatch.reference.oracle.harness import Life
from kvlatch.reference.oracle.moves import Bounds, Move, Player, Script, Seen, Step
from kvlatch.reference.walk import breadth_first

STAGES: Final = (
    Bounds(),
    Bounds(network="disorderly"),
    Bounds(network="late", requests=2),
    Bounds(chunks=2),
    Bounds(chunks=2, workers=2),
)
"""Where plays are looked for, gentlest first: a law is reported with the gentlest bounds that break it."""
BEYOND: Final = Bounds(network="disorderly", chunks=2, workers=2, requests=2)


@attrs.frozen
class Play:
    """A sequence of moves, what was seen after each, and what the harness then knew; the first life precedes them."""

    bounds: Bounds
    moves: tuple[Move, ...] = ()
    seen: tuple[Seen, ...] = ()
    lives: tuple[Life, ...] = attrs.field(default=attrs.Factory(lambda self: (Life.of(self.bounds),), takes_self=True))
    script: Script = ()

    @property
    def life(self) -> Life:
        """What the harness knows in the end."""
        return self.lives[-1]

    @property
    def place(self) -> tuple[Life, bytes | None]:
        """Plays with equal places are continued once: what the harness knows, and the player's key where it has one."""
        key = self.seen[-1].key if self.seen else None
        active = self.life.active
        if key is not None:  # it tells more than what the threads have found
            active = tuple((thread, attrs.evolve(one, trail=())) for thread, one in active)
        return attrs.evolve(self.life, polled=None, active=active), key

    def extended(self, move: Move) -> Script:
        """The script of this play and one more move."""
        call = None if move.event is None else self.life.call(move)
        return (*self.script, Step(move.thread, call)) if move.told else self.script

    def then(self, move: Move, seen: Seen) -> Play:
        """This play and one more move."""
        lives = (*self.lives, self.life.after(move, seen))
        return attrs.evolve(
            self,
            moves=(*self.moves, move),
            seen=(*self.seen, seen),
            lives=lives,
            script=self.extended(move),
        )

    def broken(self) -> list[str]:
        """The laws that its end breaks."""
        return broken(self.life)

    def __str__(self) -> str:
        """The bounds and the moves, as :func:`replay` takes them."""
        return " ".join([self.bounds.code, *map(str, self.moves)])


@attrs.frozen
class Explored:
    """What an exploration has found: a shortest play for each broken law; ``complete`` if nothing was left out."""

    found: dict[str, Play]
    plays: int
    complete: bool


def explore(
    player: Player, bounds: Bounds, laws: Collection[str], *, preemptions: int = 2, limit: int = 20_000
) -> Explored:
    """Every play within bounds, shortest first, until each of the laws is broken or ``limit`` plays have been made."""
    found: dict[str, Play] = {}
    plays = 0
    try:
        for play in walk(player, bounds, preemptions=preemptions, limit=limit):
            plays += 1
            for law in play.broken():
                if law in laws:
                    found.setdefault(law, play)
            if len(found) == len(laws):
                break
    except TooMany:
        return Explored(found, plays, complete=False)
    return Explored(found, plays, complete=True)


class TooMany(Exception):
    """There are more plays than were asked for."""


def walk(player: Player, bounds: Bounds, *, preemptions: int = 2, limit: int | None = None) -> Iterator[Play]:
    """Every play within bounds that is new, shortest first; :class:`TooMany` before there are more than ``limit``."""
    made = 0

    def grow(plays: Sequence[Play]) -> Iterable[tuple[Play, tuple[Life, bytes | None] | None]]:
        nonlocal made
        grown = [(play, move) for play in plays for move in play.life.moves()]
        made += len(grown)
        if limit is not None and made > limit:
            raise TooMany
        for (play, move), seen in zip(grown, _see(player, grown), strict=True):
            longer = play.then(move, seen)
            yield longer, longer.place if longer.life.preemptions <= preemptions else None

    first = Play(bounds)
    yield from breadth_first([first], grow, {first.place})


def _see(player: Player, grown: Sequence[tuple[Play, Move]]) -> list[Seen]:
    """What each longer play shows; what the manager is not told changes nothing that is seen of it."""
    told = [play.extended(move) for play, move in grown if move.told]
    sights = iter(player.play(told))
    return [next(sights) if move.told else _unchanged(play) for play, move in grown]


def _unchanged(play: Play) -> Seen:
    return Seen(play.seen[-1].status if play.seen else None)


def replay(player: Player, text: str) -> Play:
    """Play what a play's text says; ValueError if it is none, or names the first move that is not possible."""
    code, *words = text.split() or [""]
    play = Play(Bounds.parse(code))
    for number, move in enumerate(map(Move.parse, words), 1):
        if move not in set(play.life.moves()):
            possible = ", ".join(map(str, play.life.moves()))
            raise ValueError(f"move {number}, {move}, is not possible there; possible are {possible}")
        play = play.then(move, _see(player, [(play, move)])[0])
    return play


class _Broken(Exception):
    """A law is broken by the end of a play."""


def wander(
    player: Player,
    laws: Collection[str],
    *,
    bounds: Bounds = BEYOND,
    walk: int = 0,
    examples: int = 60,
    steps: int = 40,
) -> dict[str, Play]:
    """Random plays, each law's shrunk; ``walk`` is the seed."""
    found: dict[str, Play] = {}

    @seed(walk)
    @settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        print_blob=False,
    )
    @given(st.data())
    def walks(data: st.DataObject) -> None:
        play = Play(bounds)
        for _ in range(steps):
            possible = list(play.life.moves())
            if not possible:
                return
            move = possible[data.draw(st.integers(0, len(possible) - 1))]
            play = play.then(move, _see(player, [(play, move)])[0])
            if broken := [law for law in play.broken() if law in laws and law not in found]:
                last[:] = [(broken[0], play)]
                raise _Broken(broken[0])

    last: list[tuple[str, Play]] = []
    while len(found) < len(laws):
        try:
            walks()
        except _Broken:
            law, play = last[0]
            found[law] = play
        else:
            break
    return found
