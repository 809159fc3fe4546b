"""Instants and durations: symbolic real numbers, and what the rows of a protocol say of them.

Most timers need no clock: "it may run out once it is set" is enough. Only where two durations are compared does their
length matter. A row of such a protocol demands an ``order``, as in "the lease ends only when the reader no longer
counts on it", and its :class:`Timing` says by which lengths and instants that comes to hold: whoever breaks the order
would break a linear inequality. ``proofs/durations.py`` proves that, for all lengths at once, so search and induction
need no numbers. (Lamport, "Real Time is Really Simple", MSR-TR-2005-30: time is one more variable.)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs

from kvlatch.spec.terms import TRUE, Term


@attrs.frozen(eq=False)
class Linear:
    """A sum of instants and durations, by name, each with its factor; ``<=`` and ``<`` compare two sums."""

    parts: Mapping[str, int] = attrs.field(factory=dict)

    @property
    def name(self) -> str:
        """The name of a single instant or duration."""
        (name,) = self.parts
        return name

    @property
    def after(self) -> Linear:
        """A single instant, as it is after the step."""
        return Linear({f"{self.name}{AFTER}": 1})

    def __add__(self, other: Linear) -> Linear:
        names = dict.fromkeys((*self.parts, *other.parts))
        return Linear({name: self.parts.get(name, 0) + other.parts.get(name, 0) for name in names})

    def __sub__(self, other: Linear) -> Linear:
        return self + Linear({name: -factor for name, factor in other.parts.items()})

    def __le__(self, other: Linear) -> Compared:
        return Compared(self, other, strict=False)

    def __lt__(self, other: Linear) -> Compared:
        return Compared(self, other, strict=True)


AFTER: Final = " after"
"""How the name of an instant after a step ends."""
ZERO: Final = Linear()


def real(name: str) -> Linear:
    """An instant or a duration with a name."""
    return Linear({name: 1})


@attrs.frozen(eq=False)
class Compared:
    """One sum is at most another; or, if ``strict``, less."""

    left: Linear
    right: Linear
    strict: bool


@attrs.frozen(eq=False)
class Timed:
    """Where a formula about labels holds, so does an inequality between sums."""

    when: Term
    then: Compared


@attrs.frozen(eq=False)
class Moment:
    """What a row says of instants: it happens only where all of ``given`` holds, and sets those in ``sets``.

    To what it sets them is part of ``given``, which may speak of an instant ``after`` the step. All others stay.
    """

    given: tuple[Timed, ...] = ()
    sets: tuple[Linear, ...] = ()


@attrs.frozen(eq=False)
class Timing:
    """The real numbers of a protocol. Each element of its crowd has every instant but ``now`` for itself.

    ``always`` is assumed of the durations. ``lemmas`` hold in every state, as ``durations.py`` proves: initially
    (``begins``), after every row, and after ``passing``, in which nothing happens but that time goes by.
    """

    durations: tuple[Linear, ...]
    instants: tuple[Linear, ...]
    always: tuple[Timed, ...]
    begins: tuple[Timed, ...]
    lemmas: tuple[Timed, ...]
    rows: Mapping[str, Moment]
    passing: Moment

    def moment(self, row: str) -> Moment:
        """What a row says of instants; nothing, if it is not listed: it can happen at any time."""
        return self.rows.get(row, Moment())


def timed(then: Compared, when: Term = TRUE) -> Timed:
    """An inequality, where a formula holds, or always."""
    return Timed(when, then)


def equal(left: Linear, right: Linear, when: Term = TRUE) -> tuple[Timed, Timed]:
    """Two sums are equal, where a formula holds, or always."""
    return Timed(when, left <= right), Timed(when, right <= left)
