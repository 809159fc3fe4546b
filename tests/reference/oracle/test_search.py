"""What an examination makes of a lost wake-up, a cold start, an answer that is none, and a sleep without end."""

from __future__ import annotations

from kvlatch.reference.laws import NO_CRASH, NO_DEADLOCK
from kvlatch.reference.oracle.checks import check_manager
from kvlatch.reference.oracle.explore import replay
from kvlatch.reference.oracle.inprocess import InProcess
from tests.reference.oracle import managers

AWAKE = "no-lost-wakeup"


def test_a_lost_wake_up_is_shown_by_a_poll() -> None:
    """The table alone is a suspicion; a manager that takes metadata in when it is polled is not accused."""
    finding = check_manager(managers.LosesAWakeUp, only=[AWAKE]).findings[AWAKE]
    assert finding.play.life.polled is not None
    assert AWAKE in check_manager(managers.TakesInLater, only=[AWAKE], seconds=1.0).kept


def test_a_cold_start_is_told_and_not_held_against_a_manager() -> None:
    """What only the first two calls of a life break is a note, with the command that shows it."""
    report = check_manager(managers.BeginsLazily, only=[NO_CRASH], seconds=1.0)
    assert report.kept == (NO_CRASH,)
    note = next(note for note in report.notes if "the first two calls of its life" in note)
    assert "RuntimeError: the journal is open already" in note
    play = note.partition("--play '")[2].removesuffix("'")
    assert NO_CRASH in replay(InProcess(managers.BeginsLazily), play).broken()


def test_an_answer_that_is_none() -> None:
    """Who has answered rightly before is not an adapter that cannot be driven."""
    finding = check_manager(managers.ForgetsToAnswer, only=[NO_CRASH]).findings[NO_CRASH]
    assert finding.sentence.startswith("an answer of None, neither True nor False, leaves start on worker 0")
    assert (finding.answer.file or "").endswith("managers.py")


def test_a_sleep_without_end() -> None:
    """A call that sleeps again and again, when nobody else has anything to do, waits for ever."""
    finding = check_manager(managers.SleepsForEver, only=[NO_DEADLOCK]).findings[NO_DEADLOCK]
    assert "sleeps 0.01 s" in finding.sentence
