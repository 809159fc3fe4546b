"""Two calls at once, interleaved in every way: most races are between two calls, if they come at the right moment.

A *spine* is a life of whole calls. At each of its points any two calls that may overlap there are begun, and all ways
in which their threads can take turns are played, with as many preemptions as it takes: two calls have few states, since
equal ones are continued once. Each state in which both have ended is then played on until all has come to rest. What
needs more than two calls, or a point beside the spines, is left to random plays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from itertools import combinations
from typing import Final

import attrs

from kvlatch.reference.oracle.explore import Play, see
from kvlatch.reference.oracle.harness import World
from kvlatch.reference.oracle.moves import CLOCK, Bounds, Move, Player, Seen
from kvlatch.reference.oracle.wander import WIDEST, Run, to_rest

_MOST: Final = 600
"""Plays of one overlap, ..."""
_PREEMPTIONS: Final = 3
"""... and preemptions in each."""
_AT_ONCE: Final = 64
_TURNS: Final = 200
"""Steps of threads in a play of two calls that are handed over."""


@attrs.frozen
class Overlap:
    """Two calls that are made at once, after some whole ones; ``own``: the manager has threads of its own there."""

    bounds: Bounds
    before: tuple[Move, ...]
    calls: tuple[Move, Move]
    own: bool = False

    @property
    def kind(self) -> tuple[bool, str, str]:
        """Whether they are about two rooms, and which calls they are, however a transfer has ended."""
        one, other = sorted("finish" if call.event == "break" else str(call.event) for call in self.calls)
        return self.calls[0].room != self.calls[1].room, one, other


def _spine(code: str, moves: str) -> tuple[Bounds, tuple[Move, ...]]:
    return Bounds.parse(code), tuple(map(Move.parse, moves.split()))


SPINES: Final = (
    _spine("disorderly-1-1-2", "create metadata poll send start/0 finish/0 poll clear reuse create metadata"),
    _spine("disorderly-2-2-1", "create metadata poll send send start/0 start/1 finish/0 finish/1 poll clear"),
    _spine(
        "disorderly-1-2-1@7,8",
        "create metadata poll create@1 metadata@1 poll@1 send send@1 start/0 start/1@1 finish/0 finish/1@1 poll poll@1 "
        "clear clear@1",
    ),
    _spine("late-2-2-2-overlap", "create metadata poll send start/0 send abort poll clear finish/0 reuse create"),
    _spine("disorderly-1-1-1@0", "metadata create poll send start/0 break/0 poll clear"),
)
"""Lives in which all may happen: one goes well, in two transfers, beside another, is cut off, and is early."""


def overlaps(player: Player) -> list[Overlap]:
    """Those of all spines, of each kind the first before the second of any, and those about one room before others."""
    widest: Bounds = getattr(player, "widest", WIDEST)
    found = [one for spine in SPINES if _fits(spine[0], widest) for one in _along(player, *spine)]
    counts: Counter[tuple[bool, str, str]] = Counter()
    ranked: list[tuple[int, bool, int, Overlap]] = []
    for one in found:
        ranked.append((counts[one.kind], one.kind[0], len(ranked), one))
        counts[one.kind] += 1
    return [one for *_, one in sorted(ranked, key=lambda rank: rank[:3])]


def _fits(bounds: Bounds, widest: Bounds) -> bool:
    sizes = ("chunks", "workers", "requests", "overlap")
    roomy = len(bounds.rooms) <= len(widest.rooms) and (len(widest.rooms) > 1 or bounds.rooms == widest.rooms)
    return roomy and all(getattr(bounds, size) <= getattr(widest, size) for size in sizes)


def _along(player: Player, bounds: Bounds, spine: Sequence[Move]) -> Iterator[Overlap]:
    """The overlaps of one spine, as far as this manager goes along with it."""
    run = Run.begin(player, bounds)
    try:
        for move in spine:
            if not run.world.possible(move):
                continue
            calls = [one for one in run.world.moves() if one.event is not None and one.told and one.thread != CLOCK]
            for one, other in combinations(calls, 2):
                at_once = one.thread != other.thread or run.world.own  # what it posts to those may wait there
                if at_once and "tick" not in (one.event, other.event):
                    yield Overlap(bounds, tuple(run.moves), (one, other), bool(run.world.own))
            run.make(move, whole=True)
            if run.world.hung or run.world.crashed:
                return
    finally:
        run.session.close()


def handed_over(player: Player, overlap: Overlap) -> Generator[tuple[Run, World, Seen]]:
    """Both calls wait for threads of the manager's own before one of these goes on; then all take turns, to their end.

    What an event loop or a pool does with two calls depends on whether it has both: a play of each pair shows it, where
    all interleavings of the steps of a loop are far too many.
    """
    run = Run.begin(player, overlap.bounds)
    try:
        for move in overlap.before:
            run.make(move, whole=True)
        for call in overlap.calls:
            if not run.world.possible(call):
                return
            yield run, *run.make(call)
            while (on := Move(call.thread)) in run.world.going_on():
                yield run, *run.make(on)
        if not run.world.active:
            return  # nobody has to wait for another's work
        for turn in range(_TURNS):
            going_on = list(run.world.going_on())
            if not going_on:
                break
            yield run, *run.make(going_on[turn % len(going_on)])
        yield from to_rest(run, whole=True)
    finally:
        run.session.close()


def interleaved(player: Player, start: Play, calls: Sequence[Move]) -> Iterator[Play]:
    """Every way in which the threads take turns that make these calls after a play: few preemptions first, then short.

    Whoever leaves a thread that could go on preempts it, also to begin the other call.
    """
    made, known = 0, set[object]()
    waiting = {(0, 0): [start]}
    while waiting:
        plays = waiting.pop(min(waiting))
        grown = [(play, move) for play in plays for move in _next(play, calls, len(start.moves))]
        for begin in range(0, len(grown), _AT_ONCE):
            some = grown[begin : begin + _AT_ONCE]
            made += len(some)
            if made > _MOST:
                return
            for (play, move), seen in zip(some, see(player, some), strict=True):
                longer = play.then(move, seen)
                yield longer
                if longer.world.preemptions <= _PREEMPTIONS and (place := longer.place) not in known:
                    known.add(place)
                    waiting.setdefault((longer.world.preemptions, len(longer.moves)), []).append(longer)


def _next(play: Play, calls: Sequence[Move], begun: int) -> Iterator[Move]:
    for move in play.world.moves():
        if move.event is None or (move in calls and move not in play.moves[begun:]):
            yield move


def ended(play: Play, calls: Sequence[Move], begun: int) -> bool:
    """Both calls have been made, and nobody has anything left to do."""
    made = play.moves[begun:]
    return not play.world.active and play.world.quiet and all(call in made for call in calls)


def rested(player: Player, overlap: Overlap, turns: Sequence[Move]) -> Generator[tuple[Run, World, Seen]]:
    """The play once more, with these turns in the overlap, and on to where all has come to rest."""
    run = Run.begin(player, overlap.bounds)
    try:
        for move in overlap.before:
            run.make(move, whole=True)
        for move in turns:
            if not run.world.possible(move):
                return
            run.make(move)
        yield from to_rest(run, whole=True)
    finally:
        run.session.close()
