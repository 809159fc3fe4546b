"""Findings on published code: each tells a command that repeats it, and a trace that can be shown and played."""

from __future__ import annotations

import shlex
from itertools import islice
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kvlatch.commands.exits import Failure
from kvlatch.commands.main import cli
from kvlatch.reference.laws import Broken
from kvlatch.reference.oracle.findings import text_of as text_of_oracle
from kvlatch.reference.published.sglang.explore import explore, plays_of_interest
from kvlatch.reference.published.sglang.judge import examine
from kvlatch.reference.published.sglang.scenarios import SCENARIOS
from kvlatch.reference.published.sglang.script_text import parse, text_of
from kvlatch.reference.published.sglang.subjects import resolve
from kvlatch.reference.published.wheels import CannotFetch
from kvlatch.spec.traces import read, write
from tests.reference.published.sglang.sglang_fake import make_wheel
from tests.reference.published.sglang.test_judge import LAWFUL

FORGETS = """
from sglang.srt.disaggregation.base.conn import KVPoll

class Manager:
    def update_status(self, room, status):
        self.request_status[room] = status
"""


def kvlatch(*arguments: str) -> Result:
    """The command in this process."""
    return CliRunner().invoke(cli, arguments, standalone_mode=False)


def test_text_and_script_are_the_same() -> None:
    """Every script that is known, and many of exploration: parsed, its text is the script again."""
    scripts = [script for scenario in SCENARIOS for script in scenario.scripts]
    scripts += [one.script for one in islice(plays_of_interest(0), 2_000)]
    for script in scripts:
        assert parse(text_of(script)) == tuple(script)
    assert text_of(parse("create work.step work.step work.finish")) == "create work.step*2 work.finish"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "there is no step"),
        ("dance", "'dance' is no step of a script"),
        ("create work.half", "the part of an op"),
        ("write=Done", "'write=Done': a status is one of Failed,"),
        ("create=Failed", "'create=Failed': create takes no status"),
        ("clear", "step 0, scheduler clear: no sender has been created"),
        ("create*100000", "more than 10,000 steps"),
        ("orderly-1-1-1 create", "'orderly-1-1-1' is no step"),
    ],
)
def test_text_that_is_no_script(text: str, says: str) -> None:
    """One line that names the word."""
    with pytest.raises(ValueError, match=says):
        parse(text)


def repeat(one: Broken, folder: Path) -> None:
    """Run the command that the finding prints; save its trace, show it, explore it and play it."""
    words = shlex.split(one.again)
    assert words[:2] == ["kvlatch", "conform"]
    again = kvlatch(*words[1:])
    assert again.return_value == 1, again.output
    assert f": {one.sentence}\n" in again.output
    assert one.trace is not None
    write(one.trace, path := folder / "finding.itf.json")
    assert read(path) == one.trace
    shown = kvlatch("show", str(path))
    assert (shown.return_value, f"{one.trace.prop} is broken" in shown.output) == (0, True)
    explored = kvlatch("explore", str(path), "--output", str(folder / "finding.html"))
    assert explored.return_value == 0, explored.exception
    alone = kvlatch("conform", words[2], "--play", str(path))
    assert (alone.return_value, f": {one.sentence}\n" in alone.output) == (1, True)


def test_each_finding_can_be_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of scenarios, and what exploration finds; of a wheel with an overlay, named from where we are."""
    wheel = make_wheel(tmp_path, monkeypatch, LAWFUL.replace("if life and not life.told:", "if life:", 1))
    (tmp_path / "forgets it.py").write_text(FORGETS)
    monkeypatch.chdir(tmp_path)
    subject = resolve(f"./{wheel.name}+forgets it.py")
    judged = examine(
        subject, "common", ["terminal-sticky", "room-reusable/stale-clear", "told-once/aborted"]
    ).judgements
    found = [one.answer for one in judged if isinstance(one.answer, Broken)]
    assert len(found) >= 3
    search = explore(subject, "common", ["no-resurrection"])
    found += [one.answer for one in search.judgements if isinstance(one.answer, Broken)]
    assert search.steps
    for one in found:
        repeat(one, tmp_path)


def test_a_trace_of_another_player(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oracle does not take a published finding for its own, nor is one verified on the spec."""
    wheel = make_wheel(tmp_path, monkeypatch, LAWFUL)
    (tmp_path / "forgets.py").write_text(FORGETS)
    monkeypatch.chdir(tmp_path)
    (one,) = examine(f"{wheel}+forgets.py", "common", ["terminal-sticky/plain"]).judgements
    assert isinstance(one.answer, Broken)
    assert one.answer.trace is not None
    assert text_of_oracle(one.answer.trace).startswith("common ")
    write(one.answer.trace, path := tmp_path / "finding.itf.json")
    shown = kvlatch("show", str(path), "--design", "latch")
    assert isinstance(shown.exception, Failure)
    assert "--design has no effect on a finding of conform" in str(shown.exception)


@pytest.mark.network
def test_each_finding_on_the_newest_version_can_be_repeated(tmp_path: Path) -> None:
    """The shortest of two laws; all of them are repeated in `thorough`."""
    try:
        judged = examine("0.5.23", "nixl", ["pages-held", "room-reusable/stale-clear"]).judgements
    except CannotFetch as reason:
        pytest.skip(str(reason))
    for one in judged:
        assert isinstance(one.answer, Broken)
        repeat(one.answer, tmp_path)


@pytest.mark.network
@pytest.mark.thorough
def test_every_finding_on_the_newest_version_can_be_repeated(tmp_path: Path) -> None:
    """All scenarios that it breaks."""
    found = [one.answer for one in examine("0.5.23", "nixl").judgements if isinstance(one.answer, Broken)]
    assert len(found) > 15
    for one in found:
        repeat(one, tmp_path)
