"""What is broken now, and what could have been: a room as a state of the spec, asked by the spec's own formulas.

What the spec calls the status is what the table says, and the rest of the state is what the harness knows. The
properties about a poll are asked about what a poll has just said. Each request is asked about as the one that lives:
what is played with another one is the past or the future to it.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Final

import attrs

from kvlatch.reference.laws import NO_CRASH, NO_DEADLOCK, TOLD_ONCE
from kvlatch.reference.oracle.harness import World
from kvlatch.reference.oracle.life import Life, Request
from kvlatch.reference.oracle.moves import BOOTSTRAP, SCHEDULER, Bounds
from kvlatch.spec import protocol
from kvlatch.spec.designs import DESIGNS
from kvlatch.spec.model import Instance, Machine, named
from kvlatch.spec.properties import PROPERTIES
from kvlatch.spec.status import ABSENT, B, F, S, T, W
from kvlatch.spec.terms import State, Term, Var

_LOST_WAKEUP: Final = "no-lost-wakeup"
_POLLED: Final = ("terminal-sticky", "success-not-overwritten", "no-pin", _LOST_WAKEUP)
"""The properties about what the next poll will read: here, about what a poll has just said.

A wake-up is one of them, since a manager may take metadata out of a queue when it is polled; and a table that breaks it
is only a suspicion (:func:`seems_asleep`), on which a poll follows.
"""
_ALSO_POLLED: Final = ("success-complete",)
"""Those about the table for which a poll that says something else counts as much."""
_OF_PAGES_AND_WORDS: Final = ("pages-held", "released-once", "one-outcome")
"""Those that ask nothing about the table: they are asked about older requests too, and while threads are at work."""


def broken(world: World) -> list[str]:
    """The laws that are broken now, by name."""
    if world.hung:
        return [NO_DEADLOCK]
    if world.crashed:
        return [NO_CRASH]
    life = world.life
    found = [law for number in range(1, life.request + 1) for law in _of_request(world, life, number)]
    found += _polled(world, life)
    found += ["no-resurrection"] * life.resumed + ["settlement"] * _never_settles(world)
    found += [TOLD_ONCE] * _told_wrong(world) + [NO_DEADLOCK] * world.deadlock
    return list(dict.fromkeys(found))


def seems_asleep(world: World) -> bool:
    """The table breaks no-lost-wakeup and nobody is at work: if a poll says the same, the wake-up is lost."""
    life = world.life
    if world.hung or world.crashed or world.active or not world.quiet or life.polled is not None:
        return False
    if not life.now.heard or life.status != B or life.now.phase != "boot" or not life.now.shown:
        return False  # which is most often so, and quickly said
    return _LOST_WAKEUP in _broken_in(_sizes(life.bounds), _values(world, life, life.request))


def _of_request(world: World, life: Life, number: int) -> list[str]:
    """What the table, the pages and the words to decode break."""
    names = _broken_in(_sizes(life.bounds), _values(world, life, number))
    newest = number == life.request and world.quiet
    asked = [name for name in names if name not in _POLLED and (newest or name in _OF_PAGES_AND_WORDS)]
    return [name for name in asked if not _explained(world, life, number, name)]


def _explained(world: World, life: Life, number: int, law: str) -> bool:
    """What the spec's formula does not know of, and a manager may do."""
    one = life.requests[number - 1]
    if law == "one-outcome":  # it has lost its id to a newer one, and its sender is told so, whatever decode was told
        return one.superseded and one.latch == F and one.wire == "Success"
    if law == "room-reusable":
        return (life.status == F and (world.jumps > 0 or one.aborted)) or (life.status == W and one.metadata > 0)
    return False


def _polled(world: World, life: Life) -> list[str]:
    """What a poll has broken that has just ended."""
    if life.polled is None:
        return []
    number, phase, said = life.polled.request, life.polled.phase, life.polled.said
    if said == ABSENT and number < life.request:
        return []  # it has lost its room to a newer request, and is told so
    polled = attrs.evolve(
        life,
        status=said,
        requests=tuple(
            attrs.evolve(one, phase=phase, latch="none") if n == number else one
            for n, one in enumerate(life.requests, 1)
        ),
    )
    names = _broken_in(_sizes(life.bounds), _values(world, polled, number, said))
    about_table = said == life.status  # else the sender has a word of its own, which hides the table's
    one = life.requests[number - 1]
    asked = {"no-pin", *_ALSO_POLLED, *(_POLLED if about_table else ())}
    if life.status == ABSENT and said == B:  # there is no entry behind which a wake-up could stand
        asked.add(_LOST_WAKEUP)
    if world.active:  # a call in progress may be about to take in what others have left for it
        asked.discard(_LOST_WAKEUP)
    found = [name for name in names if name in asked]
    if phase == "boot" and _not_its_own(world, one, said) and (number > 1 or len(world.lives) > 1):
        found.append("room-reusable")
    if said == S and phase == "boot" and number == 1:  # the spec has no such state: nobody could have written it
        found.append("success-complete")
    return found


def _not_its_own(world: World, one: Request, said: str) -> bool:
    """A request that was only just created polls what nothing has done to it, not even a time-out or a newer one."""
    if one.aborted or one.notices or (said == F and (world.jumps or one.superseded)):
        return False
    return said in (F, T, S) or (said == W and not one.metadata)


def blamed(world: World, law: str) -> tuple[Life, int]:
    """The room and the number of the request that break a law in the end of a play."""
    life = world.life
    if life.polled is not None and law in _polled(world, life):
        return life, life.polled.request
    for number in range(life.request, 0, -1):
        if law in _of_request(world, life, number):
            return life, number
    if law == "settlement":
        for other in world.lives:
            for number, one in enumerate(other.requests, 1):
                if one.phase == "releasing":
                    return other, number
    return life, life.polled.request if life.polled is not None else life.request


def labels(world: World) -> dict[str, str]:
    """The room in which something has happened last as a state of the spec, by names."""
    life = world.life
    machine = _machine(_sizes(life.bounds))
    return named(machine, _state(world, life, life.request, life.status, machine))


def _never_settles(world: World) -> bool:
    """All that is left is to poll, and the poll has changed nothing; or to wait for pages that nobody releases."""
    polled = world.life.polled
    if (polled is None and not world.ticked) or not world.idle:
        return False
    if world.ticked and any(one.phase == "releasing" for life in world.lives for one in life.requests):
        return True
    if polled is None:
        return False
    one = world.life.requests[polled.request - 1]
    return one.phase == "inflight" or (one.phase == "boot" and one.aborted)


def _told_wrong(world: World) -> bool:
    """Decode has been told twice, or when its request was over; or it never will be."""
    requests = world.life.requests
    if any(len(one.words) > 1 or one.late_word for one in requests):
        return True
    return world.ticked and world.idle and any(one.untold for life in world.lives for one in life.requests)


def _values(world: World, life: Life, number: int, said: str | None = None) -> tuple[int, ...]:
    newest = number == life.request
    status = said if said is not None else life.status if newest else ABSENT
    return tuple(_state(world, life, number, status, _machine(_sizes(life.bounds))).values())


@cache
def _machine(bounds: Bounds) -> Machine:
    """The spec's state space for these bounds; of the design nothing but that is asked."""
    design = attrs.evolve(DESIGNS["latch"], poll_absent="WaitingForInput")  # "no entry" is no terminal answer
    return Machine.of(design, "locked", bounds.network, Instance(bounds.workers, bounds.chunks, bounds.requests))


@cache
def _sizes(bounds: Bounds) -> Bounds:
    """The part of the bounds that the spec knows."""
    return Bounds(bounds.network, bounds.chunks, bounds.workers, min(bounds.requests, 2))


@cache
def _bad(bounds: Bounds) -> dict[str, Term]:
    """The bad states of the safety properties."""
    model = _machine(bounds).model
    return {prop.name: model.claim(prop.bad) for prop in PROPERTIES if prop.kind == "safety"}


@lru_cache(maxsize=1 << 16)
def _broken_in(bounds: Bounds, values: tuple[int, ...]) -> tuple[str, ...]:
    """The safety properties that a state of the spec breaks; its values are in the order of the variables."""
    machine = _machine(bounds)
    state = dict(zip(machine.model.variables, values, strict=True))
    return tuple(name for name, claim in _bad(bounds).items() if machine.holds(claim, state))


def _state(world: World, life: Life, number: int, status: str, machine: Machine) -> State:
    """One request of a room as a state of the spec, in which it is the one that lives."""
    busy = {thread for thread, active in world.active if active.call.room == life.room}
    one = life.requests[number - 1]
    mine, other = ("first", "second") if number == 1 else ("second", "first")
    often = ("none", "once", "twice")
    pc = {"idle": "idle", "starting": "taken", "transferring": "transferring", "finishing": "concluding"}
    waiting = {chunk for request, chunk in life.queue if request != number}
    room = {
        protocol.status: status,
        protocol.stamp: mine,
        protocol.first_terminal: life.first_terminal if number == life.request else "none",
        protocol.infos: mine if one.heard else "none",
        protocol.gen: mine,
        protocol.phase: one.phase,
        protocol.latch: one.latch,
        protocol.pages: one.pages,
        protocol.wire: one.wire,
        protocol.scheduler: "create*" if SCHEDULER in busy else "free",
        protocol.bootstrap: "registered" if BOOTSTRAP in busy or not world.quiet else "idle",
        protocol.metadata: often[one.metadata],
        protocol.notice: often[one.notices],
    }
    several = {
        protocol.chunk: one.chunks,
        protocol.stale: tuple("yes" if chunk in waiting else "no" for chunk in range(life.bounds.chunks)),
        protocol.worker: tuple(pc[worker.state] for worker in life.workers),
        protocol.job: tuple(str(worker.chunk) for worker in life.workers),
        protocol.job_gen: tuple(mine if worker.request == number else other for worker in life.workers),
    }

    def label(var: Var) -> str:
        if var.field in several:
            return several[var.field][int(var.name.rpartition("_")[2])]
        return room.get(var.field, var.labels[0])

    return {var: var.index(label(var)) for var in machine.model.variables}
