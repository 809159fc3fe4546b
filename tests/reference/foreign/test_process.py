"""A child may do what it likes: its parent gets an answer, or a reason, and nobody is left behind."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvlatch.reference.faults import Refused
from kvlatch.reference.foreign import process
from kvlatch.reference.foreign.process import Child, Ended, Raised, Stack, stacks
from tests.reference.foreign import tasks

PATIENT = 120.0
"""Seconds of silence that nobody reaches who works."""


def child(task: Callable[..., object], *, silence: float = PATIENT, **arguments: object) -> Child:
    """A child that does one of the tasks."""
    return Child(tasks.__name__, task.__name__, arguments, silence=silence)


def answer(task: Callable[..., object], *, silence: float = PATIENT, **arguments: object) -> Any:
    """What it answers."""
    with child(task, silence=silence, **arguments) as one:
        return one.answer()


def ended(task: Callable[..., object], silence: float = PATIENT) -> Ended:
    """How it ends without an answer."""
    with child(task, silence=silence) as one, pytest.raises(Ended) as end:
        one.answer()
    return end.value


def is_there(pid: int) -> bool:
    """A process runs; one that is dead and waits for somebody to ask does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


# --- Answers --------------------------------------------------------------------------------------------------------


def test_reports_and_an_answer(capsys: pytest.CaptureFixture[str]) -> None:
    """What it prints goes to the error stream; threads and handlers that never end keep nobody waiting."""
    with child(tasks.answers, value=[1, "é"]) as one:
        assert list(one.reports()) == [{"part": 1}, {"answer": [1, "é"]}]
    assert not one.folder.exists()
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "printed\n")


def test_the_same_modules_are_found() -> None:
    """Modules are looked for where this process looks, and the folder is the same."""
    assert answer(tasks.where) == [str(Path.cwd()), sys.path]


def test_a_flood_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    """No pipe is full, and the reader gets the beginning, and how much is left out."""
    assert answer(tasks.floods) == "done"
    said = capsys.readouterr().err
    assert len(said) < tasks.BIG
    assert said.endswith(f"... and {2 * tasks.BIG + 1 - (1 << 16):,} bytes more of what it prints\n")


def test_files_that_are_closed_are_not_missed() -> None:
    """The answer comes although every file is closed and the folder is another one."""
    assert answer(tasks.closes_everything) == "still here"


def test_a_fork_answers_once() -> None:
    """Of two processes that come back one reports."""
    with child(tasks.forks) as one:
        assert list(one.reports()) == [{"answer": "one answer"}]


# --- Ends without an answer -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "how", "now", "line"),
    [
        (tasks.leaves, "has ended with exit status 0", "leaving", "os._exit(0)"),
        (tasks.crashes, "was ended by SIGSEGV", "reading address 0", "ctypes.string_at(0)"),
        (tasks.is_killed, "was ended by SIGKILL", "", ""),
    ],
)
def test_a_process_that_ends(task: Callable[..., object], how: str, now: str, line: str) -> None:
    """How, in the middle of what, and at which line."""
    end = ended(task)
    assert (end.how, end.hung, end.now) == (how, False, now)
    assert end.steps == (("a step before", "leaving") if task is tasks.leaves else (now,) * bool(now))
    if line:
        (stack,) = (one for one in end.stacks if one.current)
        frame = next(frame for frame in stack.frames if frame.file == tasks.__file__)
        assert line in Path(frame.file).read_text("utf-8").splitlines()[frame.line - 1]
        assert frame.function == task.__name__


@pytest.mark.parametrize("task", [tasks.sleeps, tasks.spins, tasks.keeps_the_interpreter])
def test_a_process_that_hangs(task: Callable[..., object]) -> None:
    """Whether it sleeps, spins, or keeps Python's lock: it is ended, and its line is known."""
    end = ended(task, silence=1.0)
    assert (end.how, end.hung) == ("has not moved for 1 s", True)
    frames = [frame for stack in end.stacks for frame in stack.frames]
    assert any(frame.function == task.__name__ for frame in frames)


def test_a_process_that_ignores_signals() -> None:
    """There are no stacks then; it is ended all the same."""
    assert ended(tasks.ignores_signals, silence=1.0).hung


def test_what_it_has_started_ends_with_it() -> None:
    """Also if it has ended itself, and although the other one has its output open."""
    with child(tasks.leaves_a_process, command=[sys.executable, "-c", "import time; time.sleep(1000)"]) as one:
        reports = one.reports()
        pid = next(reports)["pid"]
        with pytest.raises(Ended, match="the process has ended with exit status 5 in leaving"):
            next(reports)
    until = time.monotonic() + PATIENT
    while is_there(pid) and time.monotonic() < until:
        os.sched_yield()
    assert not is_there(pid)


def test_a_process_that_raises() -> None:
    """Whatever it is, it comes with its lines."""
    with child(tasks.raises) as one, pytest.raises(Raised, match="KeyboardInterrupt: by itself") as raised:
        one.answer()
    assert raised.value.frames[0].function == "raises"
    with child(tasks.exits) as one, pytest.raises(Raised, match="SystemExit: 3"):
        one.answer()
    with child(tasks.refuses) as one, pytest.raises(Refused, match="not this") as refused:
        one.answer()
    assert refused.value.exit_code == 2


# --- Slow is not hung -----------------------------------------------------------------------------------------------


def test_a_task_that_works_for_ever_is_given_up() -> None:
    """Signs of life or not."""
    late = Child(tasks.__name__, "works_on", {"seconds": 1e6}, silence=PATIENT, longest=2.0)
    with late as one, pytest.raises(Ended, match="was given up after 2 s in working"):
        one.answer()


@pytest.mark.parametrize(("starved", "seconds"), [(0.0, 5.0), (0.5, 2.5), (1.0, 0.0)])
def test_time_without_a_processor_does_not_count(
    monkeypatch: pytest.MonkeyPatch, starved: float, seconds: float
) -> None:
    """Of five seconds of silence those count in which no thread was ready and had to wait for others."""
    clock, waits = [0.0], {"1": 0.0, "2": 0.0}
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    silence = process._Silence(0)
    monkeypatch.setattr(silence, "_waiting", lambda: dict(waits))
    silence._waits = dict(waits)
    assert silence.after(0) == silence.after(1) == 0.0
    silent = 0.0
    for _ in range(50):
        clock[0] += 0.1
        waits["2"] += 0.1 * starved
        silent = silence.after(1)
    assert silent == pytest.approx(seconds)
    assert silence.after(2) == 0.0


def test_time_in_which_the_parent_did_not_run_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour from one look to the next: the machine has slept, or the parent was stopped."""
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    silence = process._Silence(0)
    silence.after(1)
    clock[0] += 3600.0
    assert silence.after(1) < 1.0


def test_stacks_of_faulthandler() -> None:
    """Each thread with its frames; what else is written is passed over."""
    text = """Fatal Python error: Aborted

Thread 0x00007f0000000001 (most recent call first):
  File "/a b/one.py", line 7 in <lambda>

Current thread 0x00007f0000000002 (most recent call first):
  File "two.py", line 1 in f
  File "two.py", line 2 in <module>

Extension modules: numpy (total: 1)
"""
    first, second = stacks(text)
    assert (first.current, second.current) == (False, True)
    assert first == Stack(False, (process.Frame("/a b/one.py", 7, "<lambda>"),))
    assert [frame.line for frame in second.frames] == [1, 2]
