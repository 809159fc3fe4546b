"""What the spec says of what a log shows: properties evaluated in the state that a log has shown so far.

A log shows a part of a state of the protocol. That part, as labels of the protocol's own fields, is completed with what
the fields are at the start, and the properties of ``spec/properties.py`` are evaluated there: no law is written down a
second time here. Workers and chunks are summed up in one of each: a worker that transfers if any does, else one that
is busy if any is; a chunk that is done if all are, lost if one is.
"""

from __future__ import annotations

from functools import cache
from typing import Final, NamedTuple, get_args

from kvlatch.spec.designs import DESIGNS
from kvlatch.spec.model import Instance, Machine
from kvlatch.spec.properties import BY_NAME, PROPERTIES
from kvlatch.spec.schema import Profile
from kvlatch.spec.terms import Term

PROFILES: Final[tuple[Profile, ...]] = get_args(Profile)


class Seen(NamedTuple):
    """What is known of a room, by the names and labels of the protocol's fields; the defaults are those of the start.

    ``infos`` says whose metadata is there, ``worker`` and ``chunk`` are summed up, and ``notice`` is ``once`` if the
    request itself has been given up, by whomever.
    """

    status: str
    first_terminal: str = "none"
    phase: str = "boot"
    gen: str = "first"
    infos: str = "none"
    latch: str = "none"
    notice: str = "none"
    pages: str = "none"
    wire: str = "none"
    bootstrap: str = "idle"
    worker: str = "idle"
    chunk: str = "done"


@cache
def broken_in(seen: Seen) -> frozenset[str]:
    """The safety properties that a state breaks, of both profiles."""
    machine, claims = _claims()
    labels = {**seen._asdict(), "job_gen": seen.gen}
    state = {var: var.index(labels.get(var.field.name, var.labels[0])) for var in machine.model.variables}
    return frozenset(name for name, formula in claims.items() if machine.holds(formula, state))


@cache
def _claims() -> tuple[Machine, dict[str, Term]]:
    machine = Machine.of(DESIGNS["latch"], "locked", "orderly", Instance(workers=1, chunks=1, requests=2))
    return machine, {prop.name: machine.model.claim(prop.bad) for prop in PROPERTIES if prop.kind == "safety"}


def of_profile(law: str, profile: Profile) -> bool:
    """Whether the law is one in that reading of "terminal"."""
    return law not in BY_NAME or BY_NAME[law].profile in ("both", profile)
