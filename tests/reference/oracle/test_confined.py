"""What is said of a manager whose process has ended too early."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kvlatch.reference.faults import Refused
from kvlatch.reference.foreign.process import Ended, Frame, Raised, Stack
from kvlatch.reference.laws import Broken, Judgement, Kept, NotJudged
from kvlatch.reference.oracle import confined, interleave
from kvlatch.reference.oracle.results import Result
from kvlatch.spec.model import Instance
from kvlatch.spec.traces import Step, Trace

LAWS = ["terminal-sticky", "no-pin", "no-crash", "no-deadlock"]
TRACE = Trace("latch", "locked", "orderly", Instance(1, 1, 1), "terminal-sticky", (Step({}),))
LEARNT = Result(
    (
        Judgement("terminal-sticky", Broken("it was Failed", "a table", None, "again", "m.py", 3)),
        Judgement("no-pin", Kept(3, "polls")),
        Judgement("no-crash", Kept(9, "calls")),
        Judgement("no-deadlock", NotJudged("no two calls")),
    ),
    plays={"terminal-sticky": "orderly-1-1-1 create"},
    looked_at={"plays": 7},
)
STACKS = (
    Stack(True, (Frame(interleave.__file__, 5, "halt"), Frame("/x/m.py", 8, "rests"))),
    Stack(False, (Frame(confined.__file__, 1, "f"), Frame("/x/m.py", 42, "works"))),
)


def ended(*, hung: bool = False, now: str = "poll", stacks: tuple[Stack, ...] = STACKS) -> Ended:
    """A process that ended in its third step."""
    return Ended("has ended with exit status 0", hung, now, ("create", "metadata", now), stacks)


def judged(monkeypatch: pytest.MonkeyPatch, end: Exception, *before: Result) -> Result:
    """What is said of a child that has reported something before its end."""

    class Stopped:
        folder = Path()

        def reports(self) -> Iterator[dict[str, Any]]:
            yield from ({"learnt": one.as_json()} for one in before)
            raise end

    @contextmanager
    def child(*_: object) -> Iterator[Stopped]:
        yield Stopped()

    monkeypatch.setattr(confined, "_child", child)
    return confined.examined("m:Adapter", LAWS)


@pytest.mark.parametrize(("hung", "law"), [(False, "no-crash"), (True, "no-deadlock")])
def test_what_was_found_stays_broken(monkeypatch: pytest.MonkeyPatch, hung: bool, law: str) -> None:
    """The end is a broken law with its place; nothing is said to be kept."""
    result = judged(monkeypatch, ended(hung=hung), LEARNT)
    verdicts = {one.law: one.verdict for one in result.judgements}
    assert [name for name in LAWS if verdicts[name] == "broken"] == sorted({"terminal-sticky", law}, key=LAWS.index)
    assert "kept" not in verdicts.values()
    (end,) = (one.answer for one in result.judgements if one.law == law)
    assert isinstance(end, Broken)
    assert (end.file, end.line) == ("/x/m.py", 42)
    assert end.sentence == "the process has ended with exit status 0 in poll (m.py, line 42, in works)"
    assert "rests" not in end.text
    assert result.looked_at == {"plays": 7}


def test_an_end_before_anything_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """One law is broken, and no other is judged; without a stack there is no place."""
    result = judged(monkeypatch, ended(stacks=()))
    assert [one.verdict for one in result.judgements] == ["not judged", "not judged", "broken", "not judged"]
    (end,) = (one.answer for one in result.judgements if isinstance(one.answer, Broken))
    assert (end.file, end.line) == (None, None)


def test_an_end_in_the_import(monkeypatch: pytest.MonkeyPatch) -> None:
    """No manager, no law: a line."""
    with pytest.raises(Refused, match=r"m:Adapter: the process has ended .* in the import of m") as refused:
        judged(monkeypatch, ended(now="the import of m"))
    assert refused.value.exit_code == 2


def test_an_exception_of_theirs_and_one_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """The manager's is a crash with its line; ours is ours."""
    theirs = Raised("LookupError", "7", "Traceback ...", (Frame("/x/m.py", 9, "status"),))
    (crash,) = (one.answer for one in judged(monkeypatch, theirs).judgements if isinstance(one.answer, Broken))
    assert (crash.sentence, crash.file, crash.line) == ("LookupError: 7 leaves status", "/x/m.py", 9)
    ours = Raised("KeyError", "7", "Traceback ...", (Frame(confined.__file__, 9, "f"),))
    with pytest.raises(RuntimeError, match="Traceback"):
        judged(monkeypatch, ours)


def test_a_result_is_the_same_on_the_other_side(tmp_path: Path) -> None:
    """As JSON and back; its trace goes by a file, or is left out."""
    broken = Judgement("terminal-sticky", Broken("it was Failed", trace=TRACE), "plain", 1.5)
    result = Result((broken, *LEARNT.judgements[1:]), "summary", {"a": "b"}, {"plays": 7}, ("a note",), complete=True)
    assert Result.from_json(result.as_json(tmp_path), tmp_path) == result
    (first, *_) = Result.from_json(result.as_json()).judgements
    assert first.answer == Broken("it was Failed")
