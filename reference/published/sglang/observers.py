"""What an observer of a play sees that breaks a law: one observer for each, whatever the play.

An observer answers with the step at which the law is broken and a sentence, or with None. Beside it stands what makes a
play a *look*: that the law could have been broken in it. A law is kept only by plays that were looks.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Final

import attrs

from kvlatch.reference.laws import NO_CRASH, NO_DEADLOCK, TOLD_ONCE
from kvlatch.reference.published.sglang.plays import FAILING, Play
from kvlatch.reference.published.sglang.scripts import ABSENT
from kvlatch.spec.status import B, F, S, T, W

Found = tuple[int, str]
"""The number of the step after which it is seen, and the sentence."""
_DEADLOCK: Final = "Deadlock: "


@attrs.frozen
class Observer:
    """What breaks a law, and what could have."""

    broken: Callable[[Play], Found | None]
    looks: Callable[[Play], bool]


# --- Statuses -------------------------------------------------------------------------------------


def overwritten(play: Play) -> Found | None:
    """A terminal status was replaced by a live one, or Failed by Success; or a poll after Failed reads another."""
    for number, _, seen, told in play.lives:
        if seen.status != ABSENT and (told, seen.status) in _OVERWRITES:
            return number, f"the room was {told} and ends {seen.status}"
        if told == F and seen.status == F and seen.value == S:
            return number, "the room is Failed and its sender polls Success"
    return None


_OVERWRITES: Final = {(F, B), (F, W), (F, T), (F, S), (S, B), (S, W), (S, T)}


def was_terminal(*statuses: str) -> Callable[[Play], bool]:
    """Whether the entry had one of these, and another thread has gone on after it."""

    def looks(play: Play) -> bool:
        first = next((number for number, _, seen in play.steps if seen.status in statuses), None)
        if first is None:
            return False
        return any(step.thread != play.script[first].thread for step in play.script[first + 1 :])

    return looks


def back_at_work(play: Play) -> Found | None:
    """A room that has failed is Transferring or Success."""
    for number, _, seen, told in play.lives:
        if told == F and seen.status in (T, S):
            return number, f"the room was Failed, and the transfer workers now read {seen.status}"
    return None


def demoted(play: Play) -> Found | None:
    """Success was replaced by Failed."""
    for number, _, seen, told in play.lives:
        if told == S and seen.status == F:
            return number, "the room was Success and ends Failed"
    return None


def ghost(play: Play) -> Found | None:
    """The entry of a room whose last request has been cleared is back, in the end."""
    if was_cleared(play) and play.last.status != ABSENT:
        return len(play.seen) - 1, f"the room was cleared and its entry is {play.last.status} again"
    return None


def _cleared(play: Play) -> int | None:
    """The step after which the entry of the last request was gone."""
    last = None
    for number, step, seen in play.steps:
        if step.op == "create":
            last = None
        elif number > 0 and play.seen[number - 1].status != ABSENT and seen.status == ABSENT:
            last = number
    return last


def was_cleared(play: Play) -> bool:
    """Whether something has happened after the clear of the last request."""
    cleared = _cleared(play)
    return cleared is not None and cleared < len(play.script) - 1


def asleep(play: Play) -> Found | None:
    """Decode's metadata is there, nobody is at work, and a poll still reads Bootstrapping.

    Only a poll shows it: a manager may leave what it hears to whoever polls next.
    """
    if any(step.op == "register" for step in play.script):
        return None  # metadata of another rank is to come
    held: dict[str, bool] = {}
    for number, step, seen in play.steps:
        held[step.thread] = seen.held
        if step.op == "poll" and seen.created == 1 and seen.infos and seen.value == B and not any(held.values()):
            return number, "decode's metadata is stored, and the room stays Bootstrapping"
    return None


def heard(play: Play) -> bool:
    """Whether decode's metadata was heard of the room's first request, and its sender was polled."""
    return any(step.op == "poll" and seen.infos and seen.created == 1 for _, step, seen in play.steps)


# --- Requests -------------------------------------------------------------------------------------


def incomplete(play: Play) -> Found | None:
    """A request was told Success although not all of its chunks have been transferred."""
    if play.by_hand:
        return None
    requests: dict[str, int] = {}
    whole: set[int] = set()
    for number, step, seen in play.steps:
        if step.op == "create":
            requests[step.thread] = seen.created
        if step.op == "send_last" and step.thread in requests:
            whole.add(requests[step.thread])
        reports = [request for request, status in seen.ended if status == S]
        if seen.value == S and step.thread in requests:
            reports.append(requests[step.thread])
        for request in reports:
            mine = [state for owner, state in seen.chunks if owner == request]
            if not mine or any(state != "done" for state in mine):
                what = ", ".join(mine) or "none was handed over"
                return number, f"request {request} is told Success although chunks are missing: {what}"
            if request not in whole:
                return number, f"request {request} is told Success although its last chunk has not been handed over"
    return None


def reported(play: Play) -> bool:
    """Whether a request was told Success by the code itself, or could have been although a chunk of it has failed."""
    success = any(seen.value == S or any(status == S for _, status in seen.ended) for seen in play.seen)
    failed = any(state == "failed" for _, state in play.last.chunks) and bool(play.last.ended)
    return (success or failed) and not play.by_hand


def pinned(play: Play) -> Found | None:
    """The request is in the inflight queue, nothing is left to do, and polling does not move it."""
    stuck = f"the request stays in the inflight queue as {play.last.status}: it is pinned"
    return (len(play.seen) - 1, stuck) if play.at_rest and play.last.inflight else None


def failed_for_nothing(play: Play) -> Found | None:
    """The first request on the room id fails, although nothing that has happened to it makes one fail."""
    if play.by_hand:
        return None
    for number, step, seen in play.steps:
        if seen.created > 1 or seen.error or step.op in (*FAILING, "clear"):
            return None
        if seen.created and F in (seen.value, seen.status, dict(seen.ended).get(1)):
            return number, "the request has failed, although nothing has happened that makes one fail"
    return None


def unsettled(play: Play) -> Found | None:
    """A request that was sent has not ended, or its pages are not released; or its time is up and it goes on.

    Or it fails without a reason, which is no way to settle.
    """
    if early := failed_for_nothing(play):
        return early
    end = len(play.seen) - 1
    if play.script[-1].op == "timeout" and play.last.value == B:
        return end, "the time to bootstrap is up, and the request stays Bootstrapping for ever"
    if play.script[-1].op == "timeout" and play.last.value == S:
        return end, "the time to bootstrap is up, and the request is told Success"
    if not play.at_rest:
        return None
    for request in play.sent:
        if request not in dict(play.last.ended):
            return end, f"nothing is left to do, and request {request} has not ended: it is {play.last.status}"
        if request not in play.last.released:
            return end, f"request {request} has ended, and its pages are not released"
    if play.sent and play.last.created == len(play.last.ended) and _cleared(play) is None:
        return end, f"every request has ended, and the entry of the room is still {play.last.status}"
    return None


def came_to_rest(play: Play) -> bool:
    """Whether a request was sent and everything came to rest, or its time was up."""
    return (play.at_rest and bool(play.sent)) or play.script[-1].op == "timeout"


def released_early(play: Play) -> Found | None:
    """The pages of a request are released while a transfer reads them, or decode is told to release its own."""
    known = 0
    for number, _, seen in play.steps:
        if early := set(seen.flying) & set(seen.released):
            return number, f"the pages of request {min(early)} are released while a transfer reads them"
        told = {request for request, status in seen.told[known:] if status == F}
        if (early := set(seen.flying) & told) and not any(step.op == "abort_notice" for step in play.script):
            return number, f"decode is told that request {min(early)} has failed while a transfer writes into its pages"
        known = len(seen.told)
    return None


def in_flight(play: Play) -> bool:
    """Whether a transfer was in flight while the scheduler polled its inflight queue, or aborted the request."""
    return any(step.op in ("settle", "abort") and seen.flying for _, step, seen in play.steps)


def released_twice(play: Play) -> Found | None:
    """The pages of a request are released twice."""
    for number, _, seen in play.steps:
        if len(set(seen.released)) < len(seen.released):
            return number, f"the pages of request {seen.released[-1]} are released twice"
    return None


# --- What is told ---------------------------------------------------------------------------------


def contradicted(play: Play) -> Found | None:
    """The sender and decode are told different things, or decode is told both."""
    for number, step, seen in play.steps:
        for request in range(1, seen.created + 1):
            told = {status for life, status in seen.told if life == request and status in (F, S)}
            if told == {F, S}:
                return number, "decode is told Failed and Success"
            mine = dict(seen.ended).get(request)
            if mine is None and request == seen.created and step.op in ("poll", "reduce"):
                mine = seen.value
            if told and mine in (F, S) and told != {mine}:
                return number, f"the sender reports {mine} and decode is told {min(told)}"
    return None


def both_told(play: Play) -> bool:
    """Whether decode was told and the sender has polled an end."""
    polled = any(seen.value in (F, S) or seen.ended for seen in play.seen)
    return polled and any(status in (F, S) for _, status in play.last.told)


def told_wrong(play: Play) -> Found | None:
    """Decode was told twice, or not at all although it has not hung up itself."""
    end = len(play.seen) - 1
    for number, _, seen in play.steps:
        for request in range(1, seen.created + 1):
            told = [status for life, status in seen.told if life == request and status in (F, S)]
            if len(told) > 1:
                return number, f"decode is told {len(told)} times how request {request} ended: {', '.join(told)}"
    if not play.at_rest:
        return None
    for request, outcome in play.last.ended:
        told = [status for life, status in play.last.told if life == request and status in (F, S)]
        hung_up = any(step.op == "abort_notice" for step in play.script[play.since_created(request) :])
        if not told and not hung_up:
            return end, f"request {request} has ended as {outcome}, and decode is never told"
    return None


def ended_at_rest(play: Play) -> bool:
    """Whether a request has ended, so that decode has to know, or decode was told."""
    return (play.at_rest and bool(play.last.ended)) or any(status in (F, S) for _, status in play.last.told)


# --- Reuse ----------------------------------------------------------------------------------------


def inherited(play: Play) -> Found | None:
    """The second request on a room id, of which nothing has been heard, is not Bootstrapping.

    What is left of a first request that has neither ended nor failed is not held against the second.
    """
    for number, step, seen in play.steps:
        if step.op != "create" or seen.held or seen.created < 2:
            continue
        begun = play.since_created(seen.created)
        heard_of = [earlier.op for earlier in play.script[:number]]
        during = [earlier.op for earlier in play.script[begun:number]]
        early = heard_of.count("metadata") >= seen.created or any(op in HEARD_EARLY for op in during)
        if early or play.seen[begun - 1].status not in (ABSENT, F, W):
            continue
        if seen.status in (F, T, S):
            return number, f"the second request on the room id has only been created, and reads {seen.status}"
        if seen.status == W and (play.seen[begun - 1].status == F or was_absent_since_ended(play, begun)):
            adopted = ", with decode's metadata of the first" * seen.infos
            return number, f"the second request on the room id has only been created, and reads {seen.status}{adopted}"
    return None


def was_absent_since_ended(play: Play, begun: int) -> bool:
    """Whether the entry of the request before was gone at some time before a step."""
    return any(seen.status == ABSENT and seen.created == play.seen[begun - 1].created for seen in play.seen[:begun])


HEARD_EARLY: Final = ("abort_notice", "metadata")
"""What may be heard of a request before it is created."""


def condemned(play: Play) -> Found | None:
    """What the first request has left decides the second: it fails although nothing of it has, or works unasked."""
    second = play.last.created
    if second < 2:
        return None
    begun, spared = play.since_created(second), not play.fails(second)
    if not was_absent_since_ended(play, begun) and (begun == 0 or play.seen[begun - 1].status != F):
        return None  # two requests at once
    creating = True
    for number, step, seen in play.steps:
        if step.op == "create" and number >= begun:
            creating = seen.held
        if number <= begun or creating or step.op == "create" or play.by_hand:
            continue
        before = play.seen[number - 1].status
        if spared and before != F and (dict(seen.ended).get(second) == F or F in (seen.value, seen.status)):
            return number, "the second request becomes Failed although nothing of it has: for what the first has left"
        moved = zip(play.seen[number - 1].chunks, seen.chunks, strict=False)
        if any(owner < second and (was, state) in _SENT_LATE for (owner, was), (_, state) in moved):
            return number, "a chunk that was queued for the first request is sent in the life of the second"
        if seen.status in (T, S) and before not in (T, S) and not any(owner == second for owner, _ in seen.chunks):
            return number, f"the second request has not sent a chunk and becomes {seen.status}: by a chunk of the first"
    return None


_SENT_LATE: Final = {("queued", "flying"), ("queued", "done")}


def spoiled(play: Play) -> Found | None:
    """Either of both."""
    return inherited(play) or condemned(play)


def was_reused(play: Play) -> bool:
    """Whether a second request was created."""
    return play.last.created > 1


# --- Threads --------------------------------------------------------------------------------------


def died(play: Play) -> Found | None:
    """A handler raises, or a thread ends in an error."""
    if play.error is None or play.error[2].startswith(_DEADLOCK):
        return None
    number, thread, error = play.error
    before = play.seen[number - 1].dead if number else ()
    who = next((f"the {dead} thread" for dead in play.seen[number].dead if dead not in before), thread)
    return number, f"{who} dies: {error}"


def always(_: Play) -> bool:
    """Whatever is played could have raised."""
    return True


def stuck(play: Play) -> Found | None:
    """A thread waits for itself."""
    if play.error is None or not play.error[2].startswith(_DEADLOCK):
        return None
    number, thread, error = play.error
    return number, f"{thread}: {error.removeprefix(_DEADLOCK)}"


OBSERVERS: Final = MappingProxyType(
    {
        "terminal-sticky": Observer(overwritten, was_terminal(F, S)),
        "no-resurrection": Observer(back_at_work, was_terminal(F)),
        "success-not-overwritten": Observer(demoted, was_terminal(S)),
        "success-complete": Observer(incomplete, reported),
        "no-pin": Observer(pinned, lambda play: play.at_rest and bool(play.sent)),
        "settlement": Observer(unsettled, came_to_rest),
        "no-ghost": Observer(ghost, was_cleared),
        "pages-held": Observer(released_early, in_flight),
        "released-once": Observer(released_twice, lambda play: bool(play.last.released)),
        "one-outcome": Observer(contradicted, both_told),
        "no-lost-wakeup": Observer(asleep, heard),
        "room-reusable": Observer(spoiled, was_reused),
        NO_CRASH: Observer(died, always),
        NO_DEADLOCK: Observer(stuck, lambda play: play.last.locks > 0),
        TOLD_ONCE: Observer(told_wrong, ended_at_rest),
    }
)
"""By law: the spec's properties, and the three that no formula over the spec's state can say."""
