"""What a CI shows of ``kvlatch prove``: JUnit, annotations, the page of the step; and that every command has --json."""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ET
from importlib import import_module
from pathlib import Path

import click
import pytest

from kvlatch.commands.main import COMMANDS, main
from kvlatch.proofs import pins

TRACE = Path(pins.__file__).with_name("traces") / "fix-a.no-ghost.itf.json"
SEED = Path(__file__).parents[1] / "logs" / "seed.ndjson"
ROOM = "771203388710254007"

MINE = """
import attrs
from kvlatch.spec.designs import DESIGNS
from kvlatch.spec.merges import KEEP
from kvlatch.spec.status import KVPoll


def forgets_success(current, incoming):
    return KEEP if current == KVPoll.Failed else incoming


DESIGN = attrs.evolve(DESIGNS["latch"], name="mine", merge=forgets_success)
"""


def run(
    *arguments: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> tuple[object, str, str]:
    """The exit code of the command, and both of its streams."""
    monkeypatch.setattr(sys, "argv", ["kvlatch", *arguments])
    with pytest.raises(SystemExit) as done:
        main()
    return done.value.code, *capsys.readouterr()


@pytest.fixture
def _mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's repository with a design of their own, as a step of GitHub Actions sees it."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "mine_for_ci.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path / "src")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path))
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))


@pytest.mark.usefixtures("_mine")
def test_a_design_with_a_bad_merge_is_one_annotation_at_that_merge(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sentence, the user's own file and line, and the shortest counterexample on the page of the step."""
    arguments = ("prove", "--design", "mine_for_ci:DESIGN", "--workers", "1", "--atomicity", "locked", "--json")
    code, out, err = run(*arguments, capsys=capsys, monkeypatch=monkeypatch)
    assert code == 1
    refuted = [cell for cell in map(json.loads, out.splitlines()) if cell["verdict"] == "refuted"]
    assert len(refuted) > 5
    (line,) = [line for line in err.splitlines() if line.startswith("::")]
    place = MINE.splitlines().index("def forgets_success(current, incoming):") + 1
    assert line.startswith(
        f"::error file=src/mine_for_ci.py,line={place},title=kvlatch prove%3A mine_for_ci%3ADESIGN::"
    )
    assert "no-lost-wakeup is broken: decode's metadata is in the table" in line
    page = (tmp_path / "summary.md").read_text(encoding="utf-8")
    shortest = min(cell["length"] for cell in refuted)
    assert f": {shortest} steps" in page.partition("```")[2]
    assert f"no-lost-wakeup**: broken in {shortest} steps, a message comes early\n" in page.partition("```")[0]


@pytest.mark.usefixtures("_mine")
def test_a_design_that_ships_is_nobodys_file(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its merge lies in kvlatch: an annotation there would be shown nowhere. All of its verdicts are one annotation."""
    arguments = ("prove", "--design", "fix-a", "--design", "fix-b", "--workers", "1", "--property", "no-pin")
    _, out, _ = run(*arguments, capsys=capsys, monkeypatch=monkeypatch)
    assert "::error" not in out
    code, _, err = run(*arguments, "--json", capsys=capsys, monkeypatch=monkeypatch)
    lines = [line for line in err.splitlines() if line.startswith("::")]
    assert (code, [line.partition("::")[2].partition("::")[0] for line in lines]) == (
        1, ["error title=kvlatch prove%3A fix-a", "error title=kvlatch prove%3A fix-b"]
    )  # fmt: skip


@pytest.mark.usefixtures("_mine")
def test_junit_says_what_broke_and_how_long_it_took(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each failure has its sentence and the steps of its run; a time that was not measured is left out."""
    report = tmp_path / "report.xml"
    arguments = ("prove", "--design", "mine_for_ci:DESIGN", "--atomicity", "locked", "--junit", str(report))
    assert run(*arguments, capsys=capsys, monkeypatch=monkeypatch)[0] == 1
    suite = ET.parse(report).getroot()  # noqa: S314  # our own file
    cases = list(suite)
    failed = [case for case in cases if case.find("failure") is not None]
    assert len(failed) == int(suite.get("failures", "")) > 5
    for case in failed:
        failure = case.find("failure")
        assert failure is not None
        prop = case.get("name", "").partition(" ")[0]
        if prop == "room-reusable":
            assert failure.get("message", "").startswith("unknown, which is no pass: ")
            continue
        assert failure.get("message", "").startswith(f"{prop} is broken: ")
        assert "1 worker, " in str(failure.text) or "2 workers, " in str(failure.text)
        assert case.get("file", "").endswith("mine_for_ci.py")
    assert {case.get("name") for case in cases} > {"no-pin [1 worker]", "no-pin [2 workers]"}
    assert all(float(case.get("time", "1")) > 0 for case in cases)


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "record"])  # which prints nothing of its own
def test_every_command_has_json(name: str) -> None:
    """And those that give verdicts on somebody's work write JUnit."""
    command = getattr(import_module(f"kvlatch.commands.{name}"), name)
    assert isinstance(command, click.Command)
    options = {option for parameter in command.params for option in parameter.opts}
    assert "--json" in options
    assert ("--junit" in options) == (name in ("prove", "conform", "check")) or name == "check"


@pytest.mark.parametrize(
    "arguments",
    [
        ("show", str(TRACE)), ("show", str(SEED), "--room", ROOM), ("show", str(SEED), "--room", hex(int(ROOM))),
        ("vectors", "new"), ("atlas",), ("replay", str(TRACE)), ("explore", str(TRACE), "--output", "page.html"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_json_is_one_object_and_its_ids_are_strings(
    arguments: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jq 1.6 and JavaScript round an integer of 64 bits: a string keeps its digits."""
    monkeypatch.chdir(tmp_path)
    code, out, _ = run(*arguments, "--json", capsys=capsys, monkeypatch=monkeypatch)
    assert code in (0, 1)
    found = json.loads(out)
    assert isinstance(found, dict)
    large = [number for number in _numbers(found) if number > 2**53]
    assert large == []
    if "--room" in arguments:
        assert (found["room"], found["fatal"]) == (ROOM, 15)
        assert found["lines"][-1]["number"] == 17


def _numbers(value: object) -> list[int]:
    if isinstance(value, dict | list):
        return [n for each in (value.values() if isinstance(value, dict) else value) for n in _numbers(each)]
    return [value] if isinstance(value, int) else []
