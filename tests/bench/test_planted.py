"""The bugs planted in published code: the list fits, and the score tells a survivor from what was found."""

from __future__ import annotations

import ast
import sys
from collections import Counter
from pathlib import Path

import pytest

from bench import planted
from bench.planted import Outcome, Planted, report


def test_the_list() -> None:
    """At least 60 bugs in at least ten kinds; each edit fits, each name is its own, and each text is Python."""
    bugs = [*planted.planted()]
    kinds = Counter(bug.kind for bug in bugs)
    assert len(bugs) >= 60
    assert len(kinds) >= 10
    assert min(kinds.values()) >= 3
    assert len({bug.name for bug in bugs}) == len({bug.source for bug in bugs}) == len(bugs)
    assert planted.OVERLAY.read_text(encoding="utf-8") not in {bug.source for bug in bugs}
    for bug in bugs:
        ast.parse(bug.source)


def test_an_edit_that_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the fix changes, the list has to follow, and says where."""
    monkeypatch.setattr(planted, "OVERLAY", planted.OVERLAY.with_name("fix_a.py"))
    with pytest.raises(planted.BadList, match="this is there 0 times"):
        [*planted.planted()]


def test_a_bug_that_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Indented code at the end becomes part of the overlay's last function, and does nothing."""
    (tmp_path / "planted.toml").write_text('[[bug]]\nkind = "a"\nname = "b"\nappend = "\\n    def poll(self): ..."\n')
    monkeypatch.setattr(planted, "SUBJECTS", tmp_path)
    with pytest.raises(planted.BadList, match="part of whatever is last"):
        [*planted.planted()]


def outcome(name: str, *, kind: str = "lock", by: tuple[str, ...] = (), refused: str = "") -> Outcome:
    """Of one subject."""
    return Outcome(kind, name, "0", by, refused, 1, 0.0)


def test_the_score(capsys: pytest.CaptureFixture[str]) -> None:
    """A survivor counts against it, unless it is equivalent by a written argument; a refused bug is not found."""
    found = [outcome(str(number), by=("no-pin/no-infos",)) for number in range(19)]
    assert report("planted", [*found, outcome("x")], {})
    assert not report("planted", [*found, outcome("x"), outcome("y", refused="no answer")], {})
    assert report("planted", [*found, outcome("x"), outcome("y")], {"y": "equivalent: nobody can tell"})
    assert report("mutants", [outcome("z", kind="mutant", refused="no answer")], {})
    said = capsys.readouterr().out
    assert "planted: 19 of 21 found (90.5%)" in said
    assert "survives: lock: y: equivalent: nobody can tell" in said


def test_nothing_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A selection that matches nothing is exit 2."""
    monkeypatch.setattr(sys, "argv", ["planted.py", "--only", "no such bug"])
    assert planted.main() == 2


@pytest.mark.network
@pytest.mark.parametrize("name", ["Success after the first chunk", "only Success waits for the chunks in flight"])
def test_a_planted_bug_is_found(name: str) -> None:
    """By the scenarios alone."""
    (bug,) = [one for one in planted.planted() if one.name == name]
    assert planted.judged(Planted(bug.kind, bug.name, bug.source), seconds=0).by
