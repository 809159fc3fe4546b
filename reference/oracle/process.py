"""Managers that are not in Python: a program that is told what happens, one JSON object a line.

:class:`Process` starts a program once and plays with it as the oracle does with an adapter, except that no thread can
be held: each call is one step. What follows is the whole protocol, version 1; ``examples/`` has managers in C and Rust.

**Lines.** The program reads lines from its standard input and answers each with one line on its standard output, in
order, flushed at once. Many lines may come before the first answer is read, so nothing is to be concluded from a pause.
At the end of its input it exits. What it writes on standard error is shown if it dies.

**Calls.** They are written without spaces, with the members in this order, so that a ``sscanf`` can read them::

    {"event":"fresh"}
    {"event":"create","room":7,"request":1}
    {"event":"metadata","room":7,"request":1}
    {"event":"abort_notice","room":7,"request":1}
    {"event":"abort","room":7,"request":1}
    {"event":"start","room":7,"request":1,"chunk":0,"last":true}
    {"event":"finish","room":7,"request":1,"chunk":0,"last":true,"ok":true}
    {"event":"poll","room":7,"request":1}
    {"event":"clear","room":7,"request":1}

``fresh`` begins a play: forget everything. The other events are the methods of
:class:`~kvlatch.reference.oracle.adapter.Adapter`, which says when each is called: by the scheduler ``create`` (the
request's sender is made), ``poll`` (it asks for the status), ``abort`` (the client has gone, or the time to bootstrap
is up) and ``clear`` (the request is settled: forget it, and release its pages as soon as nothing reads them); by the
bootstrap thread ``metadata`` (decode's metadata is complete) and ``abort_notice`` (decode gives up); by a transfer
worker ``start`` (is this chunk to be transferred?) and ``finish`` (its transfer has ended, well or not). ``room`` is a
room id, an unsigned integer of 64 bits; ``request`` counts the requests with that room id from 1, ``chunk`` counts
from 0, ``last`` marks the last.

**Answers.** To ``fresh`` the answer is ``{"fresh":true}``. To every other call it is an object with these members::

    {"status":"Transferring","answer":true,"released":[1],"told":[[1,"Success"]]}

``status`` is required: the room's entry in the status table after the call, by its name (Failed, Bootstrapping,
WaitingForInput, Transferring, Success), or null if there is none. ``answer`` is required of ``poll``, a status or null,
and of ``start``, true to transfer the chunk, false to skip it; no other call has one. ``released`` lists the requests
whose pages went back to their pool during the call, ``told`` what decode was told, as pairs of a request and ``Failed``
or ``Success``; both may be left out if they are empty.

**Faults.** A program that ends in the middle of a play breaks no-crash, one that is silent beyond the time limit
no-deadlock: it is started again for the next play. One that does not answer ``fresh``, or whose line is none of this,
cannot be checked: that raises :class:`AdapterFault`, and says nothing about any law.
"""

from __future__ import annotations

import json
import os
import selectors
import shlex
import signal
import subprocess
import tempfile
import time
from bisect import bisect_right
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, suppress
from functools import cache
from types import TracebackType
from typing import IO, ClassVar, Final, Self, cast

import attrs

from kvlatch.reference.faults import AdapterFault
from kvlatch.reference.oracle.moves import Call, Fault, Script, Seen, Step
from kvlatch.reference.oracle.wander import IDS, WIDEST, Session
from kvlatch.spec.status import TERMINAL, KVPoll

_READY: Final = {"fresh": True}
_MEMBERS: Final = {"status", "answer", "released", "told"}
_BLOCK: Final = 1 << 16
"""Bytes that are read or written at a time; no answer is longer."""
_LINE: Final = 100
"""What a line counts as work."""


# --- Lines ----------------------------------------------------------------------------------------


@cache
def line(call: Call | None) -> str:
    """A call as the program reads it; None begins a play."""
    if call is None:
        return '{"event":"fresh"}'
    event = call.event.replace("break", "finish")
    members: dict[str, object] = {"event": event, "room": call.room, "request": call.request}
    if event in ("start", "finish"):
        members |= {"chunk": call.chunk, "last": call.last}
    if event == "finish":
        members |= {"ok": call.event == "finish"}
    return json.dumps(members, separators=(",", ":"))


def reply(call: Call, seen: Seen) -> dict[str, object]:
    """What is seen after a call, as the program would have to answer."""
    members: dict[str, object] = {"status": _name(seen.status)}
    if call.event in ("start", "poll"):
        members["answer"] = seen.answer if isinstance(seen.answer, bool) else _name(seen.answer)
    return members | {
        "released": list(seen.released),
        "told": [[request, word.name] for request, word in seen.told],
    }


def _name(status: KVPoll | None) -> str | None:
    return None if status is None else status.name


def parse(call: Call, members: object) -> Seen:
    """What an answer says is seen after a call; ValueError if it is no answer to it."""
    if not isinstance(members, dict):
        raise ValueError("not a JSON object")
    if unknown := members.keys() - _MEMBERS:
        raise ValueError(f"{min(unknown)!r} is no member of an answer: they are status, answer, released and told")
    if "status" not in members:
        raise ValueError("the status is missing")
    return Seen(
        _status(members["status"], "status"),
        answer=_answer(call, members),
        released=tuple(_request(request, "released") for request in _list(members, "released")),
        told=tuple(_word(pair) for pair in _list(members, "told")),
    )


def _answer(call: Call, members: dict[str, object]) -> KVPoll | bool | None:
    if call.event not in ("start", "poll"):
        if members.get("answer") is not None:
            raise ValueError(f"{call.event} has no answer")
        return None
    if "answer" not in members:
        raise ValueError("the answer is missing")
    answer = members["answer"]
    if call.event == "poll":
        return _status(answer, "answer")
    if not isinstance(answer, bool):
        raise ValueError("the answer to start is true or false")
    return answer


def _status(name: object, where: str) -> KVPoll | None:
    if name is None:
        return None
    if not isinstance(name, str) or name not in KVPoll.__members__:
        raise ValueError(f"the {where} is none of {', '.join(KVPoll.__members__)}, and not null")
    return KVPoll[name]


def _list(members: dict[str, object], name: str) -> list[object]:
    found = members.get(name, [])
    if not isinstance(found, list):
        raise ValueError(f"{name!r} is not a list")
    return found


def _request(request: object, where: str) -> int:
    if isinstance(request, bool) or not isinstance(request, int) or request < 1:
        raise ValueError(f"{where!r} speaks of a request that is not a number from 1")
    return request


def _word(pair: object) -> tuple[int, KVPoll]:
    if not isinstance(pair, list) or len(pair) != 2:
        raise ValueError("'told' has something else than pairs of a request and a status")
    status = _status(pair[1], "status that decode was told")
    if status not in TERMINAL:
        raise ValueError("decode is told Failed or Success")
    return _request(pair[0], "told"), status


# --- The program ----------------------------------------------------------------------------------


class _Ended(ValueError):
    """The program has ended, or has been silent for too long, when an answer was due."""

    def __init__(self, how: str, *, silent: bool = False) -> None:
        super().__init__(how)
        self.silent = silent


class Process:
    """A :class:`~kvlatch.reference.oracle.moves.Player` for a program, started at once and ended by ``close``.

    ``argv`` is the program and its arguments (no shell reads it), ``patience`` how many seconds it may be silent while
    an answer is due. A call in which it ends, or after which it is silent, is a fault of the manager: the program is
    started again for the next play. Raises AdapterFault if it cannot be started, if it does not answer ``fresh``, or if
    what it says is not an answer: then it has been ended.
    """

    widest: ClassVar = attrs.evolve(WIDEST, rooms=IDS, clock=False)
    """Nobody can move a program's clock."""
    splits: ClassVar = False
    words: ClassVar = False
    """A room id is a number in this protocol."""

    def __init__(self, argv: Sequence[str], patience: float = 5.0) -> None:
        self.name = shlex.join(argv)
        self._argv = argv
        self.work = 0
        """How much has been done so far: lines, with what the harness thinks of them; see ``budget.py``."""
        self._patience = patience
        self._start()

    def _start(self) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # close() closes it; a file is never full, as a pipe is
        try:
            self._child = subprocess.Popen(
                self._argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                bufsize=0,
                start_new_session=True,  # so that what it has started ends with it
            )
        except OSError as error:
            self._errors.close()
            raise AdapterFault(f"cannot start {self._argv[0]}: {error.strerror}") from error
        self._stdin = cast("IO[bytes]", self._child.stdin)
        self._stdout = cast("IO[bytes]", self._child.stdout)
        os.set_blocking(self._stdin.fileno(), False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the program, and whatever it has started, also if it has ended itself."""
        with suppress(ProcessLookupError, PermissionError):  # nobody of its group is left
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()
        for stream in (self._stdin, self._stdout, self._errors):
            stream.close()

    def begin(self) -> Session:
        """Begin a play that is made step by step."""
        if self._stdin.closed:
            self._start()
        self._say([None], [])
        return _Session(self)

    def play(self, scripts: Sequence[Script]) -> list[Seen]:
        """What is seen after the last step of each script; AdapterFault if the program does not play along."""
        sights: list[Seen] = []
        while len(sights) < len(scripts):
            if self._stdin.closed:
                self._start()
            # The last line begins a play of which nothing follows: after one answer too many, it gets the wrong one.
            calls = [call for script in scripts[len(sights) :] for call in (None, *_calls(script))] + [None]
            heard: list[Seen] = []
            fault = self._say(calls, heard)
            begins = [number for number, call in enumerate(calls) if call is None]
            made = [heard[after - 1] for after in begins[1:] if after <= len(heard)]
            for script, seen in zip(scripts[len(sights) :], made, strict=False):
                ticks = bool(script) and script[-1].call is not None and script[-1].call.event == "tick"
                sights.append(_nothing(seen) if ticks else seen)
            if fault is not None:
                script = scripts[len(sights)]
                if len(heard) - begins[bisect_right(begins, len(heard)) - 1] != len([*_calls(script)]):
                    raise AdapterFault(f"{self.name} does not do the same twice: {fault.faults[0].what}")
                sights.append(fault)
        return sights

    def _say(self, calls: Sequence[Call | None], heard: list[Seen]) -> Seen | None:
        """Say some lines, and hear what is seen after each; what is seen after the one in which the program ended."""
        self.work += len(calls) * _LINE
        with closing(self._answers("".join(f"{line(call)}\n" for call in calls).encode())) as answers:
            for call in calls:
                try:
                    heard.append(_understood(call, next(answers)))
                except ValueError as error:
                    self.close()
                    if call is None or not isinstance(error, _Ended):
                        raise AdapterFault(f"{self.name}, told {line(call)}, {error}") from error
                    last = heard[-1].status if heard else None
                    fault = Fault("the program", f"told {line(call)}, it {error}")
                    held = f"the program, told {line(call)}, {error}" if error.silent else None
                    return Seen(last, held, faults=() if error.silent else (fault,), hung=error.silent)
        return None

    def _answers(self, text: bytes) -> Generator[bytes, None, None]:
        """Lines of the program, which is told this text; ValueError if none comes.

        Reads and writes whenever it can, so that no two pipes are full at once.
        """
        left, begun = memoryview(text), b""
        deadline = time.monotonic() + self._patience
        with selectors.DefaultSelector() as ready:
            ready.register(self._stdout, selectors.EVENT_READ)
            ready.register(self._stdin, selectors.EVENT_WRITE)
            while True:
                for key, _ in ready.select(max(0.0, deadline - time.monotonic())):
                    if key.fileobj is self._stdin:
                        left = self._write(left)
                        if not left:
                            ready.unregister(self._stdin)
                        continue
                    *lines, begun = (begun + self._read()).split(b"\n")
                    yield from lines
                    if lines:
                        deadline = time.monotonic() + self._patience
                    if len(begun) > _BLOCK:
                        raise ValueError(f"answers {_shown(begun)}, a line that does not end")
                if time.monotonic() >= deadline:
                    raise _Ended(f"has been silent for {self._patience:g} s; does it flush each line?", silent=True)

    def _write(self, left: memoryview) -> memoryview:
        """Write what the pipe takes; what is left."""
        try:
            return left[os.write(self._stdin.fileno(), left[:_BLOCK]) :]
        except BlockingIOError:
            return left
        except BrokenPipeError:
            return left[:0]  # nobody reads any more: how the program has ended is what is read next

    def _read(self) -> bytes:
        """What has come; ValueError if the program has ended."""
        if more := os.read(self._stdout.fileno(), _BLOCK):
            return more
        try:
            code = self._child.wait(1.0)
        except subprocess.TimeoutExpired:
            raise _Ended("has closed its output") from None
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"has ended with exit status {code}"
        self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - _BLOCK))
        said = self._errors.read().splitlines()
        raise _Ended(f"{how}: {_shown(said[-1])}" if said else how)


@attrs.define
class _Session:
    """A play with a program, line by line."""

    process: Process
    last: Seen = attrs.field(factory=lambda: Seen(None))

    def step(self, step: Step, *, whole: bool = False) -> Seen:
        if step.call is None:
            raise ValueError(f"{step.thread} is not held anywhere: to a program a call is one step")
        if step.call.event == "tick":
            return _nothing(self.last)
        heard: list[Seen] = []
        self.last = self.process._say([step.call], heard) or heard[-1]
        return self.last

    def steps(self, steps: Sequence[Step]) -> list[Seen]:
        """Make many steps at once; up to the one in which the program ends, if it does."""
        heard: list[Seen] = []
        fault = self.process._say([step.call for step in steps if step.call is not None], heard)
        return heard if fault is None else [*heard, fault]

    def close(self) -> None:
        """The next play begins with ``fresh``."""


def _calls(script: Script) -> Iterator[Call]:
    """The calls of a script that are lines: there is none for a tick, so whatever is due comes within the call."""
    for step in script:
        if step.call is None:
            raise ValueError(f"{step.thread} is not held anywhere: to a program a call is one step")
        if step.call.event != "tick":
            yield step.call


def _nothing(before: Seen) -> Seen:
    """What is seen of a tick."""
    return Seen(before.status)


def _understood(call: Call | None, answer: bytes) -> Seen:
    """What an answer says; ValueError if it is none."""
    try:
        members = json.loads(answer)
    except (ValueError, RecursionError):
        raise ValueError(f"answers {_shown(answer)}: not JSON") from None
    if call is None:
        if members != _READY:
            raise ValueError(f"answers {_shown(answer)}, and that call is answered {json.dumps(_READY)}")
        return Seen(None)
    try:
        return parse(call, members)
    except ValueError as error:
        raise ValueError(f"answers {_shown(answer)}: {error}") from error


def _shown(said: bytes) -> str:
    """What a program has said, in one short line."""
    text = said.decode(errors="backslashreplace").strip()
    return repr(text if len(text) <= 80 else f"{text[:80]}...")
