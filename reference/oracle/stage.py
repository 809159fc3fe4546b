"""One play on a fresh manager: each call on its thread, and what is seen after it.

Longer than 400 lines because a play is one object: what begins it, each step, and what is seen share its state.
"""

from __future__ import annotations

import gc
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import CodeType, FrameType
from typing import Any, Final

import attrs

from kvlatch.reference.faults import AdapterFault
from kvlatch.reference.foreign import recorder
from kvlatch.reference.oracle import subject
from kvlatch.reference.oracle.adapter import Done, MakeAdapter, Probe, missing
from kvlatch.reference.oracle.digest import Digest
from kvlatch.reference.oracle.interleave import Cast, Hung, Moved, pause
from kvlatch.reference.oracle.moves import (
    CLOCK,
    ROOM,
    SCHEDULER,
    Call,
    Fault,
    Halted,
    RoomId,
    Script,
    Seen,
    Step,
)  # fmt: skip
from kvlatch.reference.oracle.places import ORACLE, is_library, short
from kvlatch.reference.oracle.primitives import Busy
from kvlatch.reference.oracle.real_locks import exchange
from kvlatch.reference.oracle.sharing import Sharing
from kvlatch.spec.status import KVPoll

_ALL: Final = 1_000_000
"""More places than a call passes."""
_ENOUGH: Final = 10_000
"""More threads than go on until all wait."""
_WAIT: Final = 600.0
_SET_BACK: Final = -3600.0
"""How many seconds the clock of the day jumps."""
_BETWEEN_COLLECTIONS: Final = 50
"""How many plays are made before their garbage is collected."""
_FRAMES: Final = 40
"""How many frames of a traceback are shown, the innermost."""
_AFTER_A_HANG: Final = 0.5
"""For how many seconds a step may hang once one has hung."""
_ROUND: Final = ("tick", "quiesce")
"""What the scheduler calls when its loop goes round, where the adapter has it."""
_ELSEWHERE: Final = 4_000_000_007
"""A room that is none of a play's."""


@attrs.define(eq=False)
class House:
    """What the plays of one player have in common: the manager, its threads, and what is known of its code."""

    make: MakeAdapter
    cast: Cast
    sharing: Sharing = attrs.field(factory=Sharing)
    digest: Digest = attrs.field(factory=Digest)
    watched: set[CodeType] = attrs.field(factory=set)
    anew: subject.Anew | None = None
    kept: list[subject.Kept] = attrs.field(factory=list)
    plays: int = 0
    steps: int = 0
    answered: set[str] = attrs.field(factory=set)
    """What has answered or told as it should: then the adapter is not to blame if it does otherwise."""


class Stage:
    """One play on a fresh manager, step by step."""

    def __init__(self, house: House) -> None:
        self._house = house
        self._cast = house.cast
        self._done: list[Done] = []
        self._adapter: Any = None
        self._calls: dict[str, Call] = {}
        self._room: RoomId = ROOM
        self._called: RoomId = ROOM
        """The room of the last call that has begun: what threads of the manager's own do is seen there."""
        self._last: dict[RoomId, KVPoll | None] = {}
        self._hung: Seen | None = None
        self._passers_by = 0

    def begin(self) -> None:
        """Make the adapter, on the scheduler's thread, and let the manager's own threads begin."""
        house = self._house
        probe = Probe(self._done, house.sharing.touched, lambda function: house.watched.add(function.__code__))
        make = house.anew.make if house.anew is not None else lambda: house.make
        recorder.fresh()
        recorder.step("the making of the adapter")
        try:
            self._cast.go(SCHEDULER, lambda: _seen_through(make()(probe)), _ALL)
            house.sharing.recording = True
            self._settle(SCHEDULER)
        except Hung as hung:
            where, place = _place_in(hung.frame)
            raise AdapterFault(
                f"making the adapter has not ended in {hung.patience:g} s: it {where} ({place})"
            ) from None
        task = self._cast.tasks[SCHEDULER]
        if task.halted:
            raise AdapterFault(f"making the adapter never ends: it {task.at} ({task.place})")
        if task.ended.error is not None:
            file, line = _blamed(task.ended.error)
            where = f" ({file}, line {line})" if file else ""
            raise AdapterFault(f"making the adapter raised {_said(task.ended.error)}{where}") from task.ended.error
        self._adapter = task.ended.value
        if lacking := missing(self._adapter):
            raise AdapterFault(
                f"what is made as the adapter, of class {type(self._adapter).__name__}, has no {lacking}"
            )

    def warm_up(self) -> None:
        """Another request comes and goes, alone."""
        self._passers_by += 1
        with suppress(Hung):
            self._cast.go(SCHEDULER, lambda: _passes_by(self._adapter, self._passers_by), _ALL)
            self._settle(SCHEDULER)
        self._done.clear()

    def go(self, step: Step, passes: int = 0) -> Moved:
        """Make one step; ``passes`` is how many hold points its thread runs through."""
        self._done.clear()
        if step.call is not None:
            self._calls[step.thread] = step.call
            self._room = self._called = step.call.room
        else:
            self._room = self._calls[step.thread].room if step.thread in self._calls else self._called
        if self._hung is not None:
            return Moved()
        if recorder.kept():
            recorder.step(f"{step.call or 'what it was held in'} on {step.thread}")
        if step.call is not None and step.call.event == "tick" and self._has_no_round:
            passes = _ALL  # whoever passes by is not what is looked at
        try:
            moved = self._go(step, passes)
            task = self._cast.tasks.get(step.thread)
            if passes == _ALL:
                self._settle(step.thread)
                moved = moved if task is None else Moved(at=task.at) if task.halted else task.ended
            while passes != _ALL and task is not None and task.halted and task.passes > 0:
                moved = self._cast.go(step.thread, None, task.passes - 1)  # on, after a wait for something
            while passes != _ALL and task is not None and self._cast.sleeps_on(task):
                moved = self._cast.go(step.thread, None, _ALL)
            self._status()
            return moved
        except Hung as hung:
            self._cast.patience = min(self._cast.patience, _AFTER_A_HANG)
            where, place = _place_in(hung.frame)
            waits = Halted(hung.task.name, f"{where} and does not come to rest", place, blocked=True)
            threads = (*self._threads(), waits)
            self._hung = Seen(self._last.get(self._room), waits.at, threads=threads, key=b"", hung=True)
            return Moved()

    def step(self, step: Step, *, whole: bool = False, keyed: bool = False) -> Seen:
        """Make one step, and say what is seen after it; ``whole``: the call goes on to its end, held nowhere."""
        self._house.steps += 1
        moved = self.go(step, _ALL if whole else 0)
        return self._hung or self._seen(step, moved, keyed)

    def rehearse(self, life: Script) -> None:
        """Play whole calls, one after another."""
        for step in life:
            seen = self.step(step, whole=True)
            if seen.hung or seen.held is not None or seen.faults:
                return

    def parts(self) -> list[object]:
        """The objects that the adapter is made of."""
        return subject.parts(self._adapter)

    def close(self) -> None:
        """End the play."""
        self._house.sharing.recording = False
        task = self._cast.tasks.get(SCHEDULER)
        if hasattr(self._adapter, "close") and task is not None and not task.halted:
            recorder.step("close()")
            try:
                self._cast.go(SCHEDULER, self._adapter.close, _ALL)
                self._settle(SCHEDULER)
            except Hung:
                pass  # whatever it does: the play is over
        recorder.now("")
        self._cast.reset()
        self._house.sharing.fresh()
        self._house.plays += 1
        if self._house.plays % _BETWEEN_COLLECTIONS == 0:
            gc.collect(0)

    def _settle(self, thread: str) -> None:
        """Let the threads go on, this one first, until all have come to their end or wait."""
        for _ in range(_ENOUGH):
            able = [task.name for task, can in self._cast.halted() if can and (task.own or task.name == thread)]
            if not able:
                return
            self._cast.go(thread if thread in able else able[0], None, _ALL)

    def _go(self, step: Step, passes: int) -> Moved:
        call = step.call
        if call is not None and step.thread == CLOCK:
            self._cast.now += _WAIT if call.event == "wait" else 0.0
            self._cast.set_back += 0.0 if call.event == "wait" else _SET_BACK
            return Moved()
        if call is not None and call.event == "tick":
            self._cast.now = max(self._cast.now, *(d for d in self._deadlines() if d < self._cast.now + _WAIT), 0.0)
            if self._has_no_round:
                self._passers_by += 1
                return self._cast.go(step.thread, lambda: _passes_by(self._adapter, self._passers_by), passes)
        act = None if call is None else self._watching(lambda: _perform(self._adapter, call))
        return self._cast.go(step.thread, act, passes)

    @property
    def _has_no_round(self) -> bool:
        return not any(hasattr(self._adapter, name) for name in _ROUND)

    def _deadlines(self) -> Iterator[float]:
        yield self._cast.now
        yield from (task.deadline for task in self._cast.tasks.values() if task.own and task.deadline is not None)

    def _watching(self, act: Callable[[], object]) -> Callable[[], object]:
        """An act that is held before each line of watched code."""
        watched = self._house.watched
        if not watched:
            return act

        def trace(frame: FrameType, event: str, _: object) -> Any:
            if frame.f_code not in watched:
                return None
            if event == "line":
                pause(f"runs line {frame.f_lineno}", short(frame.f_code.co_filename, frame.f_lineno))
            return trace

        def traced() -> object:
            sys.settrace(trace)
            try:
                return act()
            finally:
                sys.settrace(None)

        return traced

    # --- What is seen ---

    def _seen(self, step: Step, moved: Moved, keyed: bool) -> Seen:
        if moved.error is not None:
            return self._failed(_fault(step.thread, moved.error))
        call = self._calls.get(step.thread)
        where = f"{call.event} (request {call.request}) on {step.thread}" if call is not None else step.thread
        try:
            answer = self._answered(call, moved.value, where) if call is not None and moved.at is None else None
            words = [(whose, n, None if word is None else self._terminal(word, where)) for whose, n, word in self._done]
        except _NoAnswer as wrong:
            if wrong.by not in self._house.answered:
                raise
            return self._failed(self._wrong(step.thread, wrong))
        here, threads = self._room, self._threads()
        return Seen(
            self._last.get(here),
            moved.at,
            any(one.thread == step.thread and one.blocked for one in threads),
            answer,
            released=tuple(n for whose, n, word in words if word is None and whose == here),
            told=tuple((n, word) for whose, n, word in words if word is not None and whose == here),
            elsewhere=tuple(one for one in words if one[0] != here),
            threads=threads,
            key=self._key() if keyed else b"",
        )

    def _failed(self, fault: Fault) -> Seen:
        return Seen(self._last.get(self._room), faults=(fault,), threads=self._threads(), key=b"")

    def _answered(self, call: Call, value: object, where: str) -> KVPoll | bool | None:
        """What a poll or a start has answered."""
        if call.event == "poll":
            answer: KVPoll | bool | None = _status(value, where, "poll")
        elif call.event == "start":
            answer = _truth(value, where)
        else:
            return None
        self._house.answered.add(call.event)
        return answer

    def _terminal(self, value: object, where: str) -> KVPoll:
        """What decode is told."""
        status = _status(value, f"tell() in {where}", "tell")
        if status not in (KVPoll.Failed, KVPoll.Success):
            told = f"tell() in {where} was given {value!r}: decode is told Failed or Success"
            raise _NoAnswer(told, "tell", f"a word to decode that is {value!r}, neither Failed nor Success,")
        self._house.answered.add("tell")
        return status

    def _wrong(self, thread: str, wrong: _NoAnswer) -> Fault:
        """What the manager says wrongly at times, and rightly at others."""
        code = getattr(getattr(self._adapter, wrong.by, None), "__code__", None)
        file, line = (None, None) if code is None else (code.co_filename, code.co_firstlineno)
        return Fault(thread, wrong.what, file, line)

    def _status(self) -> None:
        """Look at the entry of the room; it stays as it was if the adapter would have to wait to say so."""
        recorder.now("status()")
        with suppress(Busy):
            self._last[self._room] = _status(self._adapter.status(self._room), "status()")

    def _threads(self) -> tuple[Halted, ...]:
        return tuple(
            Halted(
                task.name, task.at or "", task.place, not can, tuple(getattr(lock, "made", "") for lock in task.locks)
            )
            for task, can in self._cast.halted()
        )

    def _key(self) -> bytes:
        house = self._house
        roots = [self._adapter, *(one.value() for one in house.kept), self._cast.now, self._cast.set_back]
        return house.digest.of(roots, self._cast.tasks.values())


def _seen_through(adapter: Any) -> Any:
    """An adapter whose locks are all seen."""
    exchange(adapter)
    return adapter


def _perform(adapter: Any, call: Call) -> object:
    """One call, as the adapter's method."""
    room, request = call.room, call.request
    match call.event:
        case "create":
            adapter.create(room, request)
        case "metadata":
            adapter.metadata(room, request)
        case "abort_notice":
            adapter.abort_notice(room, request)
        case "abort":
            adapter.abort(room, request)
        case "start":
            return adapter.start(room, request, call.chunk, call.last)
        case "finish" | "break":
            adapter.finish(room, request, call.chunk, call.last, call.event == "finish")
        case "poll":
            return adapter.poll(room, request)
        case "clear":
            adapter.clear(room, request)
        case "tick":
            for name in _ROUND:
                getattr(adapter, name, _nothing)()
    return None


def _nothing() -> None:
    pass


def _passes_by(adapter: Any, request: int) -> None:
    """Another request comes and goes, in the place of a round of the scheduler: some managers do then what is due."""
    adapter.create(_ELSEWHERE, request)
    adapter.poll(_ELSEWHERE, request)
    adapter.abort(_ELSEWHERE, request)
    adapter.poll(_ELSEWHERE, request)
    adapter.clear(_ELSEWHERE, request)


def _fault(thread: str, error: BaseException) -> Fault:
    file, line = _blamed(error)
    return Fault(thread, _said(error), file, line, "".join(traceback.format_exception(error, limit=-_FRAMES)))


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _blamed(error: BaseException) -> tuple[str | None, int | None]:
    """The innermost place in the manager's code through which an exception has come."""
    places = [
        (frame.f_code.co_filename, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if not is_library(frame.f_code.co_filename)
    ]
    return places[-1] if places else (None, None)


def _place_in(frame: FrameType | None) -> tuple[str, str]:
    """What a thread that does not come to rest is doing."""
    while frame is not None and is_library(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return "runs", ""
    return f"runs {frame.f_code.co_qualname}", short(frame.f_code.co_filename, frame.f_lineno)


class _NoAnswer(AdapterFault):
    """What is said by a poll, a start or a tell is nothing that it could say; ``what`` is a piece of a sentence."""

    def __init__(self, text: str, by: str, what: str) -> None:
        super().__init__(text)
        self.by = by
        self.what = what


def _status(value: object, where: str, by: str = "status") -> KVPoll | None:
    if value is None:
        return None
    try:
        return KVPoll(value)  # type: ignore[arg-type]  # whatever it is: that is what is checked here
    except ValueError:
        text = f"{where} returned {value!r}: it is a KVPoll, or None for no entry"
        raise _NoAnswer(text, by, f"an answer of {value!r}, which is no status,") from None


def _truth(value: object, where: str) -> bool:
    if not isinstance(value, bool):
        text = f"{where} returned {value!r}: it is True to transfer the chunk, False to skip it"
        raise _NoAnswer(text, "start", f"an answer of {value!r}, neither True nor False,")
    return value


ORACLE.add(__file__)
