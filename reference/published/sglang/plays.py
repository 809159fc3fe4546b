"""A play: a script that was carried out on a published manager, and what was seen after each of its steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import attrs

from kvlatch.reference.published.sglang.scripts import ABSENT, Observation, Op, Script, Step
from kvlatch.spec.status import B, F, S, W

_BY_HAND: Final[tuple[Op, ...]] = ("write", "put", "pop_infos", "conclude")
"""Ops that do by themselves what in an engine another thread would do."""
REST: Final = (Step("worker 0", "work"), Step("scheduler", "settle"), Step("scheduler", "settle"))
"""After it everything that could still happen to a request that was sent has happened, but for the clock."""
FAILING: Final[tuple[Op, ...]] = ("abort", "abort_notice", "timeout", "break_transfer", "pop_infos", "lose_prefill")
"""What makes a request fail that would otherwise succeed."""


@attrs.frozen
class Play:
    """A script and what was seen after each of its steps."""

    script: Script
    seen: Sequence[Observation]

    @property
    def steps(self) -> Iterator[tuple[int, Step, Observation]]:
        """Each step with its number and what was seen after it."""
        for number, (step, seen) in enumerate(zip(self.script, self.seen, strict=True)):
            yield number, step, seen

    @property
    def silent(self) -> str | None:
        """Why it says nothing, if so: an op is missing, or has ended before it could be held."""
        for _, step, seen in self.steps:
            if seen.error:
                return None  # what comes after it may be missing because of it
            # A backend without a worker has posted every transfer when `send` returns: no work is left.
            if seen.missing and (step.op, step.part) != ("work", "whole"):
                return seen.missing
            if step.part in ("step", "post") and not seen.held:
                return f"there is nothing to hold a thread at in {step.op}"
        return None

    @property
    def last(self) -> Observation:
        """What is seen in the end."""
        return self.seen[-1]

    @property
    def polled(self) -> str:
        """What the last step's poll returned, or else the last status."""
        return self.last.value or self.last.status

    @property
    def by_hand(self) -> bool:
        """Whether a step does what in an engine another thread would do."""
        return any(step.op in _BY_HAND for step in self.script)

    @property
    def at_rest(self) -> bool:
        """Whether it ends with nothing left to do for the requests that were sent."""
        return tuple(self.script[-len(REST) :]) == REST

    @property
    def sent(self) -> tuple[int, ...]:
        """The requests that the scheduler has handed over as a whole, and that have entered its inflight queue."""
        entered: list[int] = []
        by_thread: dict[str, int] = {}
        before = 0
        for _, step, seen in self.steps:
            if step.op == "create" and seen.created > before:
                by_thread[step.thread] = before = seen.created
            if step.op == "send_last" and not (seen.error or seen.missing or seen.held) and step.thread in by_thread:
                entered.append(by_thread[step.thread])
        return tuple(entered)

    @property
    def lives(self) -> Iterator[tuple[int, Step, Observation, str | None]]:
        """Each step with the first terminal status that the entry has had until then, since it was created.

        A sender may be created while another thread's step is looked at: that one has waited for the sender's lock.
        """
        first = None
        creating: set[str] = set()
        for number, step, seen in self.steps:
            if step.op == "create":
                creating.add(step.thread)
            if seen.status == ABSENT or (creating and seen.status in (B, W)):
                first = None
            if step.op == "create" and step.part in ("whole", "finish"):
                creating.discard(step.thread)
            yield number, step, seen, first
            if first is None and seen.status in (F, S):
                first = seen.status

    @property
    def error(self) -> tuple[int, str, str] | None:
        """The first error that the real code raised: in which step, in whose thread, and what."""
        errors = ((number, step.thread, seen.error) for number, step, seen in self.steps if seen.error)
        return next(errors, None)

    def since_created(self, request: int) -> int:
        """The number of the step in which a request's creation began."""
        ended = next(number for number, _, seen in self.steps if seen.created >= request)
        thread = self.script[ended].thread
        while ended > 0 and self.script[ended - 1].op == "create" and self.script[ended - 1].thread == thread:
            if self.seen[ended - 1].created < request:
                break
            ended -= 1
        return ended

    def fails(self, request: int) -> bool:
        """Whether something has happened in the life of a request that makes it fail."""
        return any(step.op in FAILING for step in self.script[self.since_created(request) :])

    def until(self, number: int) -> Play:
        """The play up to and with one step."""
        return Play(self.script[: number + 1], self.seen[: number + 1])


@attrs.frozen
class Row:
    """One line of a trace that a person reads."""

    thread: str
    op: str
    status: str
    remark: str

    @classmethod
    def of(cls, play: Play) -> tuple[Row, ...]:
        """The trace of a play: an op that was led on access by access is one line until something else happens."""
        rows: list[Row] = []
        accesses: dict[str, int] = {}
        before: Observation | None = None
        for number, step, seen in play.steps:
            accesses[step.thread] = accesses.get(step.thread, 0) + 1 if step.part == "step" else 0
            continues = number > 0 and step.part == "step" and play.script[number - 1].thread == step.thread
            if continues and play.script[number - 1].part == "step":
                rows.pop()
            words = " ".join(filter(None, (step.op.replace("_", " "), step.status)))
            if seen.held:
                where = {"begin": "its store", "step": f"access {accesses[step.thread]}"}.get(step.part)
                words += f", held before {where}" if where else ", held in its transfer"
            elif step.part == "finish":
                words += " goes on to its end"
            rows.append(cls(step.thread, words, seen.status, ", ".join(_remarks(before, seen))))
            before = seen
        return tuple(rows)


def _remarks(before: Observation | None, seen: Observation) -> Iterator[str]:
    """What a step has shown beside the status."""
    known = before or Observation(ABSENT, infos=False, value=None, held=False, error=None)
    if any(message.startswith("ABORT") for message in seen.heard):
        yield f"hears {', '.join(seen.heard)}"
    yield from seen.waited
    if seen.error:
        yield seen.error
    if seen.value:
        yield f"polls {seen.value}"
    for request, status in seen.told[len(known.told) :]:
        yield f"tells decode {status}" + (f" in the life of request {request}" if seen.created > 1 else "")
    for request, status in seen.ended[len(known.ended) :]:
        yield f"request {request} ends as {status}"
    for request in seen.released[len(known.released) :]:
        yield f"the pages of request {request} are released"
    for thread in seen.dead[len(known.dead) :]:
        yield f"the {thread} thread is dead"
