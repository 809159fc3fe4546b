"""The parent: starts a child for one task, reads what it reports, and ends it, with all that it has started.

How it tells a child that hangs from one that is slow: a child puts down what it does (``recorder.py``), so a child that
puts nothing down for :data:`SILENCE` seconds hangs. Time in which a thread of it was ready to run and the system gave
the processor to somebody else does not count, nor does time in which this process itself did not run.
"""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self, cast

import attrs

from kvlatch.reference.faults import Refused
from kvlatch.reference.foreign.child import RECORDER, REPORTS, REQUEST, STACKS
from kvlatch.reference.foreign.recorder import Recorder

SILENCE: Final = 8.0
"""Seconds without a sign of life after which a child hangs."""
LONGEST: Final = 150.0
"""Seconds that a task may take in all, signs of life or not."""
_LOOK: Final = 0.02
"""Seconds between two looks at a child."""
_MOST_AT_ONCE: Final = 0.25
"""Seconds that count as silent from one look to the next: more have passed only if this process did not run either."""
_SHOWN: Final = 1 << 16
"""Bytes of what foreign code prints that are passed on; the rest is counted."""
_BLOCK: Final = 1 << 16

_START: Final = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from kvlatch.reference.foreign.child import main; main(sys.argv[2])"  # noqa: E501


@attrs.frozen
class Frame:
    """One line of a stack: a file, a line in it, a function."""

    file: str
    line: int
    function: str


@attrs.frozen
class Stack:
    """What a thread was in the middle of, innermost first; ``current``: it is the one that ended the process."""

    current: bool
    frames: tuple[Frame, ...]


@attrs.frozen
class Ended(Exception):
    """A child has ended before its task was done, by itself or because it hung or took too long.

    ``how`` goes on from "the process": "has ended with exit status 0". ``now`` is what it was doing, ``steps`` are what
    it did before, up to and with that.
    """

    how: str
    hung: bool
    now: str
    steps: tuple[str, ...]
    stacks: tuple[Stack, ...]

    def __str__(self) -> str:
        return f"the process {self.how}{f' in {self.now}' if self.now else ''}"


@attrs.frozen
class Raised(Exception):
    """The task has raised something: its type and message, its traceback, and where that came through."""

    kind: str
    says: str
    traceback: str
    frames: tuple[Frame, ...]

    def __str__(self) -> str:
        return f"{self.kind}: {self.says}"


class Child:
    """A process that calls ``function`` of ``module`` with ``arguments``, which are JSON."""

    def __init__(
        self,
        module: str,
        function: str,
        arguments: Mapping[str, object],
        *,
        silence: float = SILENCE,
        longest: float = LONGEST,
    ) -> None:
        self._silence, self._longest = silence, longest
        self.folder = Path(tempfile.mkdtemp(prefix="kvlatch-")).resolve()
        self._recorder = Recorder.make(self.folder / RECORDER)
        request = {"module": module, "function": function, "arguments": arguments}
        (self.folder / REQUEST).write_text(json.dumps(request), "utf-8")
        self._said, self._left_out = 0, 0
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _START, json.dumps(sys.path), str(self.folder)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,
            start_new_session=True,  # a process group, to be ended as a whole
        )
        self._stdout = cast("IO[bytes]", self._process.stdout)
        self._output: int | None = self._stdout.fileno()
        os.set_blocking(self._output, False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the process, and whatever it has started, also if it has ended itself."""
        self._kill()
        self._relay()
        if self._left_out:
            print(f"... and {self._left_out:,} bytes more of what it prints", file=sys.stderr)
        self._stdout.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def reports(self) -> Iterator[dict[str, Any]]:
        """What the task reports as it goes on, and at last ``{"answer": …}``.

        Raises :class:`Ended` if the process ends before, is silent for too long or takes too long; Refused if the
        foreign code cannot be judged; :class:`Raised` if the task raises anything else.
        """
        silence = _Silence(self._process.pid)
        read, begin = 0, time.monotonic()
        while True:
            running = self._process.poll() is None  # before the reports are read, so that none is missed
            lines, read = _lines(self.folder / REPORTS, read)
            for line in lines:
                report = json.loads(line)
                if "refused" in report:
                    raise Refused(report["refused"], report["code"])
                if "raised" in report:
                    places = tuple(Frame(*place) for place in report["places"])
                    raise Raised(report["raised"], report["says"], report["traceback"], places)
                yield report
                if "answer" in report:
                    return
            if not running:
                raise self._ended(_how(self._process.returncode))
            self._relay(wait=_LOOK)
            if silence.after(self._recorder.beats + read) > self._silence:
                raise self._given_up(f"has not moved for {self._silence:g} s")
            if time.monotonic() - begin - silence.waited > self._longest:
                raise self._given_up(f"was given up after {self._longest:g} s")

    def answer(self) -> Any:
        """What the task returns."""
        return next(report["answer"] for report in self.reports() if "answer" in report)

    def _given_up(self, how: str) -> Ended:
        """End it, with its stacks as its last words."""
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGABRT)  # on which faulthandler writes the stacks, whoever has the GIL
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        return self._ended(how, hung=True)

    def _ended(self, how: str, *, hung: bool = False) -> Ended:
        self._kill()
        text = (self.folder / STACKS).read_text("utf-8", "replace") if (self.folder / STACKS).exists() else ""
        return Ended(how, hung, self._recorder.now, tuple(self._recorder.steps), tuple(stacks(text)))

    def _kill(self) -> None:
        with suppress(ProcessLookupError, PermissionError):  # nobody of its group is left
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _relay(self, wait: float = 0.0) -> None:
        """Pass on what has been printed, so that nobody waits for a pipe that is full."""
        ready, _, _ = select.select([] if self._output is None else [self._output], [], [], wait)
        for number in ready:
            try:
                data = os.read(number, _BLOCK)
            except BlockingIOError:
                return
            if not data:
                self._output = None  # all of its ends have been closed
                return
            shown = data[: max(0, _SHOWN - self._said)]
            self._said += len(shown)
            self._left_out += len(data) - len(shown)
            sys.stderr.write(shown.decode(errors="backslashreplace"))
            sys.stderr.flush()


def _how(status: int) -> str:
    if status >= 0:
        return f"has ended with exit status {status}"
    try:
        return f"was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"was ended by signal {-status}"


def _lines(file: Path, begin: int) -> tuple[list[bytes], int]:
    """The whole lines of a file from a place on, and the place behind them."""
    try:
        with file.open("rb") as reports:
            reports.seek(begin)
            *lines, _ = reports.read().split(b"\n")
    except FileNotFoundError:
        return [], begin
    return lines, begin + sum(len(line) + 1 for line in lines)


# --- A hang ---------------------------------------------------------------------------------------------------------


class _Silence:
    """For how long a process has given no sign of life, although it could have."""

    def __init__(self, pid: int) -> None:
        self._tasks = Path(f"/proc/{pid}/task")
        self._signs = -1
        self._looked = time.monotonic()
        self._waits = self._waiting()
        self._seconds = 0.0
        self.waited = 0.0
        """Seconds in all in which it was ready to run, and others ran."""

    def after(self, signs: int) -> float:
        """Seconds since the signs of life have last become more."""
        now, waits = time.monotonic(), self._waiting()
        passed = min(now - self._looked, _MOST_AT_ONCE)
        lost = max((waits[task] - self._waits.get(task, 0.0) for task in waits), default=0.0)
        self.waited += now - self._looked - max(0.0, passed - lost)
        begins = signs != self._signs or not signs  # and before the first, it is we who are slow
        self._seconds = 0.0 if begins else self._seconds + max(0.0, passed - lost)
        self._looked, self._waits, self._signs = now, waits, signs
        return self._seconds

    def _waiting(self) -> dict[str, float]:
        """How many seconds each thread has been ready and did not run; empty where the system does not say."""
        found = {}
        with suppress(OSError):
            for task in self._tasks.iterdir():
                with suppress(OSError, ValueError, IndexError):
                    found[task.name] = int((task / "schedstat").read_text().split()[1]) / 1e9
        return found


_STACK: Final = re.compile(r"^(Current thread|Thread|Stack)\b.*\(most recent call first\):$")
_FRAME: Final = re.compile(r'^  File "(.*)", line (\d+) in (.*)$')


def stacks(text: str) -> Iterator[Stack]:
    """The stacks in what faulthandler has written."""
    current, frames = False, list[Frame]()
    for line in [*text.splitlines(), "Stack (most recent call first):"]:
        if begins := _STACK.match(line):
            if frames:
                yield Stack(current, tuple(frames))
            current, frames = begins[1] != "Thread", []
        elif frame := _FRAME.match(line):
            frames.append(Frame(frame[1], int(frame[2]), frame[3]))
