"""What a log can show, and which of it breaks a law: events as one byte, and the verdict on every pair of them.

An *event* is an action on a room and the status that the table then shows. Nothing is judged by its history: an event
is held against the status last observed in its room, so six statuses times seventy events are all there is, and the
verdicts are a table. Each entry is computed by asking the spec: the pair is put into a state of the protocol, and the
properties of ``spec/properties.py`` are evaluated there.
"""

from __future__ import annotations

from functools import cache
from typing import Final, TypeVar, get_args

import attrs
import numpy as np
import numpy.typing as npt

from kvlatch.spec.designs import DESIGNS, Design
from kvlatch.spec.merges import KEEP
from kvlatch.spec.model import Instance, Machine
from kvlatch.spec.properties import BY_NAME, PROPERTIES
from kvlatch.spec.schema import Profile
from kvlatch.spec.status import ABSENT, TERMINAL, F, KVPoll, S, T, W

Number = TypeVar("Number", int, npt.NDArray[np.uint8])
PROFILES: Final[tuple[Profile, ...]] = get_args(Profile)

OPS: Final = ("create", "clear", "poll", "abort", "write")
"""``create`` writes Bootstrapping, ``abort`` writes Failed, ``write`` its incoming status; ``poll`` only looks."""
STATUSES: Final = (*(status.name for status in KVPoll), ABSENT)
"""What an event can observe, and what can be known of a room; a number in a log is an index into these."""
LIVE: Final = tuple(status.name for status in KVPoll if status not in TERMINAL)
"""Of a room that is shown as one of these, the request is not over: it has not settled."""

UNSAID: Final = len(KVPoll)
"""The incoming status of a write that does not say it, as a number beside ``KVPoll``'s."""
UNOBSERVED: Final = len(STATUSES)
"""The observed status of an event that does not say it, as a number beside those of ``STATUSES``."""
_WRITE: Final = OPS.index("write")
_ACTIONS: Final = len(OPS) + UNSAID
CODES: Final = _ACTIONS * (UNOBSERVED + 1)
SILENT: Final = UNOBSERVED * _ACTIONS + OPS.index("poll")
"""Events from this code on say nothing about the room's status. An unobserved create or clear still does."""

MERGE: Final = "merge"
"""The law that is no property of the protocol: a write leaves what the named design's merge makes of it."""


def encode(op: Number, incoming: Number, observed: Number) -> Number:
    """Events as bytes, ints and arrays alike: ``op`` indexes ``OPS``, ``observed`` is below or UNOBSERVED.

    ``incoming`` (below or UNSAID) counts for a write and is ignored elsewhere.
    """
    code: Number = observed * _ACTIONS + op + (op == _WRITE) * (UNSAID - incoming)
    return code


@attrs.frozen
class Event:
    """A decoded event; ``incoming`` and ``observed`` are None where the log does not say them."""

    op: str
    incoming: str | None
    observed: str | None

    @classmethod
    def of(cls, code: int) -> Event:
        """The event that a byte stands for."""
        observed, action = divmod(code, _ACTIONS)
        op = OPS[min(action, _WRITE)]
        incoming: KVPoll | None = {"create": KVPoll.Bootstrapping, "abort": KVPoll.Failed}.get(op)
        if action > _WRITE:
            incoming = KVPoll(UNSAID - (action - _WRITE))
        return cls(op, incoming.name if incoming is not None else None, (*STATUSES, None)[observed])

    @property
    def after(self) -> str | None:
        """What is known of the room afterwards; None if nothing is, or if the event is silent."""
        return ABSENT if self.observed is None and self.op == "clear" else self.observed


@attrs.frozen
class Laws:
    """The laws of one profile, and of the merge of one design if one is named.

    ``broken[before][code]`` is the first law that the event breaks in a room last observed as ``STATUSES[before]``, in
    the order of ``PROPERTIES``, or None.
    """

    profile: Profile
    design: Design | None
    broken: tuple[tuple[str | None, ...], ...]

    @classmethod
    def of(cls, profile: Profile = "first terminal wins", design: Design | None = None) -> Laws:
        """ValueError for a profile that there is not."""
        if profile not in PROFILES:
            raise ValueError(f"no profile is called {profile!r}: they are {', '.join(PROFILES)}")
        rows = []
        for before, row in zip(STATUSES, _properties(profile), strict=True):
            cells = []
            for law, event in zip(row, EVENTS, strict=True):
                expected = _expected(design, before, event) if design else None
                cells.append(law or (MERGE if expected not in (None, event.observed) else None))
            rows.append(tuple(cells))
        return cls(profile, design, tuple(rows))

    def says(self, law: str, before: str, event: Event) -> str:
        """The sentence behind a law; for the merge, what it makes of this very event."""
        if law != MERGE or self.design is None:
            return BY_NAME[law].says
        expected = _expected(self.design, before, event)
        return f"In {self.design.name}, {event.incoming} written over {before} leaves {expected}."


EVENTS: Final = tuple(Event.of(code) for code in range(CODES))


@cache
def _properties(profile: Profile) -> tuple[tuple[str | None, ...], ...]:
    """The first property of the profile that each event breaks, after each status."""
    machine = Machine.of(DESIGNS["latch"], "locked", "orderly", Instance(workers=1, chunks=1, requests=2))
    bad = {
        prop.name: machine.model.claim(prop.bad)
        for prop in PROPERTIES
        if prop.kind == "safety" and prop.profile in ("both", profile)
    }

    def first(before: str, event: Event) -> str | None:
        if event.observed is None:
            return None
        labels = _state(before, event.op, event.observed)
        state = {var: var.index(labels.get(var.field.name, var.labels[0])) for var in machine.model.variables}
        return next((name for name, formula in bad.items() if machine.holds(formula, state)), None)

    return tuple(tuple(first(before, event) for event in EVENTS) for before in STATUSES)


def _state(before: str, op: str, observed: str) -> dict[str, str]:
    """The state of the protocol that an event shows: what it leaves open is as it was at the start, all threads idle.

    So a property about pages, chunks or messages, which no log shows, is never found broken. A create in a room whose
    last request is over begins the second one. A room that was shown Absent is done until the next create. Metadata
    has been taken in once the room was shown as WaitingForInput or Transferring.
    """
    done = op == "clear" or (before == ABSENT and op != "create")
    request = "second" if op == "create" and before not in LIVE else "first"
    return {
        "status": observed,
        "first_terminal": before if before in (F, S) else "none",
        "phase": "done" if done else "boot",
        "gen": request,
        "infos": request if {before, observed} & {W, T} else "none",
    }


def _expected(design: Design, before: str, event: Event) -> str | None:
    """What the design's merge leaves in the table; None where no merge takes place, or where it cannot be known.

    A tombstone is no entry to the merge, but whether a write reaches it depends on the request, which no log shows.
    """
    if event.incoming is None or event.observed is None:
        return None
    if before == ABSENT and design.clear == "tombstone" and event.op != "create":
        return None
    stored = design.merge(None if before == ABSENT else KVPoll[before], KVPoll[event.incoming])
    return before if stored == KEEP else KVPoll(stored).name
