"""Random plays, far beyond what can be explored: many rooms and uses of an id, long lives, time that jumps.

Each walk draws its own bounds, and leaves some kinds of events out: what is rare in one walk is common in another
(Groce and others, *Swarm testing*, ISSTA 2012). After its random part a walk comes to rest, so that what has to happen
at last can be asked about. A walk that breaks a law is made short by leaving moves out for as long as the law stays
broken.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Sequence
from typing import Final, Protocol, runtime_checkable

import attrs

from kvlatch.reference.oracle.budget import Enough, never
from kvlatch.reference.oracle.explore import Play, unchanged
from kvlatch.reference.oracle.formulas import broken, seems_asleep
from kvlatch.reference.oracle.harness import World
from kvlatch.reference.oracle.moves import ROOM, SCHEDULER, Bounds, Event, Move, Player, RoomId, Script, Seen, Step

IDS: Final[tuple[RoomId, ...]] = (
    0,
    1,
    ROOM,
    1023,
    1031,
    (1 << 32) + ROOM,
    (1 << 63) - 1,
    1 << 63,
    (1 << 64) - 2,
    (1 << 64) - 1,
)
"""Room ids that managers mix up: false ones, those with the same low bits, those beyond a signed word or a double."""
WORDS: Final[tuple[RoomId, ...]] = ("7", "room", "Room", "a_room_with_a_long_name")
WIDEST: Final = Bounds("disorderly", chunks=3, workers=3, requests=3, rooms=IDS, overlap=True, clock=True)
"""How far random plays go, unless the player says that it cannot be asked so much."""
STEPS: Final = 60
"""The moves of a walk, before it comes to rest."""
REST: Final = 200


class Session(Protocol):
    """One play in progress."""

    def step(self, step: Step, *, whole: bool = False) -> Seen:
        """Make one step, and say what is seen after it; ``whole``: the call goes on to its end, held nowhere."""

    def close(self) -> None:
        """End the play."""


@runtime_checkable
class Warms(Protocol):
    """A session that can let another request come and go before its play begins."""

    def warm_up(self) -> None:
        """Do so."""


@runtime_checkable
class Sessions(Protocol):
    """A player that can make a play step by step: without that, each step plays all of them again."""

    def begin(self) -> Session:
        """Begin a play on a fresh manager."""


@attrs.define
class _Again:
    """A session with a player that has none."""

    player: Player
    script: Script = ()

    def step(self, step: Step, *, whole: bool = False) -> Seen:
        self.script = (*self.script, step)
        return self.player.play([self.script])[0]

    def close(self) -> None:
        pass


@attrs.define
class Run:
    """A play in progress: what was done, and what is known now. It keeps no history of that, so it may be long."""

    bounds: Bounds
    session: Session
    world: World
    moves: list[Move] = attrs.field(factory=list)
    whole: list[bool] = attrs.field(factory=list)
    """Which of them were made as whole calls."""
    last: Seen = attrs.field(factory=lambda: Seen(None))

    @classmethod
    def begin(cls, player: Player, bounds: Bounds) -> Run:
        """Before the first move."""
        session = player.begin() if isinstance(player, Sessions) else _Again(player)
        return cls(bounds, session, World.of(bounds))

    def make(self, move: Move, *, whole: bool = False) -> tuple[World, Seen]:
        """Make a move; the world before it, and what was seen."""
        before = self.world
        if move.told:
            call = None if move.event is None else before.call(move)
            seen = self.session.step(Step(move.thread, call), whole=whole)
        else:
            seen = unchanged([self.last])
        self.world, self.last = before.after(move, seen), seen
        self.moves.append(move)
        self.whole.append(whole)
        return before, seen


# --- Where to --------------------------------------------------------------------------------------------------------

_LIKELY: Final[dict[Event, int]] = {
    "create": 6, "poll": 5, "send": 8, "clear": 6, "metadata": 6, "start": 8, "finish": 5,
    "abort": 1, "abort_notice": 1, "break": 1, "reuse": 4, "tick": 2, "wait": 1, "set_back": 1,
}  # fmt: skip
_NEAR: Final = 0.6
"""How often the calls of an interlude are of the same room."""
_MAY_BE_LEFT_OUT: Final[tuple[Event, ...]] = ("abort", "abort_notice", "break", "finish", "wait", "set_back")


@attrs.frozen
class Drawn:
    """One walk's own choices: its bounds, which events it leaves out, and how threads take turns."""

    bounds: Bounds
    without: frozenset[Event]
    leaves: float = 0.0
    """How often a thread is left at a place where it is held, for whatever move comes."""
    interludes: float = 0.0
    """How often it is held there while others make whole calls: most races are one call in the middle of another."""
    whole: bool = False
    """Each call is made as a whole: what needs no race is found soonest so."""

    @classmethod
    def of(cls, chance: random.Random, widest: Bounds, *, words: bool, sequential: bool = False) -> Drawn:
        """Choices within the widest bounds."""
        ids = list(IDS)
        if words and chance.random() < 0.15:  # nobody gets 7 and "7", so a manager may keep ids as text
            ids = [*WORDS, *(room for room in IDS if str(room) not in WORDS)]
        count = chance.choice((1, 1, 2, 2, 3))
        rooms = tuple(chance.sample(ids, count)) if len(widest.rooms) > 1 else widest.rooms
        bounds = Bounds(
            chance.choice(("orderly", "late", "disorderly", "disorderly"))
            if widest.network == "disorderly"
            else widest.network,
            chance.randint(1, widest.chunks),
            chance.randint(1, widest.workers),
            chance.randint(1, widest.requests),
            rooms,
            overlap=widest.overlap and chance.random() < 0.5,
            clock=widest.clock and chance.random() < 0.25,
        )
        without = frozenset(event for event in _MAY_BE_LEFT_OUT if chance.random() < 0.35)
        manner = "whole" if sequential else chance.choice(("whole", "whole", "interludes", "interludes", "leaves"))
        return cls(
            bounds,
            without,
            leaves=chance.choice((0.1, 0.3, 0.6)) if manner == "leaves" else 0.0,
            interludes=chance.choice((0.05, 0.15, 0.3)) if manner == "interludes" else 0.0,
            whole=manner == "whole",
        )


@attrs.define
class Turns:
    """Whose turn is next in a walk, at random."""

    chance: random.Random
    drawn: Drawn
    held: dict[str, int] = attrs.field(factory=dict)
    """The threads that are held for an interlude, each with how many more calls others may begin meanwhile."""

    def next(self, world: World, moves: Sequence[Move]) -> Move | None:
        """One of the moves; None if those that are left are all of a kind that this walk leaves out."""
        asleep = seems_asleep(world) and self.chance.random() < 0.5
        if asleep and (poll := Move(SCHEDULER, "poll", None, world.room)) in moves:
            return poll
        going_on = [move for move in moves if move.event is None]
        begin = [move for move in moves if move.event is not None and move.event not in self.drawn.without]
        if self.drawn.interludes:
            return self._with_interludes(world, going_on, begin)
        last = [move for move in going_on if move.thread == world.last_thread]
        if last and self.chance.random() >= self.drawn.leaves:
            return last[0]
        return self._one_of([*going_on, *begin])

    def _with_interludes(self, world: World, going_on: list[Move], begin: list[Move]) -> Move | None:
        """Go on with what has begun, but for the threads that are held; hold one more now and then."""
        waiting = [move for move in going_on if move.thread in self.held]
        free = [move for move in going_on if move.thread not in self.held]
        free = [move for move in free if move.thread == world.last_thread] or free
        if free and self.chance.random() < self.drawn.interludes / (1 + len(self.held)):
            self.held[free[0].thread] = self.chance.randint(1, 3)
            return self._with_interludes(world, going_on, begin)
        if free:
            return free[0]
        if begin and (not waiting or all(self.held[move.thread] for move in waiting)):
            self.held = {move.thread: self.held[move.thread] - 1 for move in waiting}
            here = [move for move in begin if waiting and move.room == world.room]
            return self._one_of(here if here and self.chance.random() < _NEAR else begin)
        if not waiting:
            return None
        on = self.chance.choice(waiting)
        del self.held[on.thread]
        return on

    def _one_of(self, wanted: Sequence[Move]) -> Move | None:
        weights = [4 if move.event is None else _LIKELY[move.event] for move in wanted]
        return self.chance.choices(wanted, weights)[0] if wanted else None


_TO_REST: Final[tuple[Event, ...]] = ("finish", "start", "clear", "send", "poll", "tick")


def to_rest(run: Run, *, whole: bool) -> Generator[tuple[Run, World, Seen]]:
    """Whatever has begun ends, whatever is settled is cleared, each is polled."""
    polled: set[tuple[int, int | None]] = set()
    for _ in range(REST):
        move = _towards_rest(run.world, polled)
        if move is None:
            break
        if move.event == "poll" and run.world.idle:
            polled.add((move.room, move.request))
        elif move.event is not None and move.event != "poll":
            polled.clear()
        yield run, *run.make(move, whole=whole)


def _towards_rest(world: World, polled: set[tuple[int, int | None]]) -> Move | None:
    moves = [move for move in world.moves() if move.event is None or move.event in _TO_REST]
    going_on = [move for move in moves if move.event is None]
    if going_on:
        return next((move for move in going_on if move.thread == world.last_thread), going_on[0])
    for event in _TO_REST:
        for move in moves:
            if move.event == event and not (event == "poll" and (move.room, move.request) in polled):
                return move
    return None


def walk(player: Player, chance: random.Random, drawn: Drawn, steps: int = STEPS) -> Generator[tuple[Run, World, Seen]]:
    """One walk: after each move the run, the world before the move, and what was seen."""
    run = Run.begin(player, drawn.bounds)
    turns = Turns(chance, drawn)
    try:
        for _ in range(steps):
            move = turns.next(run.world, list(run.world.moves()))
            if move is None:
                break
            yield run, *run.make(move, whole=drawn.whole)
        yield from to_rest(run, whole=drawn.whole)
    finally:
        run.session.close()


# --- Making plays short ---------------------------------------------------------------------------------------------


def breaking(
    player: Player, bounds: Bounds, moves: Sequence[Move], law: str, *, whole: bool = False, warm: bool = False
) -> list[Move] | None:
    """The moves up to where the law is broken, leaving out those that are not possible; None if it stays whole.

    ``warm``: another request has come and gone before them, where the player can do that.
    """
    run = Run.begin(player, bounds)
    try:
        if warm and isinstance(run.session, Warms):
            run.session.warm_up()
        for move in moves:
            if run.world.possible(move):
                run.make(move, whole=whole)
                if law in broken(run.world):
                    return run.moves
        return None
    finally:
        run.session.close()


def shortened(
    player: Player, bounds: Bounds, moves: Sequence[Move], law: str, *, whole: bool = False, enough: Enough = never
) -> tuple[Bounds, list[Move]]:
    """A play that breaks the law and of which no move can be left out, as far as the tries show; gentler bounds."""
    best = list(moves)
    size = max(1, len(best) // 2)
    while not enough():
        start, shorter = 0, False
        while start < len(best) and not enough():
            found = breaking(player, bounds, best[:start] + best[start + size :], law, whole=whole)
            if found is not None and len(found) < len(best):
                best, shorter = found, True
            else:
                start += size
        if size == 1 and not shorter:
            break
        size = max(1, size // 2)
    for change in _CHANGES:
        gentler = bounds if enough() else change(bounds, best)
        found = breaking(player, gentler, best, law, whole=whole) if gentler != bounds else None
        if found is not None and len(found) <= len(best):
            bounds, best = gentler, found
    return bounds, best


def _fewer_rooms(bounds: Bounds, moves: Sequence[Move]) -> Bounds:
    return attrs.evolve(bounds, rooms=bounds.rooms[: 1 + max((move.room for move in moves), default=0)])


_CHANGES: Final[tuple[Callable[[Bounds, Sequence[Move]], Bounds], ...]] = (
    _fewer_rooms,
    lambda bounds, _: attrs.evolve(bounds, overlap=False),
    lambda bounds, _: attrs.evolve(bounds, clock=False),
    lambda bounds, _: attrs.evolve(bounds, network="late" if bounds.network == "disorderly" else bounds.network),
    lambda bounds, _: attrs.evolve(bounds, network="orderly"),
    lambda bounds, _: attrs.evolve(bounds, chunks=max(1, bounds.chunks - 1)),
    lambda bounds, _: attrs.evolve(bounds, chunks=1),
    lambda bounds, _: attrs.evolve(bounds, workers=max(1, bounds.workers - 1)),
    lambda bounds, _: attrs.evolve(bounds, workers=1),
    lambda bounds, _: attrs.evolve(bounds, requests=max(1, bounds.requests - 1)),
    lambda bounds, _: attrs.evolve(bounds, requests=1),
)
"""Bounds that ask for less, one change at a time."""


def as_play(
    player: Player,
    bounds: Bounds,
    moves: Sequence[Move],
    places: tuple[str, ...],
    *,
    whole: bool | Sequence[bool] = False,
) -> Play:
    """The play that these moves are; ``whole``, or which of them: with those by which a call goes on to its end."""
    play = Play(bounds, places=places)
    run = Run.begin(player, bounds)
    try:
        for number, move in enumerate(moves):
            goes_on = whole if isinstance(whole, bool) else whole[number]
            next_move: Move | None = move
            while next_move is not None and run.world.possible(next_move):
                run.make(next_move)
                play = play.then(next_move, run.last)
                next_move = _on(run.world, move.thread) if goes_on else None
        return play
    finally:
        run.session.close()


def _on(world: World, thread: str) -> Move | None:
    """How a call goes on as a whole: the manager's own threads first, so that all is quiet when it returns."""
    going_on = [] if world.hung or world.crashed else list(world.going_on())
    callers = {caller for caller, _ in world.active}
    order = [*(move for move in going_on if move.thread not in callers), Move(thread)]
    return next((move for move in order if move in going_on), going_on[0] if going_on else None)
