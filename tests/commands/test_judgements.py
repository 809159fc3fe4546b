"""Judgements as text, JSON, JUnit, annotations and an exit code, whoever has judged."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from kvlatch.commands.annotations import MOST, Annotation, annotate
from kvlatch.commands.judgements import Output, Report
from kvlatch.proofs import pins
from kvlatch.reference.laws import Broken, Judgement, Kept, NotJudged
from kvlatch.spec.traces import read

TRACE = read(Path(pins.__file__).with_name("traces") / "fix-a.no-pin.itf.json")
KEPT = Judgement("no-ghost", Kept(3, "plays"), "late", seconds=1.25)
UNJUDGED = Judgement("told-once", NotJudged("no call tells decode anything"))


def broken(file: str | None = None) -> Judgement:
    answer = Broken("the room is pinned", "1  create\n2  abort", TRACE, "kvlatch conform m:M --play x", file, 7)
    return Judgement("no-pin", answer, "plain", seconds=0.5)


def report(*judgements: Judgement, only: tuple[str, ...] = ()) -> Report:
    return Report("m:M", judgements, only, {"rooms": 1200, "threads held": 2})


def test_text(capsys: pytest.CaptureFixture[str]) -> None:
    """The run and how to see it again, a line a law, and a summary with all three counts and what was looked at."""
    assert Output("kvlatch conform").write(report(KEPT, broken(), UNJUDGED)) == 1
    assert capsys.readouterr().out.splitlines() == [
        "1  create",
        "2  abort",
        "again: kvlatch conform m:M --play x",
        "",
        "kept        no-ghost/late: 3 plays could have broken it",
        "broken      no-pin/plain: the room is pinned",
        "not judged  told-once: no call tells decode anything",
        "m:M: laws: 1 kept, 1 broken, 1 not judged; looked at rooms: 1,200, threads held: 2",
    ]


def test_nothing_judged_is_not_green(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing, nothing but unjudged, and nothing of what was named: exit 3; and the summary says so."""
    assert Output("kvlatch conform").write(report()) == 3
    assert "none was judged" in capsys.readouterr().out
    assert Output("kvlatch conform").write(report(UNJUDGED)) == 3
    assert Output("kvlatch conform").write(report(KEPT, UNJUDGED, only=("told-once",))) == 3
    assert Output("kvlatch conform").write(report(KEPT, UNJUDGED)) == 0


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One object, with the traces that were written."""
    assert Output("kvlatch conform", as_json=True, traces=tmp_path / "new").write(report(KEPT, broken())) == 1
    said = json.loads(capsys.readouterr().out)
    assert (said["subject"], said["kept"], said["broken"], said["not_judged"]) == ("m:M", 1, 1, 0)
    assert said["looked_at"] == {"rooms": 1200, "threads held": 2}
    assert [(law["law"], law["verdict"]) for law in said["judgements"]] == [("no-ghost", "kept"), ("no-pin", "broken")]
    assert said["judgements"][1]["text"] == "1  create\n2  abort"
    assert read(Path(said["traces"]["no-pin/plain"])) == TRACE


def test_junit(tmp_path: Path) -> None:
    """What was broken failed with its run, what was not judged was skipped with the reason, and times are kept."""
    path = tmp_path / "report.xml"
    odd = Judgement("settlement", Broken("it said \x00 and \ud800", "\x1b[1m"))
    Output("kvlatch conform", junit=path).write(report(KEPT, broken("m.py"), UNJUDGED, odd))
    suite = ET.parse(path).getroot()  # noqa: S314  # our own file
    assert [suite.get(name) for name in ("tests", "failures", "skipped", "time")] == ["4", "2", "1", "1.750000"]
    kept, wrong, unjudged, _ = suite
    assert (kept.get("name"), kept.get("time"), len(kept)) == ("no-ghost/late", "1.250000", 0)
    assert (wrong.get("file"), wrong.get("line")) == ("m.py", "7")
    (failure,) = wrong
    assert failure.get("message") == "the room is pinned"
    assert "2  abort\nagain: kvlatch conform m:M --play x" in str(failure.text)
    assert [(child.tag, child.get("message")) for child in unjudged] == [("skipped", "no call tells decode anything")]


def test_annotations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A sentence at the user's own line, nothing of it on standard output, and the shortest run on the step's page."""
    page = tmp_path / "summary.md"
    for name, value in {
        "GITHUB_ACTIONS": "true",
        "GITHUB_WORKSPACE": str(tmp_path),
        "GITHUB_STEP_SUMMARY": str(page),
    }.items():
        monkeypatch.setenv(name, value)
    longer = Judgement("settlement", Broken("a, b: 100%\nnever", "1\n2\n3\n4", file="/elsewhere/x.py", line=3))
    Output("kvlatch conform", as_json=True).write(report(KEPT, broken(str(tmp_path / "src" / "m.py")), longer))
    out, err = capsys.readouterr()
    json.loads(out)
    assert err.splitlines() == [
        "::error file=src/m.py,line=7,title=m%3AM%3A no-pin/plain::the room is pinned",
        "::error title=m%3AM%3A settlement::a, b: 100%25%0Anever",
    ]
    written = page.read_text(encoding="utf-8")
    assert "1 kept, 2 broken" in written
    assert "2  abort" in written
    assert "4" not in written.partition("```")[2]


def test_a_page_that_cannot_be_written_changes_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line says so, and the exit code is that of the verdict."""
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "missing" / "summary.md"))
    assert Output("kvlatch conform").write(report(KEPT, broken())) == 1
    assert "the page of the step cannot be written: No such file" in capsys.readouterr().err


def test_never_more_annotations_than_are_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """GitHub shows ten errors a step: ten are ten, and of more the last says how many are left."""
    failures = [Annotation("kvlatch", str(number)) for number in range(40)]
    annotate(failures)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    annotate(failures[: MOST + 1])
    assert len(capsys.readouterr().err.splitlines()) == MOST + 1
    annotate(failures)
    *_, last = lines = capsys.readouterr().err.splitlines()
    assert len(lines) == MOST + 1
    assert last.endswith("31 more failures are in the log of this step")
