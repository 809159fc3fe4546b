"""What counts as a look: the moments at which a law could have been broken.

A law is *kept* only as often as it was looked at; a law that nobody has looked at is not judged. Each look is a moment
that an onlooker knows of, so it is counted and never estimated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import MappingProxyType
from typing import Final

import attrs

from kvlatch.reference.laws import NO_CRASH, NO_DEADLOCK, TOLD_ONCE
from kvlatch.reference.oracle.harness import World
from kvlatch.reference.oracle.life import Life, Request
from kvlatch.reference.oracle.moves import Call, Move, Seen
from kvlatch.spec.status import F, S


@attrs.frozen
class Moment:
    """One move: the room before and after it, the call that it has ended (None if it has ended none), what was seen."""

    world: World
    before: Life
    after: Life
    call: Call | None
    seen: Seen

    @classmethod
    def of(cls, before: World, move: Move, seen: Seen, after: World) -> Moment:
        """The moment of a move."""
        call = None
        if seen.held is None and move.event is not None and move.told:
            call = before.call(move)
        elif seen.held is None and move.event is None and (active := dict(before.active).get(move.thread)):
            call = active.call
        return cls(after, before.lives[after.room], after.life, call, seen)

    def ends(self, *events: str) -> bool:
        """It has ended a call of these kinds."""
        return self.call is not None and self.call.event in events

    @property
    def request(self) -> Request | None:
        """The request that the call was about, before it."""
        return None if self.call is None else self.before.requests[self.call.request - 1]

    @property
    def done(self) -> list[Request]:
        """The requests that are over now, and were not before."""
        over = zip(self.before.requests, self.after.requests, strict=False)
        return [new for old, new in over if new.phase == "done" and old.phase != "done"]


@attrs.frozen
class Look:
    """When a law is looked at, in how many what, and what was missing if it never was."""

    when: Callable[[Moment], bool]
    unit: str
    missing: str


def _after_failure(at: Moment) -> bool:
    return at.before.first_terminal == F and at.ends("metadata", "start", "finish", "break", "create", "poll")


def _after_success(at: Moment) -> bool:
    return at.before.first_terminal == S and (at.ends("abort", "abort_notice", "break") or at.after.polled is not None)


def _said_success(at: Moment) -> bool:
    polled = at.after.polled is not None and at.after.polled.said == S
    return polled or (at.after.status == S != at.before.status)


def _nobody_left(at: Moment) -> bool:
    return at.after.polled is not None and at.after.polled.phase == "inflight" and at.world.idle


def _after_clear(at: Moment) -> bool:
    return at.before.now.phase == "done" and at.ends("metadata", "abort_notice", "start", "finish", "break")


def _cleared_under_a_transfer(at: Moment) -> bool:
    if not at.ends("clear") or at.call is None:
        return False
    return any(w.state == "transferring" and w.request == at.call.request for w in at.after.workers)


def _woken(at: Moment) -> bool:
    return at.after.polled is not None and at.after.requests[at.after.polled.request - 1].heard


def _used_again(at: Moment) -> bool:
    return at.ends("create") and at.call is not None and (at.call.request > 1 or len(at.world.lives) > 1)


def _to_be_told(at: Moment) -> bool:
    return any(one.latch == S or (one.lost and not one.aborted and not one.notices) for one in at.done)


LOOKS: Final = MappingProxyType({
    "terminal-sticky": Look(
        lambda at: at.after.polled is not None and at.before.first_terminal != "none",
        "polls after a terminal status", "no poll came after a terminal status"),
    "no-resurrection": Look(_after_failure, "calls of a room that had failed", "no room failed while it had work"),
    "success-not-overwritten": Look(_after_success, "polls and failures after Success", "no room was a Success"),
    "success-complete": Look(_said_success, "times that a poll or the table said Success", "nothing said Success"),
    "no-pin": Look(_nobody_left, "polls of a request in flight that nobody could move any more",
                   "no request in flight was polled when every thread was idle"),
    "settlement": Look(lambda at: bool(at.done), "requests that were settled", "no request was settled"),
    "no-ghost": Look(_after_clear, "calls about a request that was over", "nothing came after a request was over"),
    "pages-held": Look(_cleared_under_a_transfer, "requests cleared under a transfer",
                       "no request was cleared under a transfer"),
    "released-once": Look(lambda at: bool(at.seen.released), "releases of pages", "no pages were released"),
    "one-outcome": Look(lambda at: bool(at.seen.told), "words to decode", "decode was told nothing"),
    "no-lost-wakeup": Look(_woken, "polls of a request with metadata", "no poll came after metadata"),
    "room-reusable": Look(_used_again, "requests on a used id, or beside another room", "no id was used again"),
    NO_CRASH: Look(lambda at: at.call is not None, "calls", "no call came to its end"),
    NO_DEADLOCK: Look(lambda at: len(at.world.active) > 1, "moves with two threads inside the manager",
                      "no two threads were inside the manager at once"),
    TOLD_ONCE: Look(_to_be_told, "endings to tell", "no request ended well or by a failed transfer"),
})  # fmt: skip
"""When each law is looked at."""


def looked_at(before: World, move: Move, seen: Seen, after: World) -> Iterator[str]:
    """The laws that this move could have broken."""
    if after.crashed or after.hung:
        return
    moment = Moment.of(before, move, seen, after)
    yield from (law for law, look in LOOKS.items() if look.when(moment))
