"""Looks for plays that break a law: every play within bounds, with few preemptions first, and of those shortest first.

A *play* is a sequence of moves (``harness.py``). A :class:`Player` plays one on a fresh manager and says what is seen
after its last move. Two plays in the same place are continued once. Where the player has a key for the manager's own
state that is sound; where it has none, plays that an observer cannot tell apart count as the same: a heuristic, and
reports say so.

A *preemption* is when a thread is left although it could go on. Most races need one or two (Musuvathi and Qadeer, PLDI
2007), and with few of them a run is read more easily: so plays without any come first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final

import attrs

from kvlatch.reference.oracle.budget import Enough, never
from kvlatch.reference.oracle.formulas import broken
from kvlatch.reference.oracle.harness import World
from kvlatch.reference.oracle.life import Life
from kvlatch.reference.oracle.moves import Bounds, Holds, Move, Player, Script, Seen, Step
from kvlatch.reference.walk import breadth_first

STAGES: Final = (
    Bounds(),
    Bounds(network="disorderly"),
    Bounds(network="late", requests=2),
    Bounds(chunks=2),
    Bounds(chunks=2, workers=2),
)
"""Where plays are looked for, gentlest first: a law is reported with the gentlest bounds that break it."""
PREEMPTIONS: Final = 2
_AT_ONCE: Final = 64
"""How many plays a player gets at a time."""


@attrs.frozen
class Play:
    """A sequence of moves, what was seen after each, and what the harness then knew; the first world precedes them.

    ``places`` are those in the manager's code at which threads were held, where the player finds them by itself.
    """

    bounds: Bounds
    moves: tuple[Move, ...] = ()
    seen: tuple[Seen, ...] = ()
    worlds: tuple[World, ...] = attrs.field(
        default=attrs.Factory(lambda self: (World.of(self.bounds),), takes_self=True)
    )
    script: Script = ()
    places: tuple[str, ...] = ()

    @property
    def world(self) -> World:
        """What the harness knows in the end."""
        return self.worlds[-1]

    @property
    def life(self) -> Life:
        """What it knows of the room in which something has happened last."""
        return self.world.life

    @property
    def lives(self) -> tuple[Life, ...]:
        """What it knew of the first room all along."""
        return tuple(world.lives[0] for world in self.worlds)

    @property
    def place(self) -> tuple[World, bytes | None]:
        """Plays with equal places are continued once: what the harness knows, and the player's key where it has one."""
        key = self.seen[-1].key if self.seen else None
        active = self.world.active
        if key is not None:  # it tells more than what the threads have found
            active = tuple((thread, attrs.evolve(one, trail=())) for thread, one in active)
        life = attrs.evolve(self.life, polled=None, resumed=False)
        lives = (*self.world.lives[: self.world.room], life, *self.world.lives[self.world.room + 1 :])
        return attrs.evolve(self.world, lives=lives, active=active, preemptions=0, room=0), key

    def extended(self, move: Move) -> Script:
        """The script of this play and one more move."""
        call = None if move.event is None else self.world.call(move)
        return (*self.script, Step(move.thread, call)) if move.told else self.script

    def then(self, move: Move, seen: Seen) -> Play:
        """This play and one more move."""
        return attrs.evolve(
            self,
            moves=(*self.moves, move),
            seen=(*self.seen, seen),
            worlds=(*self.worlds, self.world.after(move, seen)),
            script=self.extended(move),
        )

    def broken(self) -> list[str]:
        """The laws that its end breaks."""
        return broken(self.world)

    def __str__(self) -> str:
        """The bounds, the places if threads were held at some, and the moves, as :func:`replay` takes them."""
        places = [f"{_HELD}{','.join(self.places)}"] if self.places else []
        return " ".join([self.bounds.code, *places, *map(str, self.moves)])


_HELD: Final = "held="


class TooMany(Exception):
    """There are more plays than were asked for, or than there is work for."""


@attrs.define
class Exploration:
    """Every play within bounds, with one more preemption each time it is deepened."""

    player: Player
    bounds: Bounds
    limit: int | None = None
    """The most plays."""
    enough: Enough = never
    """Says when to stop, between some plays and the next."""
    plays: int = 0
    left_out: int = 0
    """Plays that were known to be there, and not continued or not made."""
    preemptions: int = -1
    """With how many all plays have been made, or were begun to be made."""
    _known: set[object] = attrs.field(factory=set)
    _waiting: dict[int, list[Play]] = attrs.field(factory=dict)
    """Plays that took one preemption too many, by their length: they have been made, and nobody has looked at them."""
    _pending: dict[int, list[Play]] = attrs.field(factory=dict)

    def deepen(self) -> Iterator[Play]:
        """The plays with one more preemption than before, shortest first; :class:`TooMany` if they are too many."""
        self.preemptions += 1
        self._pending, self._waiting = self._waiting, {}
        if self.preemptions == 0:
            self._pending = {0: [Play(self.bounds)]}
        while self._pending:
            shortest = [play for play, place in self._due(min(self._pending)) if place is not None]
            yield from (play for play in shortest if play.moves)
            yield from breadth_first(shortest, self._grow, self._known)
        self.left_out = sum(map(len, self._waiting.values()))

    def _due(self, length: int) -> Iterator[tuple[Play, object]]:
        """The plays of a length that have waited, each with its place; without one if somebody has come there since."""
        for play in self._pending.pop(length, []):
            place = play.place
            if place not in self._known:
                self._known.add(place)
                yield play, place

    def _grow(self, plays: Sequence[Play]) -> Iterable[tuple[Play, object]]:
        grown = [(play, move) for play in plays for move in play.world.moves()]
        most = len(grown) if self.limit is None else self.limit - self.plays
        for begin in range(0, len(grown), _AT_ONCE):
            some = grown[begin : begin + _AT_ONCE]
            if len(grown) > most or self.enough():
                waiting = sum(map(len, (*self._waiting.values(), *self._pending.values())))
                self.left_out = len(grown) - begin + waiting
                raise TooMany
            self.plays += len(some)
            for (play, move), seen in zip(some, see(self.player, some), strict=True):
                longer = play.then(move, seen)
                if longer.world.preemptions <= self.preemptions:
                    yield longer, longer.place
                else:
                    self._waiting.setdefault(len(longer.moves), []).append(longer)
        for waited in self._pending.pop(len(plays[0].moves) + 1, []):
            yield waited, waited.place


def see(player: Player, grown: Sequence[tuple[Play, Move]]) -> list[Seen]:
    """What each longer play shows; what the manager is not told changes nothing that is seen of it."""
    told = [play.extended(move) for play, move in grown if move.told]
    sights = iter(player.play(told))
    return [next(sights) if move.told else unchanged(play.seen[-1:]) for play, move in grown]


def unchanged(before: Sequence[Seen]) -> Seen:
    """What is seen after a move of which the manager is not told."""
    last = before[-1] if before else Seen(None)
    return Seen(last.status, threads=last.threads, key=last.key)


def walk(player: Player, bounds: Bounds) -> Iterator[Play]:
    """Every play within bounds without a preemption, shortest first."""
    yield from Exploration(player, bounds).deepen()


@attrs.frozen
class Explored:
    """What an exploration has found: a play for each broken law; ``complete`` if nothing was left out."""

    found: dict[str, Play]
    plays: int
    complete: bool


def explore(
    player: Player, bounds: Bounds, laws: Collection[str], *, preemptions: int = PREEMPTIONS, limit: int = 20_000
) -> Explored:
    """Every play within bounds until each of the laws is broken or ``limit`` plays have been made."""
    found: dict[str, Play] = {}
    exploration = Exploration(player, bounds, limit)
    try:
        for _ in range(preemptions + 1):
            for play in exploration.deepen():
                for law in play.broken():
                    if law in laws:
                        found.setdefault(law, play)
                if len(found) == len(laws):
                    return Explored(found, exploration.plays, complete=True)
    except TooMany:
        return Explored(found, exploration.plays, complete=False)
    return Explored(found, exploration.plays, complete=True)


def parse(text: str) -> tuple[Bounds, tuple[str, ...], list[Move]]:
    """The bounds, the places where threads are held, and the moves of a play's text; ValueError if it is not one."""
    code, *words = text.split() or [""]
    bounds = Bounds.parse(code)
    places: tuple[str, ...] = ()
    if words and words[0].startswith(_HELD):
        places = tuple(words.pop(0).removeprefix(_HELD).split(","))
    return bounds, places, [Move.parse(word) for word in words]


def replay(player: Player, text: str) -> Play:
    """Play what a play's text says; ValueError if it is not one, or names the first move that is not possible."""
    bounds, places, moves = parse(text)
    if places and isinstance(player, Holds):
        player.hold(places)
    play = Play(bounds, places=places)
    for number, move in enumerate(moves, 1):
        if not play.world.possible(move):
            possible = ", ".join(map(str, play.world.moves()))
            raise ValueError(f"move {number}, {move}, is not possible there; possible are {possible}")
        play = play.then(move, see(player, [(play, move)])[0])
    return play
