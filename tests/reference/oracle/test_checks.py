"""The oracle finds nothing in a right manager, and each planted fault by the law that it breaks."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path

import pytest

from kvlatch.reference.faults import AdapterFault
from kvlatch.reference.laws import NO_CRASH, NO_DEADLOCK, TOLD_ONCE
from kvlatch.reference.oracle import checks as oracle
from kvlatch.reference.oracle.checks import (
    CHECKS,
    LAWS,
    Check,
    MakeAdapter,
    Report,
    Violation,
    check_manager,
    conforms,
)
from kvlatch.reference.oracle.explore import parse, replay
from kvlatch.reference.oracle.findings import Finding
from kvlatch.reference.oracle.formulas import broken
from kvlatch.reference.oracle.inprocess import InProcess
from kvlatch.reference.oracle.wander import as_play
from kvlatch.spec.properties import PROPERTIES
from tests.reference.oracle import managers
from tests.reference.oracle.managers import Right

OWN = (NO_CRASH, NO_DEADLOCK, TOLD_ONCE)
"""The laws that are not properties of the spec."""
FAULTS: dict[str, MakeAdapter] = {
    "terminal-sticky": managers.Unlocked,
    "no-resurrection": managers.Max,
    "success-not-overwritten": managers.FailureOverrides,
    "success-complete": managers.LastChunkConcludes,
    "no-pin": managers.ForgetsFailure,
    "settlement": managers.KeepsPages,
    "no-ghost": managers.NoTombstone,
    "pages-held": managers.ReleasesAtOnce,
    "released-once": managers.ReleasesTwice,
    "one-outcome": managers.TellsItsOwn,
    "no-lost-wakeup": managers.OverwritesEarlyMetadata,
    "room-reusable": managers.OneGeneration,
    NO_DEADLOCK: managers.CrossedLocks,
    TOLD_ONCE: managers.TellsTwice,
    NO_CRASH: managers.Raises,
}
"""For each law, a manager with one fault that breaks it."""


@conforms(Right, seconds=2.0)
def test_right_manager(check: Check) -> None:
    """A right manager keeps every law, and every law is checked."""
    check()


@conforms(
    managers.FailureOverrides,
    known_failures={
        "success-not-overwritten": "a late failure wins",
        "one-outcome": "decode has been told Success by then",
    },
    seconds=1.0,
)
def test_known_failures(check: Check) -> None:
    """A known failure is expected to fail, and by a Violation."""
    check()


def test_every_law_is_checked() -> None:
    """The laws are the properties of the spec and the oracle's own, and each has a check and a fault that breaks it."""
    assert set(LAWS) == {*(prop.name for prop in PROPERTIES), *OWN} == set(CHECKS) == set(FAULTS)


@functools.cache
def found(make: MakeAdapter, law: str) -> Finding:
    """A play that breaks the law."""
    return check_manager(make, only=[law]).findings[law]


@pytest.mark.parametrize("law", FAULTS)
def test_fault(law: str) -> None:
    """Each planted fault is found by the law that it breaks, with a play that breaks it again."""
    make = FAULTS[law]
    finding = found(make, law)
    assert law in replay(InProcess(make), str(finding.play)).broken()
    assert f"{law} is broken" in str(Violation(law, finding.answer))


def test_a_fault_does_not_break_everything() -> None:
    """A planted fault breaks what it is about, and what follows from that; the other laws are kept."""
    for law, laws in {
        "released-once": {"released-once"},
        "settlement": {"settlement"},
        "pages-held": {"pages-held", "released-once"},  # what it does after its lock is open to others
        "success-complete": {"success-complete"},
    }.items():
        assert {law} <= set(check_manager(FAULTS[law], seconds=1.0).findings) <= laws


def test_check_raises() -> None:
    """A check on its own raises Violation for a broken law, and returns for a law that is kept."""
    CHECKS["no-ghost"](managers.ReleasesTwice, seconds=2.0)
    with pytest.raises(Violation, match="released-once is broken"):
        CHECKS["released-once"](managers.ReleasesTwice, seconds=2.0)


def test_the_right_play_of_a_wrong_manager_is_right() -> None:
    """What breaks a law in a wrong manager breaks none in the right one, where it can be played at all."""
    played = 0
    for law, make in FAULTS.items():
        try:
            play = replay(InProcess(Right), str(found(make, law).play))
        except ValueError:
            continue  # the right manager does not go there
        played += 1
        assert not any(broken(world) for world in play.worlds)
    assert played > 0


def test_a_play_is_the_same_every_time() -> None:
    """The lost failure happens in 100 of 100 plays on real threads."""
    finding = found(managers.Unlocked, "terminal-sticky")
    player = InProcess(managers.Unlocked)
    bounds, places, moves = parse(str(finding.play))
    player.hold(places)
    plays = [as_play(player, bounds, moves, places) for _ in range(100)]
    assert all("terminal-sticky" in play.broken() for play in plays)
    assert all(play.seen == plays[0].seen for play in plays)


def test_watched_lines() -> None:
    """A status that is kept in no mapping is held at the lines of the method that changes it."""
    assert found(managers.Watched, "terminal-sticky").law == "terminal-sticky"


def test_profile() -> None:
    """Where failure may override, a late Failed over Success is no violation; the other laws are all checked."""
    report = check_manager(managers.FailureOverrides, profile="failure overrides", seconds=1.0)
    assert "success-not-overwritten" not in report.laws
    assert len(report.laws) == len(LAWS) - 1
    assert "terminal-sticky" in report.kept


def test_text_of_a_violation() -> None:
    """The text has the law, the play as a table of threads, the command and public reports."""
    finding = check_manager(managers.Max, only=["no-resurrection"]).findings["no-resurrection"]
    text = str(Violation("no-resurrection", finding.answer))
    assert LAWS["no-resurrection"] in text
    assert "bootstrap" in text
    assert "again: kvlatch conform tests.reference.oracle.managers:Max --play '" in text
    assert "sglang#19205" in text


class Unasked:
    """A player that can do no more than play scripts: so nothing is found but by exploring and at random."""

    def __init__(self, player: InProcess) -> None:
        self.player = player
        self.play = player.play

    @property
    def work(self) -> int:
        return self.player.work


def test_found_at_random() -> None:
    """What only the random plays have found says their seed, and is short."""
    player = Unasked(InProcess(managers.NoTombstone))
    report = oracle.examine(player, "forgetful", ["no-ghost"], limit=1, seed=8, walks=50)
    assert not report.complete
    assert "found at random with --seed 8, and made short" in report.findings["no-ghost"].text
    assert sum(move.event is not None for move in report.findings["no-ghost"].play.moves) <= 12


def test_unknown_law() -> None:
    """A law that does not exist, or is none of the profile, is an error at once."""
    with pytest.raises(ValueError, match="no law is called 'no-pun'"):
        conforms(Right, {"no-pun": "why"})
    with pytest.raises(ValueError, match="not a law of the profile"):
        conforms(Right, {"success-not-overwritten": "why"}, profile="failure overrides")
    with pytest.raises(ValueError, match="no law is called"):
        check_manager(Right, only=["no-pun"])


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (managers.SaysNonsense, "poll .* returned 17: it is a KVPoll, or None"),
        (managers.SaysNothing, "start .* returned None: it is True"),
    ],
)
def test_adapter_fault(make: MakeAdapter, says: str) -> None:
    """What the adapter does wrong is named as its fault, never as a violation."""
    with pytest.raises(AdapterFault, match=says):
        check_manager(make)


def test_what_a_handler_raises_is_its_fault() -> None:
    """An exception that leaves a handler breaks a law, with the manager's own file and line."""
    play = found(managers.Raises, NO_CRASH).play
    fault = play.seen[-1].faults[0]
    assert fault.what == "KeyError: 7"
    assert (fault.file or "").endswith("managers.py")
    assert "raise KeyError(room)" in fault.text
    assert found(managers.Meddles, NO_CRASH).play.seen[-1].faults[0].what.startswith("FrozenInstanceError")


def test_adapter_that_hangs() -> None:
    """A thread that waits for what nobody can see is a finding, with its place, and does not hang the oracle."""
    with managers.Hangs.HIDDEN:
        player = InProcess(managers.Hangs, patience=0.5)
        play = oracle.examine(player, "hangs", [NO_DEADLOCK]).findings[NO_DEADLOCK].play
    assert play.seen[-1].hung or play.world.deadlock
    assert any("managers.py" in one.place for one in play.seen[-1].threads or ())


def test_adapter_that_cannot_be_made() -> None:
    """A constructor that raises is the adapter's fault, too."""

    def make(_: object) -> Right:
        raise RuntimeError("no such device")

    with pytest.raises(AdapterFault, match="making the adapter raised RuntimeError: no such device"):
        check_manager(make)


def test_report() -> None:
    """A report has a judgement for each law, and says what they rest on."""
    report: Report = check_manager(managers.ReleasesTwice, seconds=2.0)
    assert [one.law for one in report.judgements if one.verdict == "broken"] == ["released-once"] == [*report.findings]
    assert report.looked_at["moves"] > 0
    assert f"{len(report.kept)} kept, 1 broken" in report.summary


def test_typed(tmp_path: Path) -> None:
    """An adapter that lacks a method does not pass mypy --strict."""
    (tmp_path / "adapters.py").write_text(
        "from kvlatch.reference.oracle.checks import check_manager, Probe\n"
        "class Half:\n"
        "    def __init__(self, probe: Probe) -> None: ...\n"
        "    def create(self, room: int, request: int) -> None: ...\n"
        "check_manager(Half)\n"
    )
    root = Path(__file__).parents[3]
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", str(root / "pyproject.toml")]
    mypy = subprocess.run(
        [*command, str(tmp_path / "adapters.py")], cwd=root, capture_output=True, text=True, timeout=300, check=False
    )
    assert mypy.returncode == 1
    assert 'incompatible type "type[Half]"; expected "Callable[[Probe], Adapter]"' in mypy.stdout
