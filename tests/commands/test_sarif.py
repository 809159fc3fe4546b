"""SARIF that code scanning accepts: every member is one of the standard's, and nothing that was found is left out."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel
from sarif_pydantic import Sarif

from kvlatch.commands.judgements import Output, Report
from kvlatch.reference.laws import LAWS, Broken, Judgement, Kept, NotJudged
from kvlatch.spec.properties import BY_NAME

HERE = Path(__file__)
JUDGEMENTS = (
    Judgement(
        "terminal-sticky", Broken("Failed became Transferring", "1 a\n2 b", None, "kvlatch x", str(HERE), 7), "plain"
    ),
    Judgement("no-crash", Broken("a handler raised")),
    Judgement("no-ghost", Kept(3, "plays")),
    Judgement("told-once", NotJudged("no call tells decode anything")),
)


NOT_IN_THE_LIBRARY = {".runs.invocations.toolExecutionNotifications"}
"""Of the standard (section 3.20.21), but not among the library's models."""


def unknown(model: object, where: str = "") -> Iterator[str]:
    """Every member that the standard does not have, anywhere in a document."""
    if isinstance(model, BaseModel):
        yield from (f"{where}.{name}" for name in model.model_extra or {})
        for name in type(model).model_fields:
            yield from unknown(getattr(model, name), f"{where}.{name}")
    elif isinstance(model, list):
        for part in model:
            yield from unknown(part, where)


@pytest.fixture
def document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    monkeypatch.chdir(HERE.parents[2])
    monkeypatch.delenv("GITHUB_WORKSPACE", raising=False)
    path = tmp_path / "out.sarif"
    assert Output("kvlatch conform", sarif=path).write(Report("mine:Manager", JUDGEMENTS)) == 1
    capsys.readouterr()
    return path.read_text()


def test_every_member_is_of_the_standard(document: str) -> None:
    found = Sarif.model_validate_json(document)
    assert set(unknown(found)) == NOT_IN_THE_LIBRARY
    wrong = json.loads(document)
    wrong["runs"][0]["results"][0]["messages"] = "no such member"
    assert ".runs.results.messages" in set(unknown(Sarif.model_validate(wrong)))


def test_a_result_for_each_broken_law(document: str) -> None:
    (run,) = json.loads(document)["runs"]
    first, second = run["results"]
    assert first["ruleId"] == "terminal-sticky"
    assert run["tool"]["driver"]["rules"][first["ruleIndex"]]["id"] == "terminal-sticky"
    location = first["locations"][0]["physicalLocation"]
    assert location["artifactLocation"]["uri"] == "tests/commands/test_sarif.py"
    assert location["region"] == {"startLine": 7}
    assert first["message"]["text"] == "Failed became Transferring\n\n1 a\n2 b\n\nagain: kvlatch x"
    assert (second["ruleId"], "locations" in second) == ("no-crash", False)


def test_a_rule_explains_its_law(document: str) -> None:
    (run,) = json.loads(document)["runs"]
    rules = {rule["id"]: rule for rule in run["tool"]["driver"]["rules"]}
    assert list(rules) == [one.law for one in JUDGEMENTS]
    assert rules["no-crash"]["shortDescription"]["text"] == LAWS["no-crash"]
    assert BY_NAME["terminal-sticky"].reports[0] in rules["terminal-sticky"]["help"]["text"]


@pytest.mark.parametrize(
    "command", [["check", "tests/logs/seed.ndjson"], ["conform", "manager_max:Adapter", "--only", "terminal-sticky"]]
)
def test_the_commands_write_it(command: list[str], tmp_path: Path) -> None:
    """From a checkout's examples: the broken law is a result, and the exit code stays 1."""
    root = HERE.parents[2]
    folder = root / "examples" / "python" if command[0] == "conform" else root
    path = tmp_path / "out.sarif"
    arguments = [sys.executable, "-m", "kvlatch", *command, "--sarif", str(path)]
    done = subprocess.run(arguments, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1, done.stderr
    found = Sarif.model_validate_json(path.read_text())
    assert "terminal-sticky" in [result.rule_id for result in found.runs[0].results or []]


def test_what_was_not_judged_is_not_lost(document: str) -> None:
    (run,) = json.loads(document)["runs"]
    (note,) = run["invocations"][0]["toolExecutionNotifications"]
    assert note["message"]["text"] == "told-once was not judged: no call tells decode anything"
