"""The score script: it reads what conform prints, counts both ways, goes on where it was, and all edits fit."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import attrs
import pytest

from bench import oracle
from bench.mutants import mutants
from bench.oracle import Outcome, kept_in, outcomes, parsed, scores, select
from bench.oracle_subjects import BadSubject, Subject, subjects
from kvlatch.reference.laws import LAWS, Broken, Judgement, Kept, NotJudged

EVERYONE = subjects()
RIGHT = Subject("mine", "right", module="mine", file="one_lock.py")
ODD = Subject("strange", "odd", module="odd", exits=(2, 3))
WRONG = Subject("broken", "wrong", module="broken", law="no-pin", file="one_lock.py")


def _judged(*judgements: Judgement) -> str:
    return json.dumps({"subject": "x", "judgements": [one.as_json() for one in judgements]})


def _outcome(name: str, verdicts: dict[str, str], **more: Any) -> Outcome:
    return attrs.evolve(Outcome(name, "", 0, verdicts, dict.fromkeys(verdicts, "why")), **more)


def test_what_conform_prints_is_read_law_by_law() -> None:
    text = _judged(
        Judgement("no-pin", Kept(3, "plays"), "plain"),
        Judgement("no-pin", Broken("it is pinned"), "ranks"),
        Judgement("no-ghost", Kept(1, "plays")),
        Judgement("told-once", NotJudged("nobody was told")),
    )
    verdicts, says = parsed(text)
    assert verdicts == {"no-pin": "broken", "no-ghost": "kept", "told-once": "not judged"}
    assert says["no-pin"] == "it is pinned"


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"judgements": []}', '{"judgements": [{"law": "no-pin"}]}'])
def test_anything_else_is_no_report(text: str) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        parsed(text)


KEPT = dict.fromkeys(list(LAWS)[:11], "kept")


@pytest.mark.parametrize(
    ("subject", "outcome", "reason"),
    [
        (RIGHT, _outcome("mine", KEPT), ""),
        (RIGHT, _outcome("mine", KEPT | {"no-crash": "broken"}), "accused of no-crash (why)"),
        (RIGHT, _outcome("mine", dict(list(KEPT.items())[:10])), "only 10 laws kept"),
        (RIGHT, _outcome("mine", KEPT, seconds=10.1), "took 10 s"),
        (RIGHT, _outcome("mine", {}, exit=3, error="it hung"), "not driven, exit 3: it hung"),
        (RIGHT, _outcome("mine", {}, exit=None, clock=80.0), "stopped after 80 s"),
        (WRONG, _outcome("broken", KEPT), "missed, exit 0, 11 laws kept"),
        (WRONG, _outcome("broken", {"no-pin": "broken"}, exit=1), ""),
        (WRONG, _outcome("broken", {"no-pin": "broken"}, exit=1, seconds=21.0), "took 21 s"),
        (WRONG, _outcome("broken", {"no-pin": "not judged"}, exit=3), "missed, exit 3, 0 laws kept"),
        (ODD, _outcome("strange", {}, exit=2, error="it does not import"), ""),
        (ODD, _outcome("strange", {}, exit=2, error=oracle.NO_REPORT), "no line says why"),
        (ODD, _outcome("strange", KEPT, exit=0), "exit 0, not 2 or 3"),
        (ODD, _outcome("strange", {}, exit=3, error="it is silent", clock=16.0), "took 16 s"),
    ],
)
def test_what_counts_against_the_oracle(subject: Subject, outcome: Outcome, reason: str) -> None:
    assert outcome.reason(subject).startswith(reason)
    assert bool(outcome.reason(subject)) == bool(reason)


def test_the_score_counts_each_kind_by_itself() -> None:
    mutant = attrs.evolve(WRONG, name="m", expected="mutant", law="")
    found = [_outcome("mine", KEPT), _outcome("broken", {"no-crash": "broken"}), _outcome("m", KEPT)]
    right, wrong, missed = scores([RIGHT, WRONG, mutant], found, {})
    assert (right.met, wrong.met, missed.met) == (True, True, False)
    assert (wrong.by_name, missed.against) == (0, {"m": "missed, exit 0, 11 laws kept"})
    (argued,) = scores([mutant], found, {"m": "it writes what stood there"})
    assert (argued.run, argued.equivalent, argued.met) == (0, 1, True)
    (refuted,) = scores([mutant], [_outcome("m", {"no-pin": "broken"})], {"m": "it writes what stood there"})
    assert not refuted.met


def test_a_wrong_manager_that_is_called_right_fails_the_score(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(oracle, "run", lambda subject, _build: _outcome(subject.name, KEPT))
    assert oracle.main(["--only", "one_lock"]) == 0
    assert oracle.main(["--only", "one_lock", "--only", "told_never"]) == 1
    assert "wrong told_never: missed" in capsys.readouterr().out
    assert oracle.main(["--only", "nobody"]) == 2
    assert oracle.main(["--only", "one_lock", "--seconds", "-1"]) == 2


def test_it_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def judged(subject: Subject, build: str) -> Outcome:
        calls.append(subject.name)
        return _outcome(subject.name, KEPT, digest=f"{subject.digest}-{build}")

    monkeypatch.setattr(oracle, "run", judged)
    file = tmp_path / "done.jsonl"
    chosen = EVERYONE[:3]
    assert len(list(outcomes(chosen[:2], file, 60))) == 2
    with file.open("a") as lines:
        lines.write('{"name": "cut o')
    assert len(kept_in(file)) == 2
    assert {one.name for one in outcomes(chosen, file, 60)} == {one.name for one in chosen}
    assert sorted(calls) == sorted(one.name for one in chosen), "each was run once"
    changed = attrs.evolve(chosen[0], edits=(("import threading\n", "import threading\n\n"),))
    list(outcomes([changed], file, 60))
    assert calls[-1] == changed.name, "a changed subject is run again"


def test_there_are_as_many_as_promised_and_every_edit_fits() -> None:
    right = [subject for subject in EVERYONE if subject.expected == "right"]
    wrong = [subject for subject in EVERYONE if subject.expected == "wrong"]
    assert len({subject.module or subject.program for subject in right}) >= 15
    assert len(wrong) >= 60
    for subject in right + wrong:
        if subject.file:
            ast.parse(subject.text())
    assert [subject.name for subject in wrong if not (subject.kind and subject.says and subject.run)] == []
    assert {subject.law for subject in wrong} <= set(LAWS)


def test_an_edit_that_does_not_fit_is_refused() -> None:
    with pytest.raises(BadSubject, match=r"0 times in one_lock\.py"):
        attrs.evolve(WRONG, edits=(("nothing of the kind", ""),)).text()


def test_a_sample_is_the_same_each_time() -> None:
    drawn = [subject.name for subject in select(EVERYONE, ["wrong"], 5)]
    assert len(drawn) == 5
    assert drawn == [subject.name for subject in select(EVERYONE, ["wrong"], 5)]


def test_mutants_change_one_thing_each() -> None:
    source = "class A:\n    def f(self, x):\n        with self.l:\n            if x == 1:\n                self.n += 1"
    found = {mutant.name: mutant.source for mutant in mutants(source, frozenset({"A"}))}
    assert len(set(found.values())) == len(found)
    assert ast.unparse(ast.parse(source)) not in found.values()
    assert "with" not in found["f: without 'with self.l:' around its body"]
    assert "x != 1" in found["f: 'x == 1' turned round"]
    assert "self.n -= 1" in found["f: 'self.n -= 1' instead of its opposite"]
    assert found["f: return at once"].split()[4:6] == ["x):", "return"]
    assert all("self.n += 1" in text for name, text in found.items() if "x == 1" in name and "turned" in name)


@pytest.mark.parametrize("name", ["program"])
def test_a_program_answers_by_the_protocol(name: str, tmp_path: Path) -> None:
    (subject,) = select(EVERYONE, [name], None)
    assert subject.put(tmp_path)[0] == "--exec"
    calls = [{"event": "fresh"}, *({"event": event, "room": 0, "request": 1} for event in ("create", "poll"))]
    text = "".join(json.dumps(call) + "\n" for call in calls)
    command = [sys.executable, str(tmp_path / "program.py")]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1])["answer"] == "Bootstrapping"
