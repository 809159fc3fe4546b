"""The scenarios: for each law, the ways to look for a broken one on a published manager.

A scenario is a few scripts. Each is played on a fresh manager; the law is broken if its observer sees so in one of
them, and the shortest such play is shown. The numbers D1 to D15 are those of the violations that were found in the
wheels by hand; there is no D11.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import attrs

from kvlatch.reference.laws import LAWS, NO_CRASH, NO_DEADLOCK, TOLD_ONCE
from kvlatch.reference.published.sglang.observers import OBSERVERS, Found, Observer, always, was_reused
from kvlatch.reference.published.sglang.plays import REST, Play
from kvlatch.reference.published.sglang.scripts import ABSENT, STATUSES, Script, Step
from kvlatch.spec.status import B, F, S, T, W

ACCESSES: Final = {
    "write": 12,
    "create": 20,
    "lose_prefill": 12,
    "work": 32,
    "metadata": 16,
    "abort": 12,
    "abort_notice": 12,
}
"""More accesses (of tables, locks and the wire) than the op makes: it is held before each of them."""


@attrs.frozen
class Scenario:
    """One way to look for a broken law. ``numbers`` are those of the known violations that it finds."""

    law: str = attrs.field(validator=attrs.validators.in_(LAWS))
    name: str
    says: str
    scripts: tuple[Script, ...]
    numbers: tuple[str, ...] = ()
    observer: Observer = attrs.field(
        default=attrs.Factory(lambda self: OBSERVERS[self.law], takes_self=True), repr=False
    )

    @property
    def full_name(self) -> str:
        """``terminal-sticky/plain``."""
        return f"{self.law}/{self.name}"


# --- Observers of special situations --------------------------------------------------------------


def unaborted(play: Play) -> Found | None:
    """Whoever polls after an abort must not be told Success."""
    taken = ABORT in play.script or any(seen.status == F for seen in play.seen)
    if play.polled == S and taken:  # an abort of decode that nobody has taken in may be too late
        return len(play.seen) - 1, "the request was aborted and ends as Success"
    return OBSERVERS["terminal-sticky"].broken(play)


def doomed(play: Play) -> Found | None:
    """The second request, whose transfer went well, polls Failed."""
    failed = "the second request's transfer went well, and it is Failed for what the first one left"
    return (len(play.seen) - 1, failed) if play.polled == F else None


def wiped(play: Play) -> Found | None:
    """The entry of the second request is gone, though nobody has cleared that one."""
    gone = "a clear of the first request has taken the entry of the second"
    return (len(play.seen) - 1, gone) if play.last.status == ABSENT and play.error is None else None


def outvoted(play: Play) -> Found | None:
    """Over ranks the minimum counts: Failed wins, else the slowest rank."""
    mine, other = play.seen[-2].value or "", play.script[-1].status or ""
    if play.error is not None:
        return None  # who raises is judged by another law
    right = min(mine, other, key=STATUSES.index)
    wrong = f"ranks with {mine} and {other} are reduced to {play.polled}, not {right}"
    return None if play.polled == right else (len(play.seen) - 1, wrong)


def by_law(law: str, broken: Callable[[Play], Found | None]) -> Observer:
    """The law's own observer, but for what breaks it."""
    return attrs.evolve(OBSERVERS[law], broken=broken)


def admitted(play: Play) -> Found | None:
    """A request is admitted although a decode rank has not said where its pages are."""
    said = "the request is admitted although only one of two decode ranks has sent its metadata"
    return (len(play.seen) - 1, said) if play.polled in (W, T, S) and play.error is None else None


PARTIAL: Final = Observer(admitted, always)
RANKS: Final = Observer(outvoted, always)

# --- Scripts --------------------------------------------------------------------------------------

CREATE: Final = Step("scheduler", "create")
REGISTER: Final = Step("bootstrap", "register")
METADATA: Final = Step("bootstrap", "metadata")
SEND: Final = Step("scheduler", "send")
SEND_LAST: Final = Step("scheduler", "send_last")
WORK: Final = Step("worker 0", "work")
POLL: Final = Step("scheduler", "poll")
CLEAR: Final = Step("scheduler", "clear")
SETTLE: Final = Step("scheduler", "settle")
POP: Final = Step("bootstrap", "pop_infos")
ABORT: Final = Step("scheduler", "abort")
NOTICE: Final = Step("bootstrap", "abort_notice")
TIMEOUT: Final = Step("scheduler", "timeout")
BREAK: Final = Step("network", "break_transfer")
ABORTS: Final = (ABORT, NOTICE)
"""By the client, and by decode."""
SENT: Final = (CREATE, METADATA, SEND_LAST)

UNEVENTFUL: Final = (CREATE, METADATA, SEND, WORK, SEND_LAST, WORK, SETTLE)
"""Two chunks, no incident: the request must settle, or else what we stand in for is not good enough to judge by."""


def write(status: str, thread: str = "bootstrap") -> Step:
    """A plain write."""
    return Step(thread, "write", status=status)


def during(step: Step, *between: Step) -> Iterator[Script]:
    """What happens during an op, between any two of its accesses."""
    first, finish = attrs.evolve(step, part="step"), attrs.evolve(step, part="finish", status=None)
    for times in range(1, ACCESSES[step.op]):
        yield (*[first] * times, *between, finish)


def in_flight(*between: Step) -> Script:
    """What happens while a worker's transfer is in flight."""
    return (attrs.evolve(WORK, part="post"), *between, attrs.evolve(WORK, part="finish"))


def after_terminal() -> Iterator[Script]:
    for before in ((), (CREATE,)):
        for late in (T, S, W, B):
            yield (*before, write(F), write(late, "worker 0"))
    for late in (T, W, B):
        yield (CREATE, write(S, "worker 0"), write(late))


def two_writers() -> Iterator[Script]:
    for before in ((CREATE,), (CREATE, write(W))):
        for status in (T, S):
            for script in during(write(status, "worker 0"), write(F)):
                yield (*before, *script)


def cleared_by_another() -> Iterator[Script]:
    for status in (T, S, F):
        for script in during(write(status, "worker 0"), CLEAR):
            yield (CREATE, *script)


def aborted_in_flight() -> Iterator[Script]:
    for abort in ABORTS:
        yield (*SENT, *in_flight(abort), POLL)
    yield (*SENT, ABORT, POLL)  # where there is no worker, it is the poll that asks for the transfer


def aborted_under_worker() -> Iterator[Script]:
    for abort in ABORTS:
        for script in during(WORK, abort):
            yield (*SENT, *script)


def cleared_in_flight() -> Iterator[Script]:
    for before in ((), *((abort,) for abort in ABORTS)):
        for send in (SEND, SEND_LAST):
            yield (CREATE, METADATA, send, *in_flight(*before, CLEAR))


def cleared_under_worker() -> Iterator[Script]:
    for script in (*during(WORK, CLEAR), in_flight(CLEAR)):
        yield (*SENT, *script)
    for send in (SEND, SEND_LAST):  # a chunk is queued, and its room is gone when a worker takes it
        for before in ((), (ABORT,)):  # decode's notice, which kills some threads itself, has a scenario of its own
            yield (CREATE, METADATA, send, *before, CLEAR, WORK)


def two_threads() -> Iterator[Script]:
    """An abort or a clear while a worker is at it, and the other way round."""
    for abort in ABORTS:
        for script in (*during(WORK, abort), *during(abort, WORK)):
            yield (*SENT, *script, *REST)
    for script in during(WORK, CLEAR):
        yield (*SENT, *script, *REST)


def cleared_under_metadata() -> Iterator[Script]:
    for script in during(METADATA, ABORT, CLEAR):
        yield (CREATE, *script)


def told_twice() -> Iterator[Script]:
    for abort in ABORTS:
        for script in (*during(WORK, abort), in_flight(abort)):
            yield (*SENT, *script, POLL)


def at_rest() -> Iterator[Script]:
    """A request that is aborted somewhere, or not, and then everything that could happen to it."""
    yield (CREATE, METADATA, SEND, WORK, SEND_LAST, *REST)
    for abort in ABORTS:
        yield (CREATE, METADATA, SEND, abort, SEND_LAST, *REST)
        yield (*SENT, abort, *REST)
        yield (*SENT, *in_flight(abort), *REST)
        yield (*SENT, *in_flight(abort, SETTLE), *REST)
        yield (CREATE, METADATA, SEND, *in_flight(abort, SEND_LAST, SETTLE), *REST)


def broken_at_rest() -> Iterator[Script]:
    """A chunk whose transfer ends in an error, the last one or another."""
    yield (*SENT, BREAK, *REST)
    yield (CREATE, METADATA, SEND, BREAK, WORK, SEND_LAST, *REST)
    yield (CREATE, METADATA, SEND, SEND_LAST, BREAK, *REST)


def heartbeat_lost() -> Iterator[Script]:
    receive, lose, success = Step("decode", "receive"), Step("heartbeat", "lose_prefill"), write(S, "decode")
    for script in ((success, lose), *during(lose, success)):
        yield (receive, *script)


def aborted_in_steps() -> Iterator[Script]:
    """A worker goes on in the middle of an abort, having been held in its transfer; then everything comes to rest."""
    for abort in ABORTS:
        for script in during(abort, attrs.evolve(WORK, part="finish")):
            yield (*SENT, attrs.evolve(WORK, part="post"), *script, *REST)


def created_over_worker() -> Iterator[Script]:
    """A request that was aborted and not cleared has a chunk in flight, which ends while a second one is created."""
    for script in during(CREATE, attrs.evolve(WORK, part="finish")):
        yield (CREATE, METADATA, SEND, attrs.evolve(WORK, part="post"), ABORT, *script)


def polled_in_flight() -> Iterator[Script]:
    """An aborted request is polled again and again while its transfer is in flight."""
    for abort in ABORTS:
        yield (*SENT, *in_flight(abort, SETTLE, POLL, SETTLE, SETTLE), *REST)


def old_chunk(send: Step, clear: Step) -> Iterator[Script]:
    """The transfer of a request that was aborted ends in the life of a second one."""
    for abort in ABORTS:
        yield (CREATE, METADATA, send, *in_flight(abort, clear, CREATE, METADATA))


SECOND: Final = "scheduler 2"
TWO_SENDERS: Final = (CREATE, Step(SECOND, "create"), METADATA, SEND_LAST, WORK)
"""Two requests with one room id at once, of which the first is sent."""
CELLS: Final = tuple((current, new) for current in (*STATUSES, "Absent") for new in STATUSES)
"""The cells of a merge's table, row by row."""


def cell(current: str, new: str) -> Script:
    """Writes a status over another, however that came to be."""
    return (*([] if current == "Absent" else [Step("nobody", "put", status=current)]), write(new))


# --- The catalogue --------------------------------------------------------------------------------

SCENARIOS: Final = (
    Scenario("terminal-sticky", "plain", "Plain writes over a terminal status.", (*after_terminal(),), ("D1",)),
    Scenario("terminal-sticky", "two-writers", "Two threads write at once.", (*two_writers(),), ("D2",)),
    Scenario("terminal-sticky", "in-flight", "A request is aborted while its transfer is in flight.",
             (*aborted_in_flight(),), ("D5",), by_law("terminal-sticky", unaborted)),
    Scenario("no-resurrection", "under-worker", "A request is aborted between any two accesses of a worker.",
             (*aborted_under_worker(),)),
    Scenario("success-not-overwritten", "plain", "A plain write of Failed over Success.",
             ((CREATE, write(S, "worker 0"), write(F)),)),
    Scenario("success-not-overwritten", "decode", "On decode, a heartbeat gives up while Success comes.",
             (*heartbeat_lost(),), ("D4",)),
    Scenario("success-complete", "first-chunk", "The sender is polled after the first of two chunks.",
             ((CREATE, METADATA, SEND, WORK, POLL, SEND_LAST, WORK, POLL, SETTLE),)),
    Scenario("success-complete", "broken-chunk", "The transfer of a chunk ends in an error.",
             (*broken_at_rest(),)),
    Scenario("success-complete", "two-ranks", "Of two decode ranks only one has sent its metadata.",
             tuple(script for script in ((CREATE, REGISTER, POLL), (REGISTER, CREATE, POLL))), observer=PARTIAL),
    Scenario("success-complete", "two-senders", "Two requests have one room id, and the first is sent.",
             ((*TWO_SENDERS, Step(SECOND, "poll")),),
             observer=attrs.evolve(OBSERVERS["success-complete"], looks=was_reused)),
    Scenario("no-pin", "no-infos", "The transfer infos are gone (here they are taken away).",
             ((CREATE, METADATA, POP, SEND_LAST, *REST), (CREATE, METADATA, SEND_LAST, POP, *REST)), ("D9",)),
    Scenario("no-pin", "two-senders", "Two requests have one room id; the first settles, then the second is sent.",
             ((*TWO_SENDERS, SETTLE, Step(SECOND, "send_last"), *REST),), ("D15",)),
    Scenario("settlement", "aborted", "A request is aborted somewhere, or not.", (*at_rest(),)),
    Scenario("settlement", "broken-transfer", "The transfer of a chunk ends in an error.", (*broken_at_rest(),)),
    Scenario("settlement", "no-incident", "Nothing happens to a request that would make it fail.",
             (UNEVENTFUL, (CREATE, POLL, METADATA, POLL, SEND_LAST, *REST),
              (METADATA, CREATE, POLL, SEND_LAST, POLL, *REST))),
    Scenario("settlement", "no-metadata", "Decode's metadata never comes, and the time for it is up.",
             ((CREATE, TIMEOUT),)),
    Scenario("settlement", "after-abort", "Decode has aborted a request; its metadata for the next one is sent.",
             tuple((*before, CLEAR, CREATE, METADATA, TIMEOUT)
                   for before in ((CREATE, NOTICE), (CREATE, METADATA, NOTICE)))),
    Scenario("no-ghost", "two-writers", "The room is cleared during a write.", (*cleared_by_another(),), ("D3b",)),
    Scenario("no-ghost", "in-flight", "The room is cleared while a transfer is in flight.",
             (*cleared_in_flight(),), ("D6",)),
    Scenario("no-ghost", "late-metadata", "Metadata arrives after the room was cleared.",
             ((CREATE, CLEAR, METADATA),), ("D12",)),
    Scenario("pages-held", "aborted-in-flight", "A request is aborted in flight, and the scheduler polls it.",
             (*at_rest(),)),
    Scenario("pages-held", "polled-in-flight", "The same, and it is polled again and again.", (*polled_in_flight(),)),
    Scenario("released-once", "aborted", "A request is aborted somewhere, or not.", (*at_rest(),)),
    Scenario("released-once", "broken-transfer", "The transfer of a chunk ends in an error.", (*broken_at_rest(),)),
    Scenario("one-outcome", "aborted", "A request is aborted between any two accesses of a worker.",
             (*told_twice(),), ("D10",)),
    Scenario("one-outcome", "ranks", "Polls are reduced over two ranks: Failed wins, else the slowest.",
             tuple((CREATE, Step("nobody", "put", status=mine), POLL, Step("scheduler", "reduce", status=other))
                   for mine in STATUSES for other in STATUSES),
             observer=RANKS),
    Scenario("no-lost-wakeup", "early-metadata", "Metadata arrives before the sender is constructed, or meanwhile.",
             tuple((*script, POLL) for script in
                   ((METADATA, CREATE), *during(CREATE, METADATA), *during(METADATA, CREATE))), ("D3",)),
    Scenario("room-reusable", "uncleared", "The room id is used again after an abort that has not cleared it.",
             tuple((CREATE, *heard, abort, CREATE) for abort in ABORTS
                   for heard in ((), (METADATA,), (METADATA, SEND))), ("D7",)),
    Scenario("room-reusable", "stale-record", "The room id is used again after a request that has failed.",
             tuple((CREATE, abort, CLEAR, CREATE, METADATA, SEND_LAST, WORK, POLL) for abort in ABORTS), ("D13",),
             by_law("room-reusable", doomed)),
    Scenario("room-reusable", "stale-metadata", "Metadata of the first request arrives after its clear.",
             ((CREATE, CLEAR, METADATA, CREATE),), ("D14",)),
    Scenario("room-reusable", "old-chunk", "A transfer of the first request ends in the life of the second.",
             (*old_chunk(SEND_LAST, SETTLE),)),
    Scenario("room-reusable", "old-chunk-cleared", "The same, where a path of the scheduler only clears the first.",
             (*old_chunk(SEND_LAST, CLEAR), *old_chunk(SEND, CLEAR))),
    Scenario("room-reusable", "old-chunk-uncleared", "The first is not cleared; its transfer ends meanwhile.",
             (*created_over_worker(),)),
    Scenario("room-reusable", "queued-chunk", "A chunk queued for the first request is taken in the second's life.",
             tuple((CREATE, METADATA, send, abort, CLEAR, CREATE, METADATA, WORK)
                   for send in (SEND, SEND_LAST) for abort in ABORTS)),
    Scenario("room-reusable", "stale-clear", "The first request is cleared once more in the life of the second.",
             tuple((CREATE, METADATA, abort, CLEAR, Step(SECOND, "create"), METADATA, CLEAR) for abort in ABORTS),
             observer=by_law("room-reusable", wiped)),
    Scenario(NO_CRASH, "no-incident", "Two chunks, no incident.", (UNEVENTFUL, (*SENT, *REST))),
    Scenario(NO_CRASH, "worker", "The room is cleared between any two accesses of a worker.",
             (*cleared_under_worker(),), ("D8",)),
    Scenario(NO_CRASH, "abort-notice", "Decode aborts a request.",
             ((CREATE, METADATA, NOTICE), (*SENT, NOTICE, *REST), (NOTICE,))),
    Scenario(NO_CRASH, "broken-transfer", "The transfer of a chunk ends in an error.", (*broken_at_rest(),)),
    Scenario(NO_CRASH, "metadata", "The room is aborted and cleared while its metadata is taken in.",
             (*cleared_under_metadata(),)),
    Scenario(NO_DEADLOCK, "itself", "No thread waits for a lock that it has itself.",
             (*at_rest(), *broken_at_rest())),
    Scenario(NO_DEADLOCK, "two-threads", "An abort or a clear while a worker is at it, and the other way round.",
             (*two_threads(), *aborted_in_steps())),
    Scenario(TOLD_ONCE, "success", "Two chunks, no incident.", ((CREATE, METADATA, SEND, WORK, SEND_LAST, *REST),)),
    Scenario(TOLD_ONCE, "broken-transfer", "The transfer of a chunk ends in an error.", (*broken_at_rest(),)),
    Scenario(TOLD_ONCE, "aborted", "A request is aborted, before its transfer or in flight.", (*at_rest(),)),
)  # fmt: skip

NAMES: Final = tuple(scenario.full_name for scenario in SCENARIOS)
