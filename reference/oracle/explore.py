"""Looks for plays that break a law: every play within bounds, with few preemptions first, and of those shortest first.

A *play* is a sequence of moves (``harness.py``). A :class:`Player` plays one on a fresh manager and says what is seen
after its last move. Two plays in the same place are continued once. Where the player has a key for the manager's own
state that is sound; where it has none, plays that an observer cannot tell apart count as the same: a heuristic, and
reports say so.

A *preemption* is when a thread is left although it could go on. Most races need one or two (Musuvathi and Qadeer, PLDI
2007), and with few of them a run is read more easily: so plays without any come first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final

import attrs

from kvlatch.reference.oracle.budget import Enough, never
from kvlatch.reference.oracle.formulas import broken
from kvlatch.reference.oracle.harness import World
from kvlatch.reference.oracle.life import Life
from kvlatch.reference.oracle.moves import Bounds, Holds, Move, Player, Script, Seen, Step

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

    @property
    def cold(self) -> bool:
        """The manager's very first call was in progress when the second one began."""
        called = [world for world, move in zip(self.worlds, self.moves, strict=False) if move.event and move.told]
        return len(called) > 1 and bool(called[1].active)

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
    preemptions: int = -1
    """With how many all plays have been made, or were begun to be made."""
    _known: set[object] = attrs.field(factory=set)
    _open: dict[int, list[Play]] = attrs.field(factory=dict)
    """Plays that are not continued yet, by their length."""
    _due: dict[int, list[Play]] = attrs.field(factory=dict)
    """Plays that have been made, and that nobody has looked at before there may be another preemption."""
    _later: dict[int, list[Play]] = attrs.field(factory=dict)
    """Plays that took one preemption too many."""

    def deepen(self) -> Iterator[Play]:
        """The plays with one more preemption than before, shortest first; :class:`TooMany` if they are too many.

        What there were too many of before comes again, if there is room for it now.
        """
        self.preemptions += 1
        for length, plays in self._later.items():
            self._due.setdefault(length, []).extend(plays)
        self._later = {}
        if self.preemptions == 0:
            self._open = {0: [Play(self.bounds)]}
        while self._open or self._due:
            length = min((*self._open, *self._due))
            plays = self._open.pop(length, [])
            for play in self._due.pop(length, []):
                if self._is_new(play):
                    plays.append(play)
                    yield play
            yield from self._grow(length, plays)

    @property
    def left_out(self) -> int:
        """Plays that were known to be there, and not looked at or not continued."""
        return sum(map(len, (*self._open.values(), *self._due.values(), *self._later.values())))

    def _is_new(self, play: Play) -> bool:
        place = play.place
        new = place not in self._known
        self._known.add(place)
        return new

    def _grow(self, length: int, plays: Sequence[Play]) -> Iterator[Play]:
        """Plays that are longer by one move; those that may be continued are kept."""
        grown = [(play, move) for play in plays for move in play.world.moves()]
        most = len(grown) if self.limit is None else self.limit - self.plays
        for begin in range(0, len(grown), _AT_ONCE):
            some = grown[begin : begin + _AT_ONCE]
            if len(grown) > most or self.enough():
                rest = {id(play): play for play, _ in grown[begin:]}
                self._open.setdefault(length, []).extend(rest.values())
                raise TooMany
            self.plays += len(some)
            for (play, move), seen in zip(some, see(self.player, some), strict=True):
                longer = play.then(move, seen)
                if longer.world.preemptions > self.preemptions:
                    self._later.setdefault(length + 1, []).append(longer)
                    continue
                if self._is_new(longer):
                    self._open.setdefault(length + 1, []).append(longer)
                yield longer


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
