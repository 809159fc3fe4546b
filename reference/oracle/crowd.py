"""A thousand rooms in one life of a manager, some hundreds of them at once; then the first are heard of again.

What a manager keeps of rooms that are over is bounded in practice, by a count or by an age, and what falls out of it is
met by nothing shorter than this.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import Final

import attrs

from kvlatch.reference.oracle.harness import World
from kvlatch.reference.oracle.moves import BOOTSTRAP, SCHEDULER, Bounds, Call, Event, Move, Player, Seen, Step
from kvlatch.reference.oracle.wander import Run, Sessions, breaking

ROOMS: Final = 1_100
"""More than a table of a thousand has room for."""
AT_ONCE: Final = 300
"""So many live at once; the others come one after another."""
BOUNDS: Final = Bounds("disorderly", requests=2, rooms=tuple(range(ROOMS)))
_FIRST: Final = range(12)
"""The rooms that are heard of again, those that were settled first among them."""
_TRIES: Final = 5


def moves() -> Iterator[tuple[Move, int]]:
    """Every move, with the number of the request that it is about."""
    for room in range(AT_ONCE):
        yield Move(SCHEDULER, "create", None, room), 1
    for room in range(ROOMS):
        life = _life(room, short=room % 5 != 0)
        yield from ((move, 1) for move in life if room >= AT_ONCE or move.event != "create")
    for room in (*_FIRST, ROOMS // 2, ROOMS - 1):
        yield Move(BOOTSTRAP, "metadata", None, room), 1
        yield Move(BOOTSTRAP, "abort_notice", None, room), 1
        yield Move(SCHEDULER, "reuse", None, room), 2
        yield from ((move, 2) for move in _life(room, short=False))


def _life(room: int, *, short: bool) -> Iterator[Move]:
    """A room from its request's creation to its end: aborted at once, or with one transfer."""
    events: tuple[Event, ...] = ("create", "abort", "poll", "clear")
    if not short:
        events = ("create", "metadata", "poll", "send", "start", "finish", "poll", "clear")
    for event in events:
        thread = {"metadata": BOOTSTRAP, "start": "worker 0", "finish": "worker 0"}.get(event, SCHEDULER)
        yield Move(thread, event, None, room)


def crowd(player: Player) -> Generator[tuple[Run, World, Seen]]:
    """The play: after each move the run, the world before the move, and what was seen.

    A session that takes many steps at once gets them all; then it ends where an answer was not the ordinary one.
    """
    if not isinstance(player, Sessions):
        return
    run = Run.begin(player, BOUNDS)
    try:
        at_once = getattr(run.session, "steps", None)
        sights = None if at_once is None else iter(at_once(_steps()))
        for move, _ in moves():
            if not run.world.possible(move):
                if sights is not None:
                    return
                continue
            if sights is None or not move.told:
                yield run, *run.make(move, whole=True)
                continue
            seen = next(sights, None)
            if seen is None:
                return
            before, run.world, run.last = run.world, run.world.after(move, seen), seen
            run.moves.append(move)
            run.whole.append(True)
            yield run, before, seen
    finally:
        run.session.close()


def _steps() -> list[Step]:
    """The calls, as long as every answer is the ordinary one."""
    return [
        Step(move.thread, Call(move.event, request, 0, True, BOUNDS.rooms[move.room]))
        for move, request in moves()
        if move.told and move.event is not None
    ]


def with_fewer_rooms(player: Player, made: Sequence[Move], law: str) -> list[Move]:
    """The moves of the room that breaks the law in the end, and of fewer others, as a few tries show."""
    room = made[-1].room
    others = list(dict.fromkeys(move.room for move in made if move.room != room))

    def tried(count: int) -> list[Move] | None:
        kept = {room, *others[:count]}
        return breaking(player, BOUNDS, [move for move in made if move.room in kept], law, whole=True)

    alone = tried(0)
    if alone is not None or not at_will(player):
        return alone or list(made)
    least, enough, best = 0, len(others), list(made)
    for _ in range(_TRIES):
        middle = (least + enough) // 2
        found = tried(middle)
        if found is None:
            least = middle
        else:
            enough, best = middle, found
    return best


def at_will(player: Player) -> bool:
    """Whether a play of thousands of calls may be made again and again: not by exchanging lines."""
    return bool(getattr(player, "splits", True))


def numbered_anew(made: Sequence[Move]) -> tuple[Bounds, list[Move]]:
    """The same moves within bounds that have no more rooms than they speak of, in the order in which they come."""
    rooms = {room: number for number, room in enumerate(dict.fromkeys(move.room for move in made))}
    bounds = attrs.evolve(BOUNDS, rooms=tuple(BOUNDS.rooms[room] for room in rooms))
    return bounds, [attrs.evolve(move, room=rooms[move.room]) for move in made]
