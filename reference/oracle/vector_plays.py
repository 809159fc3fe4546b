"""Which plays are worth a test vector: those that between them meet every situation, and for each law one that bites.

A *situation* is what stands in the table, which event comes, and of which request in whose life. The plays are those
of ``latch`` within small bounds; which situations there are is found by making all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final, Literal

import attrs

from kvlatch.reference.oracle.explore import Play, walk
from kvlatch.reference.oracle.formulas import broken
from kvlatch.reference.oracle.harness import World
from kvlatch.reference.oracle.moves import SCHEDULER, Bounds, Move, Player, Seen
from kvlatch.reference.oracle.process import reply
from kvlatch.reference.oracle.spec_manager import SpecManager
from kvlatch.reference.oracle.wrong_managers import LATCH, WRONG, Wrong
from kvlatch.spec.properties import BY_NAME
from kvlatch.spec.status import ABSENT, KVPoll

Size = Literal["small", "medium", "large"]
COVERED: Final = (
    Bounds(network="disorderly", chunks=2),
    Bounds(network="late", chunks=2, requests=2),
    Bounds(network="disorderly", requests=2),
)
"""Every situation that can arise within these bounds has a vector, of every size."""
BEYOND: Final = (
    *COVERED,
    Bounds(network="disorderly", chunks=2, workers=2),
    Bounds(network="disorderly", chunks=2, requests=2),
)
"""Where the large ones come from."""


@attrs.frozen
class Situation:
    """The table's entry, the event that comes, the request it is about, and the request whose life it is."""

    status: str
    event: str
    request: int
    life: int

    @classmethod
    def of(cls, world: World, move: Move) -> Situation:
        """The situation in which a move is made that the manager is told of."""
        call = world.call(move)
        return cls(world.life.status, call.event, call.request, world.life.request)

    def __str__(self) -> str:
        event = {"break": "a transfer fails", "finish": "a transfer ends well"}.get(self.event, self.event)
        whose = f"request {self.request}" + (
            f", in the life of request {self.life}" if self.request != self.life else ""
        )
        return f"{event.replace('_', ' ')} ({whose}) while the table says {self.status}"


@attrs.frozen(eq=False)
class Chosen:
    """A play of ``latch``, and why it was chosen."""

    slug: str
    says: str
    play: Play


def situations(play: Play) -> list[Situation]:
    """Every situation that a play meets."""
    return [Situation.of(world, move) for world, move in zip(play.worlds, play.moves, strict=False) if move.told]


def breaks(world: World) -> Iterator[str]:
    """The spec's properties that are broken now, or at the next poll if it reads the sender's latch or the table.

    Pages go back within the call that makes it due: there is no tick in a vector.
    """
    yield from _broken(attrs.evolve(world, ticked=True))
    life = world.life
    said = life.status if life.now.latch == "none" else life.now.latch
    poll = Move(SCHEDULER, "poll")
    if said != ABSENT and world.possible(poll):
        status = None if life.status == ABSENT else KVPoll[life.status]
        yield from _broken(world.after(poll, Seen(status, answer=KVPoll[said])))


@lru_cache(maxsize=1 << 14)
def _broken(world: World) -> list[str]:
    return [law for law in broken(world) if law in BY_NAME]


def breaches(manager: Player, play: Play) -> set[str]:
    """The laws that a manager breaks by its first answer in a play that is not ``latch``'s."""
    script = iter(play.script)
    made = []
    for world, move, seen in zip(play.worlds, play.moves, play.seen, strict=False):
        if move.told:
            made.append(next(script))
            if (sight := manager.play([tuple(made)])[0]) != seen:
                return set(breaks(world.after(move, sight)))
    return set()


# --- Choosing -------------------------------------------------------------------------------------


def choose(size: Size, laws: Sequence[str]) -> list[Chosen]:
    """The plays of one size, shortest first, then those about the laws.

    ``small`` has few plays that meet every situation, ``medium`` a shortest play to each of them within each of the
    bounds, ``large`` one to each answer that is given in each of them.
    """
    latch = SpecManager(LATCH)
    plays = _shortest(latch, size)
    if size == "small":
        plays = _cover(plays)
    return [_about(play) for play in plays] + [_catching(latch, wrong) for wrong in WRONG if wrong.law in laws]


def _shortest(latch: SpecManager, size: Size) -> list[Play]:
    """A shortest play to each situation; but for ``small``, within each bounds; for ``large``, to each answer there."""
    found: dict[tuple[object, ...], Play] = {}
    for bounds in BEYOND if size == "large" else COVERED:
        for play in walk(latch, bounds):
            before, move = play.worlds[-2], play.moves[-1]
            if move.told:
                situation = Situation.of(before, move)
                answer = str(reply(before.call(move), play.seen[-1]))
                keys = {"small": (situation,), "medium": (situation, bounds), "large": (situation, bounds, answer)}
                found.setdefault(keys[size], play)
    return sorted(found.values(), key=lambda play: len(play.moves))


def _cover(plays: list[Play]) -> list[Play]:
    """Few of the plays, which meet every situation that all of them meet: each time the one that adds most."""
    left = {situation for play in plays for situation in situations(play)}
    cover = []
    while left:
        best = max(plays, key=lambda play: len(left.intersection(situations(play))))
        left.difference_update(situations(best))
        cover.append(best)
    return sorted(cover, key=lambda play: len(play.moves))


def _about(play: Play) -> Chosen:
    last = Situation.of(play.worlds[-2], play.moves[-1])
    return Chosen(f"{last.event}-while-{last.status}".replace("_", "-").lower(), f"In the end: {last}.", play)


def _catching(latch: SpecManager, wrong: Wrong) -> Chosen:
    """A shortest play in which a manager that is wrong breaks its law."""
    for play in walk(latch, wrong.bounds):
        if play.moves[-1].told and wrong.law in breaches(wrong.manager, play):
            says = f"{BY_NAME[wrong.law].says} A manager fails here that {wrong.says}."
            return Chosen(wrong.law, says, play)
    raise ValueError(f"no play within {wrong.bounds} catches the manager that {wrong.says}")
