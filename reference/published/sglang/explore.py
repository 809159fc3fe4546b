"""Looks for runs that break a law where nobody has thought of looking: plays of the real threads, shortest first.

A play is a life of the room: its request is created, hears decode's metadata, is sent in one or two chunks, is aborted
or not, by the client or by decode; a transfer ends in an error or not; and a second request may follow. Threads come in
any order that an engine allows, and up to two of them are left in the middle of an op, before any access of the tables,
any lock, any word to decode, or in a transfer, while others go on. Then everything comes to rest.

First every play with one such pause, by length; then plays with two, drawn at random. All observers see every play.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from math import inf
from typing import Final

import attrs

from kvlatch.reference.laws import Judgement
from kvlatch.reference.published.sglang.findings import Finding
from kvlatch.reference.published.sglang.judge import answer_of, judgement, play_all
from kvlatch.reference.published.sglang.observers import OBSERVERS
from kvlatch.reference.published.sglang.plays import REST, Play
from kvlatch.reference.published.sglang.scenarios import (
    ABORT,
    BREAK,
    CLEAR,
    CREATE,
    METADATA,
    NOTICE,
    POLL,
    SEND,
    SEND_LAST,
    SETTLE,
    TIMEOUT,
    WORK,
)  # fmt: skip
from kvlatch.reference.published.sglang.scripts import Op, Part, Script, Step
from kvlatch.reference.published.sglang.subjects import Subject

NAME: Final = "explored"
"""The scenario of each law that is not written down anywhere."""
_BATCH: Final = 400
_PATIENCE: Final = 600.0
NOT_HELD: Final = "an op has ended before it could be held"
"""Why a play is left out: an op has no such access."""
_PAUSES: Final[tuple[tuple[Part, int], ...]] = (("post", 1), *(("step", times) for times in range(1, 27)))
"""Where an op is left: in its transfer, or before its first, second, ... access of a table, a lock or the wire."""
_HELD: Final[tuple[Op, ...]] = (
    "create", "metadata", "abort_notice", "abort", "work", "settle", "clear", "poll", "send", "send_last",
)  # fmt: skip


@attrs.frozen
class Explored:
    """What was found: a judgement for each law, how many plays were made, and how many were left out, by the reason.

    ``steps`` has the length of the shortest run of each broken law.
    """

    judgements: tuple[Judgement, ...]
    plays: int
    left_out: dict[str, int]
    steps: dict[str, int]


# --- Which plays ----------------------------------------------------------------------------------


def lives() -> Iterator[tuple[Step, ...]]:
    """Whole ops in the orders that an engine allows, for one request and for two, shortest first."""
    yield from sorted(chain(_first(), _second()), key=len)


def _first() -> Iterator[tuple[Step, ...]]:
    for opened in ((CREATE, METADATA), (METADATA, CREATE)):
        for sent in ((SEND_LAST,), (SEND, SEND_LAST), (SEND, WORK, SEND_LAST)):
            base = (*opened, POLL, *sent, WORK, SETTLE)
            yield base
            for event in (ABORT, NOTICE, BREAK):
                for place in range(base.index(POLL) + 1, len(base)):
                    yield (*base[:place], event, *base[place:])
            for late in (NOTICE, METADATA):  # decode has not heard yet that it is over
                yield (*base, late)
    for three in ((SEND, SEND, SEND_LAST), (SEND, WORK, SEND, SEND_LAST), (SEND, SEND, WORK, SEND_LAST)):
        yield (CREATE, METADATA, POLL, *three, WORK, SETTLE)
        for event in (ABORT, NOTICE, BREAK):
            yield (CREATE, METADATA, POLL, *three[:2], event, *three[2:], WORK, SETTLE)
    for ended in ((TIMEOUT, CLEAR), (NOTICE, TIMEOUT, CLEAR), (TIMEOUT, CLEAR, NOTICE)):  # its time is up
        yield (CREATE, *ended)
        yield (CREATE, *ended, METADATA)
    for event in (ABORT, NOTICE):  # before it is admitted: then it is cleared, and never sent
        yield (CREATE, event, POLL, CLEAR, METADATA)
        yield (CREATE, METADATA, event, POLL, CLEAR)
        yield (event, CREATE, METADATA, POLL, SEND_LAST, WORK, SETTLE) if event is NOTICE else (CREATE, event, CLEAR)


def _second() -> Iterator[tuple[Step, ...]]:
    """A second request on the room id, once the first has left the inflight queue, or was aborted unsent."""
    again = (CREATE, METADATA, POLL, SEND_LAST, WORK, SETTLE)
    sent = (CREATE, METADATA, POLL, SEND_LAST)
    events: tuple[tuple[Step, ...], ...] = ((), (ABORT,), (NOTICE,), (BREAK,))
    for event in events:
        yield (*sent, *event, WORK, SETTLE, *again)
        yield (*sent, WORK, *event, SETTLE, *again)
    for abort in (ABORT, NOTICE):
        yield (CREATE, METADATA, abort, POLL, CLEAR, *again)
        yield (CREATE, METADATA, POLL, SEND, abort, CLEAR, *again)
        yield (CREATE, METADATA, POLL, SEND, abort, CLEAR, WORK, *again)
        yield (CREATE, METADATA, POLL, SEND, WORK, abort, CLEAR, *again)
        yield (CREATE, METADATA, POLL, SEND_LAST, WORK, SETTLE, CREATE, METADATA, abort, POLL, CLEAR, *again)
    for unsent in ((), (METADATA, POLL), (METADATA, POLL, SEND), (METADATA, POLL, SEND, WORK)):
        yield (CREATE, *unsent, ABORT, *again)  # some paths of the scheduler abort a request and clear nothing
    yield (CREATE, TIMEOUT, CLEAR, *again)
    yield (*sent, WORK, SETTLE, *again, *again)


@attrs.frozen
class Paused:
    """A script in which one op of a life is left; ``place`` says which, ``times`` before which access."""

    script: Script
    place: tuple[int, int] | None = None
    times: int = 0


def with_one_pause(index: int, life: Sequence[Step]) -> Iterator[Paused]:
    """Each op of a life left at each place, while the next one, two, ... ops of other threads go on."""
    for number, step in enumerate(life):
        for part, times in _PAUSES if step.op in _HELD else ():
            if part == "post" and step.op != "work":
                continue
            for others in range(1, len(life) - number):
                following = life[number + others]
                if following.thread == step.thread or (step.op, following.op) == ("metadata", "poll"):
                    break  # it has to end this op first; or the request would not be admitted
                script = _left(life, number, part, times, others)
                yield Paused(script, (index, number), times if part == "step" else 0)


def _left(life: Sequence[Step], number: int, part: Part, times: int, others: int) -> Script:
    held, end = attrs.evolve(life[number], part=part), attrs.evolve(life[number], part="finish")
    after = number + 1 + others
    return (*life[:number], *[held] * times, *life[number + 1 : after], end, *life[after:], *REST)


def drawn(seed: int) -> Iterator[Script]:
    """Lives with two pauses, or with their ops in another order, drawn at random, for ever."""
    draw = random.Random(seed)  # noqa: S311  # nothing secret
    known = list(lives())
    while True:
        life = list(draw.choice(known))
        for event in draw.sample((ABORT, NOTICE, BREAK, METADATA), draw.randint(0, 2)):
            life.insert(draw.randint(life.index(CREATE) + 1, len(life)), event)
        queue, script = [*life], []
        held: dict[str, tuple[Step, int]] = {}
        while queue:
            step = queue.pop(0)
            ready = [name for name, (_, wait) in held.items() if wait <= 0 or name == step.thread]
            script += [attrs.evolve(held.pop(name)[0], part="finish") for name in ready]
            held = {name: (left, wait - 1) for name, (left, wait) in held.items()}
            if len(held) < 2 and step.op in _HELD and draw.random() < 0.4:
                part, times = draw.choice([pause for pause in _PAUSES if pause[0] == "step" or step.op == "work"])
                script += [attrs.evolve(step, part=part)] * times
                held[step.thread] = step, draw.randint(1, 4)
            else:
                script.append(step)
        yield (*script, *(attrs.evolve(step, part="finish") for step, _ in held.values()), *REST)


def plays_of_interest(seed: int) -> Iterator[Paused]:
    """All of them: lives without a pause, with one, and then drawn ones, for ever."""
    known = [*lives()]
    yield from (Paused((*life, *REST)) for life in known)
    paused = [one for index, life in enumerate(known) for one in with_one_pause(index, life)]
    yield from sorted(paused, key=lambda one: (sum(step.part != "step" for step in one.script), len(one.script)))
    yield from map(Paused, drawn(seed))


# --- What came of them ----------------------------------------------------------------------------


def explore(
    subject: Subject,
    backend: str,
    laws: Sequence[str],
    *,
    seconds: float = inf,
    most: float = inf,
    seed: int = 0,
    enough: int | None = None,
) -> Explored:
    """Play until the time is up, ``most`` plays were made, or ``enough`` of these laws are broken, by default all.

    Plays are made in batches, so it may be a few more. Without ``seconds`` what is found depends on the code alone.

    Raises as ``scripts.outcomes`` does.
    """
    deadline = time.monotonic() + seconds
    counted: list[Play] = []
    left_out: Counter[str] = Counter()
    accesses: dict[tuple[int, int], int] = {}  # how many an op of a life makes, once that is known
    scripts = (one for one in plays_of_interest(seed) if one.place is None or one.times <= accesses.get(one.place, 99))
    plays = 0
    open_laws = set(laws)
    leave = len(laws) - (len(laws) if enough is None else enough)
    while (
        len(open_laws) > leave and time.monotonic() < deadline and plays < (most if counted else min(most, 2 * _BATCH))
    ):
        batch = [*islice(scripts, _BATCH)]
        for one, play in zip(
            batch, play_all(subject, backend, [b.script for b in batch], timeout=_PATIENCE), strict=True
        ):
            plays += 1
            reason = why_left_out(play)
            if reason == NOT_HELD and one.place is not None:
                accesses[one.place] = min(one.times - 1, accesses.get(one.place, 99))
            if reason is not None:
                left_out[reason] += 1
                continue
            counted.append(play)
            open_laws -= {law for law in open_laws if OBSERVERS[law].broken(play)}
    judgements, steps = [], {}
    for law in laws:
        answer = answer_of(subject, backend, law, NAME, OBSERVERS[law], counted)
        if isinstance(answer, Finding):
            steps[f"{law}/{NAME}"] = answer.steps
        judgements.append(judgement(law, NAME, answer))
    return Explored(tuple(judgements), plays, dict(left_out), steps)


def why_left_out(play: Play) -> str | None:
    """Why a play is none that an engine could make, or says nothing; None if it counts."""
    if play.silent is not None:
        return NOT_HELD if play.silent.startswith("there is nothing to hold") else play.silent
    admitted: dict[int, bool] = {}
    for number, step, seen in play.steps:
        if step.op == "poll" and seen.value is not None:
            admitted[seen.created] = seen.value == "WaitingForInput"
        if step.op in ("send", "send_last") and not admitted.get(seen.created, False):
            return "a request that is not admitted is sent"
        if step.op == "create" and number > 0 and play.seen[number - 1].inflight and seen.created > 1:
            return "a second request while the first is in flight"
    return None
