"""Adapters: how the oracle drives a manager that lives in this process, and what it asks of it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import attrs

from kvlatch.reference.faults import AdapterFault
from kvlatch.reference.oracle.interleave import Cast, Moved, Stuck, Table, visible_locks
from kvlatch.reference.oracle.moves import Call, RoomId, Script, Seen, Step
from kvlatch.spec.status import KVPoll

ROOM: Final = 7
"""The room id that every play is about."""


@attrs.frozen(eq=False)
class Probe:
    """What the oracle gives to each adapter, to be told what the manager does and to hold its threads."""

    _done: list[tuple[RoomId, int, KVPoll | None]]
    _cast: Cast

    def table(self) -> Table:
        """A mapping for the status table: threads are held before each access to it. ``peek(room)`` is no access."""
        return Table()

    def watch(self, function: Callable[..., object]) -> None:
        """Hold threads before each line of a function, too: for a status that is kept in no mapping."""
        self._cast.watch(function.__code__)

    def release(self, room: int, request: int) -> None:
        """The manager gives the request's pages back to their pool."""
        self._done.append((room, request, None))

    def tell(self, room: int, request: int, status: KVPoll) -> None:
        """The manager tells decode that the request has ended, with Failed or Success."""
        self._done.append((room, request, status))


class Adapter(Protocol):
    """A manager as the oracle drives it, in the role of prefill.

    ``room`` is the id that the client chose, ``request`` is 1 for the first request on it and 2 for another one: a
    manager that does not tell them apart ignores it. Chunks are numbered from 0, ``last`` marks the last. Methods are
    called by several threads: ``create``, ``poll``, ``abort`` and ``clear`` by the scheduler, ``metadata`` and
    ``abort_notice`` by the bootstrap thread, ``start`` and ``finish`` by the transfer workers.
    """

    def create(self, room: int, request: int) -> None:
        """A request arrives: its sender is made (status Bootstrapping)."""

    def metadata(self, room: int, request: int) -> None:
        """All metadata of decode has arrived (WaitingForInput)."""

    def abort_notice(self, room: int, request: int) -> None:
        """Decode gives the request up (Failed)."""

    def abort(self, room: int, request: int) -> None:
        """The client has gone, or the time to bootstrap is up (Failed)."""

    def start(self, room: int, request: int, chunk: int, last: bool) -> bool:
        """A worker has this chunk in hand: True if it is to be transferred (Transferring), False to skip it."""

    def finish(self, room: int, request: int, chunk: int, last: bool, ok: bool) -> None:
        """The transfer of the chunk has ended, well or not (Success with all chunks; Failed)."""

    def poll(self, room: int, request: int) -> KVPoll | None:
        """What the scheduler is told when it asks for the request's status; None for none."""

    def clear(self, room: int, request: int) -> None:
        """The scheduler has settled the request: forget it, and release its pages as soon as nothing reads them."""

    def status(self, room: int) -> KVPoll | None:
        """The entry in the status table, for an onlooker: no access, no effect; None where there is none."""


MakeAdapter = Callable[[Probe], Adapter]


class InProcess:
    """A :class:`Player` for adapters in this process, on real threads."""

    def __init__(self, make_adapter: MakeAdapter, patience: float = 10.0) -> None:
        self._make = make_adapter
        self._cast = Cast(patience)

    def play(self, scripts: Sequence[Script]) -> list[Seen]:
        """What is seen after the last step of each script; AdapterFault if it cannot be seen."""
        return [self._play(script) for script in scripts]

    def _play(self, script: Script) -> Seen:
        done: list[tuple[RoomId, int, KVPoll | None]] = []
        try:
            adapter = self._made(Probe(done, self._cast))
            moved = Moved()
            for turn in turns(script):
                done.clear()
                step = turn.step
                act = None if step.call is None else functools.partial(_perform, adapter, step.call)
                moved = Moved(value=act()) if act and turn.undisturbed else self._cast.go(step.thread, act, turn.passes)
                if moved.error is not None:
                    what = f"{type(moved.error).__name__}: {moved.error}"
                    raise AdapterFault(f"{_called(script, step)} raised {what}; the calls were {_calls(script)}")
            last = script[-1]
            call = last.call or next(s.call for s in reversed(script) if s.thread == last.thread and s.call is not None)
            return _seen(adapter, moved, done, _called(script, last), call.room)
        except Stuck as error:
            raise AdapterFault(f"{error}; make its locks with threading.Lock() while the adapter is made") from error
        finally:
            self._cast.reset()

    def _made(self, probe: Probe) -> Adapter:
        with visible_locks():
            try:
                return self._make(probe)
            except Exception as error:
                raise AdapterFault(f"making the adapter raised {type(error).__name__}: {error}") from error

    def close(self) -> None:
        """End the threads."""
        self._cast.close()


@attrs.define
class Turn:
    """A step, with those after it in which its thread just goes on: it passes so many places where it was held.

    ``undisturbed``: this is a whole call, from its first access to its end, as the next step of its thread shows. It
    has been played before, held at each place, and nobody came in between: so it needs no thread of its own now.
    """

    step: Step
    passes: int = 0
    undisturbed: bool = False


def turns(script: Script) -> list[Turn]:
    """The turns of a script; its last step is a turn of its own, since that is what is to be seen."""
    turns: list[Turn] = []
    *before, last = script
    for step in before:
        if turns and step.call is None and step.thread == turns[-1].step.thread:
            turns[-1].passes += 1
        else:
            turns.append(Turn(step))
    turns.append(Turn(last))
    begins_next: dict[str, bool] = {}
    for turn in reversed(turns):
        begins = turn.step.call is not None
        turn.undisturbed = begins and begins_next.get(turn.step.thread, False)
        begins_next[turn.step.thread] = begins
    return turns


def _perform(adapter: Adapter, call: Call) -> object:
    """One call, as the adapter's method."""
    room: Any = call.room  # an adapter that takes integers alone is asked about strings once, to find that out
    request = call.request
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
    return None


def _called(script: Script, step: Step) -> str:
    """A step in words, for a fault."""
    call = step.call
    if call is None:  # it goes on with what its thread has begun last
        call = next(s.call for s in reversed(script) if s.thread == step.thread and s.call is not None)
    return f"{call.event} (request {call.request}) on {step.thread}"


def _calls(script: Script) -> str:
    """The calls of a script, for a fault: a thread that goes on is marked by a plus."""
    return " ".join(f"{step.thread.replace(' ', '')}+" if step.call is None else step.call.event for step in script)


def _seen(
    adapter: Any, moved: Moved, done: Sequence[tuple[RoomId, int, KVPoll | None]], where: str, room: RoomId
) -> Seen:
    status = _status(adapter.status(room), f"status() after {where}")
    answer: KVPoll | bool | None = None
    if moved.at is None and where.startswith("poll"):
        answer = _status(moved.value, where)
    elif moved.at is None and where.startswith("start"):
        if not isinstance(moved.value, bool):
            raise AdapterFault(f"{where} returned {moved.value!r}: it is True to transfer the chunk, False to skip it")
        answer = moved.value
    words = [(whose, n, None if word is None else _terminal(word, where)) for whose, n, word in done]
    released = tuple(n for whose, n, word in words if word is None and whose == room)
    told = tuple((n, word) for whose, n, word in words if word is not None and whose == room)
    elsewhere = tuple(one for one in words if one[0] != room)
    return Seen(status, moved.at, moved.blocked, answer, released, told, elsewhere, trail=moved.trail)


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
