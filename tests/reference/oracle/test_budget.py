"""An examination says the same however busy the machine is: its work is counted, and only a hang is timed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kvlatch.reference.oracle.budget import SECOND, Budget
from kvlatch.reference.oracle.checks import LAWS, Report, examine
from kvlatch.reference.oracle.inprocess import InProcess
from tests.reference.oracle import managers


def examined(make: type[managers.Right], seconds: float) -> tuple[Report, int]:
    """What is said of a manager, and how much work that took."""
    player = InProcess(make)
    try:
        return examine(player, make.__name__, tuple(LAWS), seconds=seconds), player.work
    finally:
        player.close()


@contextmanager
def crowded() -> Iterator[None]:
    """Three busy processes on one processor, which this process has to share with them."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(3)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()
        os.sched_setaffinity(0, before)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system does not let a process choose")
@pytest.mark.parametrize("make", [managers.Unlocked, managers.Right])
def test_a_busy_machine_changes_nothing(make: type[managers.Right]) -> None:
    """Beside busy processes the same manager gets the same judgements, findings and counts, after the same work."""
    quiet, work = examined(make, 0.5)
    with crowded():
        busy, worked = examined(make, 0.5)
    assert work == worked > 0.4 * SECOND
    assert busy.summary == quiet.summary
    assert [(one.law, one.answer) for one in busy.judgements] == [(one.law, one.answer) for one in quiet.judgements]
    assert {law: str(one.play) for law, one in busy.findings.items()} == {
        law: str(one.play) for law, one in quiet.findings.items()
    }


class Counted:
    """A player, as far as a budget is concerned."""

    work = 7


def test_parts_of_the_work() -> None:
    """A part is over when so much has been counted since the beginning; further work counts from now."""
    player = Counted()
    whole = Budget(player, 2.0)
    half, all_of_it = whole.until(0.5), whole.until(1.0)
    player.work += SECOND
    assert half()
    assert not all_of_it()
    more = whole.further(0.5)
    player.work += SECOND // 2
    assert more()
    assert not all_of_it()
    player.work += SECOND // 2
    assert all_of_it()
    assert whole.spent == 2 * SECOND


def test_no_limit() -> None:
    """Without seconds nothing is ever enough, and a player that does not count is not limited."""
    assert not Budget(Counted(), None).until(0.0)()
    assert not Budget(object(), 1.0).until(1.0)()


@pytest.mark.parametrize(("clock", "says"), [("process_time", "s of the processor"), ("monotonic", "before all was")])
def test_steps_that_take_long(monkeypatch: pytest.MonkeyPatch, clock: str, says: str) -> None:
    """Far more time than the work is worth ends it, and that is said."""
    budgeted = Budget(Counted(), 1.0)
    enough = budgeted.until(1.0)
    assert not enough()
    assert budgeted.cut == ""
    monkeypatch.setattr(f"kvlatch.reference.oracle.budget.time.{clock}", lambda: 1e9)
    assert enough()
    assert says in budgeted.cut
