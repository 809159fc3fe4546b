"""How much an examination may do: work that is counted, so that what it says does not depend on the machine's speed.

A player counts what it does (:class:`Counts`), in microseconds of an ordinary quiet core as they have been measured on
many managers: so *a second's work* takes about a second there, longer on a busy machine, and is the same work on any.
Only a manager that computes for long between two accesses to anything can use up much more time than it is counted
for: then the processor's time, or the clock, ends the examination, and its report says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Protocol, runtime_checkable

SECOND: Final = 1_000_000
"""A second's work."""
_SLOWEST: Final = 3.0
"""How many times as much of the processor's time an examination may take, with _SPARE seconds to begin with ..."""
_SPARE: Final = 5.0
_BUSIEST: Final = 5.0
"""... and how many times that by the clock, for what waits outside this process, and for a busy machine."""

Enough = Callable[[], bool]
"""Says that a part of the work is done."""


@runtime_checkable
class Counts(Protocol):
    """A player that counts its work, with the harness's own for each step."""

    @property
    def work(self) -> int:
        """How much it has done so far."""


def never() -> bool:
    """There is no limit."""
    return False


class Budget:
    """The work of one examination: as much as ``seconds`` allow, without a limit if they are None."""

    def __init__(self, player: object, seconds: float | None) -> None:
        self._player = player if isinstance(player, Counts) else None
        self._seconds = seconds
        self._before = self._done
        self._processor, self._clock = time.process_time(), time.monotonic()
        self.cut = ""
        """Why it was ended before its work was done, if it was."""

    @property
    def _done(self) -> int:
        return 0 if self._player is None else self._player.work

    @property
    def spent(self) -> int:
        """The work so far."""
        return self._done - self._before

    @property
    def took(self) -> float:
        """Seconds by the clock."""
        return time.monotonic() - self._clock

    def has(self, seconds: float) -> bool:
        """Whether the whole budget is at least that large."""
        return self._seconds is None or self._seconds >= seconds

    def until(self, part: float) -> Enough:
        """Enough is when this part of all the work is done, from the beginning."""
        if self._seconds is None:
            return never
        return self._limit(self._before + int(self._seconds * part * SECOND))

    def further(self, seconds: float) -> Enough:
        """Enough is when so much more is done than now."""
        return never if self._seconds is None else self._limit(self._done + int(seconds * SECOND))

    def _limit(self, most: int) -> Enough:
        return lambda: self._done >= most or self._late()

    def _late(self) -> bool:
        """It has taken far more time than its work is worth."""
        most = _SLOWEST * (self._seconds or 0.0) + _SPARE
        if time.process_time() - self._processor > most:
            self.cut = f"ended after {most:g} s of the processor, before all was looked at: each step takes long"
        elif time.monotonic() - self._clock > _BUSIEST * most:
            self.cut = f"ended after {_BUSIEST * most:g} s, before all was looked at: each step takes long"
        return bool(self.cut)
