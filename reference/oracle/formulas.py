"""What is broken now: a life as a state of the spec, asked by the spec's own formulas.

What the spec calls the status is what the table says, and the rest of the state is what the harness knows. The
properties about a poll are asked about what a poll has just said.
"""

from __future__ import annotations

from functools import cache
from typing import Final

import attrs

from kvlatch.reference.laws import NO_DEADLOCK
from kvlatch.reference.oracle.harness import Life
from kvlatch.reference.oracle.moves import BOOTSTRAP, SCHEDULER, Bounds
from kvlatch.spec import protocol
from kvlatch.spec.designs import DESIGNS
from kvlatch.spec.model import Instance, Machine, named
from kvlatch.spec.properties import PROPERTIES
from kvlatch.spec.terms import State, Term, Var

_POLLED: Final = ("terminal-sticky", "success-not-overwritten", "no-pin")
"""The properties about what the next poll will read: here, about what a poll has just said."""


def broken(life: Life) -> list[str]:
    """The laws that are broken now, by name."""
    broken = [name for name in _broken_in(life.bounds, _values(life)) if name not in _POLLED]
    if life.polled is not None:
        phase, said = life.polled
        polled = attrs.evolve(life, phase=phase, status=said, latch="none")
        about_table = said == life.status  # else the sender has a word of its own, which hides the table's
        broken += [
            name
            for name in _broken_in(life.bounds, _values(polled))
            if name == "no-pin" or (name in _POLLED and about_table)
        ]
    return broken + ["settlement"] * _never_settles(life) + [NO_DEADLOCK] * life.deadlock


def labels(life: Life) -> dict[str, str]:
    """A life as a state of the spec, by names."""
    machine = _machine(life.bounds)
    return named(machine, _state(life, machine))


def _never_settles(life: Life) -> bool:
    """All that is left is to poll, and the poll has changed nothing; or to wait for pages that nobody releases."""
    if not life.idle:
        return False
    if life.phase == "releasing":
        return True
    return life.polled is not None and (life.phase == "inflight" or (life.phase == "boot" and life.aborted))


def _values(life: Life) -> tuple[int, ...]:
    return tuple(_state(life, _machine(life.bounds)).values())


@cache
def _machine(bounds: Bounds) -> Machine:
    """The spec's state space for these bounds; of the design nothing but that is asked."""
    design = attrs.evolve(DESIGNS["latch"], poll_absent="WaitingForInput")  # "no entry" is no terminal answer
    return Machine.of(design, "locked", bounds.network, Instance(bounds.workers, bounds.chunks, bounds.requests))


@cache
def _bad(bounds: Bounds) -> dict[str, Term]:
    """The bad states of the safety properties."""
    model = _machine(bounds).model
    return {prop.name: model.claim(prop.bad) for prop in PROPERTIES if prop.kind == "safety"}


@cache
def _broken_in(bounds: Bounds, values: tuple[int, ...]) -> tuple[str, ...]:
    """The safety properties that a state of the spec breaks; its values are in the order of the variables."""
    machine = _machine(bounds)
    state = dict(zip(machine.model.variables, values, strict=True))
    return tuple(name for name, claim in _bad(bounds).items() if machine.holds(claim, state))


def _state(life: Life, machine: Machine) -> State:
    """A life as a state of the spec."""
    busy = dict(life.active)
    generation = ("none", "first", "second")
    often = ("none", "once", "twice")
    pc = {"idle": "idle", "starting": "taken", "transferring": "transferring", "finishing": "concluding"}
    waiting = {chunk for request, chunk in life.queue if request != life.request}
    room = {
        protocol.status: life.status,
        protocol.stamp: generation[life.request],
        protocol.first_terminal: life.first_terminal,
        protocol.infos: generation[life.infos],
        protocol.gen: generation[life.request],
        protocol.phase: life.phase,
        protocol.latch: life.latch,
        protocol.pages: life.pages,
        protocol.wire: life.wire,
        protocol.scheduler: "create*" if SCHEDULER in busy else "free",
        protocol.bootstrap: "registered" if BOOTSTRAP in busy else "idle",
        protocol.metadata: often[life.metadata],
        protocol.notice: often[life.notices],
    }
    several = {
        protocol.chunk: life.chunks,
        protocol.stale: tuple("yes" if chunk in waiting else "no" for chunk in range(life.bounds.chunks)),
        protocol.worker: tuple(pc[worker.state] for worker in life.workers),
        protocol.job: tuple(str(worker.chunk) for worker in life.workers),
        protocol.job_gen: tuple(generation[worker.request] for worker in life.workers),
    }

    def label(var: Var) -> str:
        if var.field in several:
            return several[var.field][int(var.name.rpartition("_")[2])]
        return room.get(var.field, var.labels[0])

    return {var: var.index(label(var)) for var in machine.model.variables}
