"""``kvlatch conform``: what is asked is answered, with the exit code that it deserves."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from bench.oracle_subjects import subjects
from kvlatch.commands.exits import Failure
from kvlatch.commands.main import cli
from kvlatch.reference.faults import Refused
from kvlatch.reference.oracle import confined
from kvlatch.reference.oracle.checks import LAWS
from kvlatch.spec.traces import read

ROOT = Path(__file__).parents[2]
MANAGERS = "tests.reference.oracle.managers"


def conform(*arguments: str) -> Result:
    """The command in this process; ``return_value`` is its exit code."""
    return CliRunner().invoke(cli, ["conform", *arguments], standalone_mode=False)


def code(result: Result) -> int:
    """The exit code, also of a failure that ``main`` would print."""
    if isinstance(result.exception, Failure):
        return result.exception.code
    assert result.exception is None, result.exception
    return int(result.return_value)


def test_right_manager() -> None:
    """A right manager: exit 0, and every law is said to be kept."""
    result = conform(f"{MANAGERS}:Right", "--json")
    said = json.loads(result.output)
    kept = [one["law"] for one in said["judgements"] if one["verdict"] == "kept"]
    assert code(result) == 0
    assert set(kept) >= set(LAWS) - {"no-deadlock"}
    assert said["looked_at"]["uses of an id"] == 3


def test_wrong_manager(tmp_path: Path) -> None:
    """A wrong manager: exit 1, the law, the table of the play, a trace that plays again, and a JUnit report."""
    report = tmp_path / "report.xml"
    result = conform(f"{MANAGERS}:ReleasesTwice", "--traces", str(tmp_path), "--junit", str(report))
    assert code(result) == 1
    assert "the pages were released twice" in result.output
    assert "1 broken" in result.output
    trace = tmp_path / "released-once.itf.json"
    assert read(trace).steps[-1].state["pages"] == "released twice"
    again = conform(f"{MANAGERS}:ReleasesTwice", "--play", str(trace))
    assert code(again) == 1
    assert "broken      released-once" in again.output
    suite = ET.parse(report)  # noqa: S314  # our own
    failed = [case.get("name") for case in suite.iter("testcase") if case.find("failure") is not None]
    assert failed == ["released-once"]


def test_an_annotation_points_into_the_users_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """In GitHub Actions a broken law is an annotation, at the adapter where no better place is known."""
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    monkeypatch.chdir(ROOT)
    result = conform(f"{MANAGERS}:ReleasesTwice", "--only", "released-once")
    place = (ROOT / "tests/reference/oracle/managers.py").read_text().splitlines().index(
        "class ReleasesTwice(Right):"
    ) + 1
    assert f"::error file=tests/reference/oracle/managers.py,line={place}," in result.output + result.stderr


def test_only() -> None:
    """Only the law that is asked for is looked at."""
    result = conform(f"{MANAGERS}:ReleasesTwice", "--only", "pages-held", "--json")
    (only,) = json.loads(result.output)["judgements"]
    assert (code(result), only["law"], only["verdict"]) == (0, "pages-held", "kept")


def test_play_of_a_right_manager() -> None:
    """A play that breaks nothing says what it has looked at, and of the other laws that they were not judged."""
    result = conform(f"{MANAGERS}:Right", "--play", "orderly-1-1-1 create abort poll")
    assert code(result) == 0
    assert "kept        terminal-sticky: 1 polls after a terminal status could have broken it" in result.output
    assert "not judged  no-ghost: in this play nothing came after a request was over" in result.output


@pytest.mark.parametrize(
    ("arguments", "exit_code", "says"),
    [
        ((), 2, "name one manager"),
        (("nonsense",), 2, "'nonsense' is no manager"),
        (("--exec", f"{sys.executable} -c ''"), 3, "told .*fresh.*, has ended with exit status 0"),
        (("--exec", "no-such-program"), 3, "cannot start no-such-program: No such file"),
        (("--exec", "no-such-program", "--merge"), 2, "--merge takes a Python adapter"),
        (("flask==1",), 2, "'flask' is no package that kvlatch can drive"),
        (("no.such.module:Make",), 2, "No module named 'no'"),
        ((f"{MANAGERS}:Key",), 3, "making the adapter raised TypeError"),
        ((f"{MANAGERS}:Failed",), 2, "is a KVPoll: it has to be called"),
        ((f"{MANAGERS}:Right", "--only", "no-pun"), 2, "no law is called 'no-pun'"),
        ((f"{MANAGERS}:Right", "--play", "orderly-1-1-1 dance"), 2, "'dance' is no move"),
        ((f"{MANAGERS}:Right", "--play", "missing.itf.json"), 2, "missing.itf.json: No such file"),
        ((f"{MANAGERS}:SaysNonsense",), 3, "poll .* returned 17"),
        ((f"{MANAGERS}:Right", "--merge"), 3, r"has no update\(\): a merge can be extracted from what has update"),
    ],
)
def test_failures(arguments: tuple[str, ...], exit_code: int, says: str) -> None:
    """What cannot be asked or answered is one line, and never reads as a verdict."""
    result = conform(*arguments)
    assert code(result) == exit_code
    with pytest.raises(Failure, match=says):
        raise result.exception  # type: ignore[misc]  # it is one: the code has been read from it


def test_a_call_that_raises_breaks_a_law() -> None:
    """With the file and the line; the others are judged all the same."""
    result = conform(f"{MANAGERS}:Raises", "--only", "no-crash", "--only", "no-ghost", "--json")
    assert code(result) == 1
    said = {one["law"]: one for one in json.loads(result.output)["judgements"]}
    assert (said["no-crash"]["verdict"], Path(said["no-crash"]["file"]).name) == ("broken", "managers.py")
    assert "no-ghost" in said


# --- Managers that do not play along --------------------------------------------------------------------------------

ODD = {subject.name: subject for subject in subjects() if subject.expected == "odd"}
QUICK = ("exits_at_import", "makes_nothing", "no_clear", "program_garbage", "program_ends", "closes_stdout")


def judged(name: str, folder: Path, *options: str) -> tuple[int, str, str]:
    """The exit code of ``kvlatch conform`` on an odd subject, and what it says on both streams."""
    command = [sys.executable, "-m", "kvlatch", "conform", *ODD[name].put(folder), *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.thorough) for name in ODD]
)
def test_what_cannot_be_judged_is_one_line_or_a_finding(name: str, tmp_path: Path) -> None:
    """The exit code that a reader may expect, and a line that says why."""
    exit_code, out, err = judged(name, tmp_path)
    assert exit_code in ODD[name].exits
    assert "Traceback" not in err
    assert (err.count("kvlatch: ") == 1) if exit_code > 1 and not out else "laws: " in out


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("poll_ends_the_process", "the process has ended with exit status 0 in poll (request 1 of room 7)"),
        ("poll_crashes", "the process was ended by SIGSEGV in poll (request 1 of room 7)"),
    ],
)
def test_a_process_that_dies_in_a_call(name: str, how: str, tmp_path: Path) -> None:
    """No-crash is broken, with the place; nothing is said of the others; all reports are written."""
    report, sarif = tmp_path / "report.xml", tmp_path / "report.sarif"
    exit_code, out, _ = judged(name, tmp_path, "--json", "--junit", str(report), "--sarif", str(sarif))
    said = json.loads(out)
    verdicts = {one["law"]: one for one in said["judgements"]}
    assert (exit_code, said["broken"], said["not_judged"]) == (1, 1, len(verdicts) - 1)
    crash = verdicts["no-crash"]
    line = (tmp_path / "odd.py").read_text("utf-8").splitlines()[crash["line"] - 1]
    assert how in crash["says"]
    assert ("os._exit" in line or "string_at" in line, Path(crash["file"]).name) == (True, "odd.py")
    assert "create (request 1 of room 7) on scheduler" in crash["text"]
    suite = ET.parse(report)  # noqa: S314  # our own
    assert len([case for case in suite.iter("testcase") if case.find("failure") is not None]) == 1
    assert len(json.loads(sarif.read_text("utf-8"))["runs"][0]["results"]) == 1


@pytest.mark.parametrize(
    ("source", "now"),
    [
        ("while True:\n    pass\n", "the import of stuck"),
        ("import json.tool\nimport ctypes\nctypes.PyDLL(None).pause()\n", "the import of "),
    ],
)
def test_an_import_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, now: str) -> None:
    """One line, with the place; a limit that is short here."""
    (tmp_path / "stuck.py").write_text(source, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Refused, match=rf"stuck:Make: the process has not moved for 2 s in {now}.*stuck.py, line") as no:
        confined.examined("stuck:Make", ["no-crash"], silence=2.0)
    assert no.value.exit_code == 2


def test_merge() -> None:
    """A foreign table is extracted, compared with the profiles, and its properties are proved."""
    result = conform("tests.reference.oracle.test_merge_table:Sticky", "--merge", "--json")
    said = json.loads(result.output)
    assert code(result) == 0
    assert said["same_as"] == ["first_terminal_wins"]
    assert said["changes"]["first terminal wins"] == []
    assert set(said["properties"].values()) == {"holds"}


@pytest.mark.network
def test_sglang() -> None:
    """The seed's merge on a published version: broken by plain writes, two steps after the room is created."""
    result = conform("sglang==0.5.15.post1", "--backend", "common", "--only", "terminal-sticky/plain", "--json")
    (law,) = json.loads(result.output)["judgements"]
    assert code(result) == 1
    assert (law["law"], law["verdict"]) == ("terminal-sticky", "broken")
    assert law["says"] == "the room was Failed and ends Transferring"


@pytest.mark.network
def test_a_law_selects_all_its_scenarios() -> None:
    """Plain writes keep the newest version's Failed; two threads that write at once do not, and the law is broken."""
    result = conform("sglang==0.5.23", "--only", "terminal-sticky", "--json", "--seconds", "0")
    found = {law["scenario"]: law["verdict"] for law in json.loads(result.output)["judgements"]}
    assert code(result) == 1
    assert found == {"plain": "kept", "two-writers": "broken", "in-flight": "kept"}


@pytest.mark.network
@pytest.mark.parametrize("law", ["settlement/aborted", "terminal-sticky/plain"])
def test_a_scenario_that_is_kept(law: str) -> None:
    """Exit 0 only where something was looked at."""
    result = conform("sglang==0.5.23", "--only", law)
    assert code(result) == 0
    assert "plays could have broken it" in result.output


@pytest.mark.network
def test_a_law_that_cannot_be_judged() -> None:
    """No bootstrap thread in the common backend: exit 3, with the reason."""
    result = conform("sglang==0.5.23", "--backend", "common", "--only", "no-pin", "--seconds", "1")
    assert code(result) == 3
    assert "not judged  no-pin/no-infos: there is no bootstrap thread" in result.output


@pytest.mark.network
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--only", "nonsense"), "no law is called 'nonsense'"),
        (("--only", "no-pin/explored", "--seconds", "0"), "no law is called 'no-pin/explored'"),
        (("--only", "terminal-sticky/nonsense"), "no law is called"),
        (("--play", "orderly-1-1-1 create"), "--play: 'orderly-1-1-1' is no step of a script"),
        (("--play", "missing.itf.json"), "missing.itf.json: No such file"),
        (("--play", "create", "--seconds", "1"), "--seconds has no effect with --play"),
        (("--play", "create", "--merge"), "--play has no effect with --merge"),
        (("--sequential",), "--sequential has no effect on published code"),
        (("--profile", "failure-overrides"), "--profile has no effect on published code"),
        (("--backend", "pigeon"), "sglang 0.5.23 has no backend 'pigeon'"),
    ],
)
def test_bad_questions_about_sglang(arguments: tuple[str, ...], says: str) -> None:
    """What selects nothing or does nothing is a usage error, never a green line."""
    result = conform("sglang==0.5.23", *arguments)
    assert code(result) == 2
    assert says in str(result.exception)


@pytest.mark.network
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--backend", "nixl"), "--backend has no effect on vllm"),
        (("--seconds", "5"), "--seconds has no effect on vllm"),
        (("--play", "create"), "--play has no effect on vllm"),
        (("--only", "pages-held/nonsense"), "no law is called"),
        (("--merge",), "--merge takes an adapter or sglang==VERSION"),
    ],
)
def test_bad_questions_about_vllm(arguments: tuple[str, ...], says: str) -> None:
    """As above."""
    result = conform("vllm==0.12.0", *arguments)
    assert code(result) == 2
    assert says in str(result.exception)


@pytest.mark.network
def test_vllm() -> None:
    """A law selects its scenarios, and what is kept says how many states could have broken it."""
    result = conform("vllm==0.12.0", "--only", "pages-held", "--json")
    found = {law["scenario"]: law for law in json.loads(result.output)["judgements"]}
    assert {*found} == {"prefill", "lease", "decode"}
    assert code(result) == 1
    assert all(law["verdict"] != "kept" or law["looks"] > 0 for law in found.values())


@pytest.mark.network
def test_merge_of_sglang() -> None:
    """The newest merge is that of 0.5.20: right where a failure may override, one cell from the other profile."""
    result = conform("sglang==0.5.23", "--merge", "--json")
    said = json.loads(result.output)
    assert code(result) == 0
    assert "sglang_0_5_20" in said["same_as"]
    assert said["changes"] == {"first terminal wins": ["S <- F: F, should be S"], "failure overrides": []}
