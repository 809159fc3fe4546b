"""A manager in this process, played on real threads that are held where two of them touch the same thing.

Before the first play the manager's own modules are rewritten so that each access is seen (``instrument.py``), and a few
whole lives are played to learn where threads share something without a common lock (``sharing.py``). Each play makes a
fresh manager, whose locks, queues, threads and clock are the cast's (``primitives.py``, ``interleave.py``).

Longer than 400 lines because one play, from the first move to the last look, is one class and its state.
"""

from __future__ import annotations

import gc
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from types import CodeType, FrameType
from typing import Any, Final

from kvlatch.reference.faults import AdapterFault
from kvlatch.reference.foreign import recorder
from kvlatch.reference.oracle import subject
from kvlatch.reference.oracle.adapter import Done, MakeAdapter, Probe, missing
from kvlatch.reference.oracle.budget import SECOND
from kvlatch.reference.oracle.digest import Digest
from kvlatch.reference.oracle.instrument import Instrumented, publish
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
from kvlatch.reference.oracle.primitives import ORACLE, Busy, Primitive, installed, is_library, short
from kvlatch.reference.oracle.rehearsals import LIVES
from kvlatch.reference.oracle.sharing import Sharing
from kvlatch.reference.oracle.turns import turns
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
_AFTER_A_HANG: Final = 0.5
"""For how many seconds a step may hang once one has hung."""
_STEP: Final = 200
_TURN: Final = 125
"""What a step counts as work, with what the harness thinks of it, and a turn of a thread: see ``budget.py``."""


class InProcess:
    """A :class:`~.moves.Player` for adapters in this process.

    ``patience`` is for how many seconds a step may hang, as a :class:`~.interleave.Cast` counts them.
    With ``held`` False no thread is held inside a call: each is made as a whole, as far as it does not wait.
    """

    def __init__(self, make_adapter: MakeAdapter, patience: float = 3.0, *, held: bool = True) -> None:
        self._make = make_adapter
        self._cast = Cast(patience)
        self._instrumented = Instrumented()
        self._sharing = Sharing()
        self._sharing.fixed = not held
        self._digest = Digest()
        self._watched: set[CodeType] = set()
        self._anew: subject.Anew | None = None
        self._kept: list[subject.Kept] = []
        self._prepared = False
        self._plays = 0
        self._steps = 0
        self._session: _Session | None = None

    # --- Where threads are held ---

    @property
    def places(self) -> tuple[str, ...]:
        """Where threads are held: where two of them touch the same thing without a common lock."""
        self._prepare()
        return tuple(sorted(self._sharing.places))

    def learn(self) -> bool:
        """Hold threads also at the places that the last plays have shown; True if there are any, to begin again."""
        return self._sharing.learn()

    def hold(self, places: Sequence[str]) -> None:
        """Hold threads at these places too, and learn no more."""
        self._prepare()
        self._sharing.places |= set(places)
        self._sharing.fixed = True

    @property
    def unseen(self) -> tuple[str, ...]:
        """What the plays do not look into: files whose source does not fit, and types of objects that are opaque."""
        return (*sorted(self._instrumented.blind), *sorted(self._digest.opaque))

    @property
    def work(self) -> int:
        """How much it has done so far: steps, turns of threads, accesses to shared things, and atoms of digests."""
        hung = int(self._cast.hung * SECOND)
        return self._steps * _STEP + self._cast.turns * _TURN + self._sharing.touches + self._digest.atoms + hung

    # --- Playing ---

    def play(self, scripts: Sequence[Script]) -> list[Seen]:
        """What is seen after the last step of each script; AdapterFault if the adapter cannot be made or understood."""
        self._prepare()
        self._end_session()
        with self._on_stage():
            return [self._played(script) for script in scripts]

    def _played(self, script: Script) -> Seen:
        *before, last = turns(script)
        stage = _Stage(self)
        try:
            stage.begin()
            for turn in before:
                stage.go(turn.step, turn.passes)
            return stage.step(last.step, keyed=True)
        finally:
            stage.close()

    def begin(self) -> _Session:
        """A play on a fresh manager, to be made step by step, until it is closed or another one begins."""
        self._prepare()
        self._end_session()
        self._session = _Session(self)
        return self._session

    def _end_session(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

    def close(self) -> None:
        """End the threads, and give the manager's functions their own code back."""
        self._end_session()
        self._cast.close()
        self._instrumented.restore()

    @contextmanager
    def _on_stage(self) -> Iterator[None]:
        with ExitStack() as stack:
            if gc.isenabled():  # what is collected may run foreign code, at any point of a play
                gc.disable()
                stack.callback(gc.enable)
            stack.enter_context(installed())
            if self._anew is not None:
                stack.enter_context(self._anew.importing())
            Primitive.touch = self._sharing.touch
            publish(self._sharing.hooks())
            yield

    def _prepare(self) -> None:
        """Rewrite the manager's modules, find out whether they keep anything, and learn where threads are held."""
        if self._prepared:
            return
        self._prepared = True
        modules = subject.own_modules(self._make, self._parts())
        files = subject.labels(modules)
        self._instrumented.add(files)
        self._kept = subject.kept(modules)
        if subject.Anew.possible(self._make) and (subject.holds_real_things(modules) or self._keeps_something()):
            self._anew = subject.Anew(self._make, modules, files)
        for life in LIVES if not self._sharing.fixed else ():
            self._rehearse(life)
        self._sharing.learn()

    def _parts(self) -> list[object]:
        with self._on_stage():
            stage = _Stage(self)
            try:
                stage.begin()
                return stage.parts()
            finally:
                stage.close()

    def _rehearse(self, life: Script) -> None:
        with self._on_stage():
            stage = _Stage(self)
            try:
                stage.begin()
                stage.rehearse(life)
            finally:
                stage.close()

    def _keeps_something(self) -> bool:
        """What the modules keep is not the same after a life as before."""
        before = self._digest.of(one.value() for one in self._kept)
        self._rehearse(LIVES[0])
        return before != self._digest.of(one.value() for one in self._kept)


class _Session:
    """A play in progress, whose stage is set for as long as it lasts."""

    def __init__(self, player: InProcess) -> None:
        self._stack = ExitStack()
        self._stack.enter_context(player._on_stage())
        self._stage = _Stage(player)
        self._stack.callback(self._stage.close)
        try:
            self._stage.begin()
        except BaseException:
            self._stack.close()
            raise

    def step(self, step: Step, *, whole: bool = False) -> Seen:
        """Make one step, and say what is seen after it; ``whole``: the call goes on to its end, held nowhere."""
        return self._stage.step(step, whole=whole)

    def close(self) -> None:
        """End the play."""
        self._stack.close()


class _Stage:
    """One play on a fresh manager, step by step."""

    def __init__(self, player: InProcess) -> None:
        self._player = player
        self._cast = player._cast
        self._done: list[Done] = []
        self._adapter: Any = None
        self._calls: dict[str, Call] = {}
        self._room: RoomId = ROOM
        self._last: dict[RoomId, KVPoll | None] = {}
        self._hung: Seen | None = None

    def begin(self) -> None:
        """Make the adapter, on the scheduler's thread, and let the manager's own threads begin."""
        player = self._player
        probe = Probe(self._done, player._sharing.touched, lambda function: player._watched.add(function.__code__))
        make = player._anew.make if player._anew is not None else lambda: player._make
        recorder.fresh()
        recorder.step("the making of the adapter")
        try:
            self._cast.go(SCHEDULER, lambda: make()(probe), _ALL)
            player._sharing.recording = True
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

    def go(self, step: Step, passes: int = 0) -> Moved:
        """Make one step, past so many places where its thread would be held."""
        self._done.clear()
        if step.call is not None:
            self._calls[step.thread] = step.call
            self._room = step.call.room
        elif step.thread in self._calls:
            self._room = self._calls[step.thread].room
        if self._hung is not None:
            return Moved()
        if recorder.kept():
            recorder.step(f"{step.call or 'what it was held in'} on {step.thread}")
        try:
            moved = self._go(step, passes)
            task = self._cast.tasks.get(step.thread)
            if passes == _ALL:
                self._settle(step.thread)
                moved = moved if task is None else Moved(at=task.at) if task.halted else task.ended
            while passes != _ALL and task is not None and task.halted and task.passes > 0:
                moved = self._cast.go(step.thread, None, task.passes - 1)  # on, after a wait for something
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
        self._player._steps += 1
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
        self._player._sharing.recording = False
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
        self._player._sharing.fresh()
        self._player._plays += 1
        if self._player._plays % _BETWEEN_COLLECTIONS == 0:
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
        act = None if call is None else self._watching(lambda: _perform(self._adapter, call))
        return self._cast.go(step.thread, act, passes)

    def _deadlines(self) -> Iterator[float]:
        yield self._cast.now
        yield from (task.deadline for task in self._cast.tasks.values() if task.own and task.deadline is not None)

    def _watching(self, act: Callable[[], object]) -> Callable[[], object]:
        """An act that is held before each line of watched code."""
        watched = self._player._watched
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
        call = self._calls.get(step.thread)
        if moved.error is not None:
            faults = (_fault(step.thread, moved.error),)
            return Seen(self._last.get(self._room), faults=faults, threads=self._threads(), key=b"")
        where = f"{call.event} (request {call.request}) on {step.thread}" if call is not None else step.thread
        answer: KVPoll | bool | None = None
        if moved.at is None and call is not None and call.event == "poll":
            answer = _status(moved.value, where)
        elif moved.at is None and call is not None and call.event == "start":
            if not isinstance(moved.value, bool):
                raise AdapterFault(
                    f"{where} returned {moved.value!r}: it is True to transfer the chunk, False to skip it"
                )
            answer = moved.value
        here, threads = self._room, self._threads()
        words = [(whose, n, None if word is None else _terminal(word, where)) for whose, n, word in self._done]
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
        player = self._player
        roots = [self._adapter, *(one.value() for one in player._kept), self._cast.now, self._cast.set_back]
        return player._digest.of(roots, self._cast.tasks.values())


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
            for name in ("tick", "quiesce"):
                getattr(adapter, name, _nothing)()
    return None


def _nothing() -> None:
    pass


def _fault(thread: str, error: BaseException) -> Fault:
    file, line = _blamed(error)
    return Fault(thread, _said(error), file, line, "".join(traceback.format_exception(error)))


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


def _status(value: object, where: str) -> KVPoll | None:
    if value is None:
        return None
    try:
        return KVPoll(value)  # type: ignore[arg-type]  # whatever it is: that is what is checked here
    except ValueError:
        raise AdapterFault(f"{where} returned {value!r}: it is a KVPoll, or None for no entry") from None


def _terminal(value: object, where: str) -> KVPoll:
    status = _status(value, f"tell() in {where}")
    if status not in (KVPoll.Failed, KVPoll.Success):
        raise AdapterFault(f"tell() in {where} was given {value!r}: decode is told Failed or Success")
    return status


ORACLE.add(__file__)
