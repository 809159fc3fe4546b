"""``kvlatch storm`` before and after the storms: what is refused, what is planned, what is concluded."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import attrs
import pytest

from kvlatch.commands.exits import Failure
from kvlatch.commands.main import main
from kvlatch.commands.storm import run as storms
from kvlatch.commands.storm.laws import PROPERTY_OF, in_question, reports
from kvlatch.commands.storm.question import Question, folder, header, plan, rules_of
from kvlatch.commands.storm.run import command, exit_code, judge, proofs_of
from kvlatch.reference.live.load import Load
from kvlatch.reference.live.records import Build, Conclusion, Counts, Run, Storm
from kvlatch.spec.designs import DESIGNS
from kvlatch.spec.properties import BY_NAME

ASKED = Question(
    builds=(), url=None, metrics=(), headers={}, label="", against=None,
    yes=False, load=Load(requests=1, clients=1, seconds=1.0, patience=(0.1, 0.2)), settings={}, repetitions=None,
    faults=(), seed=1, out=None, as_json=False,
)  # fmt: skip
COUNTS = Counts(
    sent=9, completed=4, failed=0, aborted=5, unaccounted=0, pinned=0, hits=30, lost_failures=0, ghosts=0,
    released_early=0, wrong_digests=0,
)  # fmt: skip


def run(*arguments: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> tuple[int, str]:
    """The exit code of the command, and what it says on the error stream."""
    monkeypatch.setattr(sys, "argv", ["kvlatch", "storm", *arguments])
    with pytest.raises(SystemExit) as done:
        main()
    return int(done.value.code or 0), capsys.readouterr().err


def made(role: Any = "alone", name: str = "latch/locked", **counts: Any) -> Run:
    """A run with these figures."""
    design, _, level = name.partition("/")
    return Run(
        role=role, repetition=1, build=Build(name, design, level, name), phases=(), gauge=(), requests=(),
        counts=attrs.evolve(COUNTS, **counts), metric=None, idle=0.0, longest=1.0, deadline=3.0, drained=None,
        pinned=(), log=None,
    )  # fmt: skip


def test_without_the_extra_one_line_says_how_to_install_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit 4, nothing started, nothing written; and a deployment needs neither NIXL nor the router."""
    missing = {"nixl_cu12", "sglang_router"}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *_: None if name in missing else name)
    code, said = run(capsys=capsys, monkeypatch=monkeypatch)
    assert code == 4
    assert said.startswith("kvlatch: the live system needs sglang-router, nixl-cu12: pip install sglang-router && pip ")
    assert "pip install --no-deps nixl-cu12" in said
    assert said.count("\n") == 1
    missing = {"mooncake"}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *_: None if name in missing else name)
    code, said = run("--build", "./x", "--backend", "mooncake", capsys=capsys, monkeypatch=monkeypatch)
    hint = "mooncake-transfer-engine-non-cuda: pip install mooncake-transfer-engine-non-cuda"
    assert (code, said) == (4, f"kvlatch: the live system needs {hint}\n")
    missing.clear()
    missing.add("httpx")
    where = ("--url", "http://127.0.0.1:9", "--metrics", "http://127.0.0.1:9/metrics")
    code, said = run(*where, capsys=capsys, monkeypatch=monkeypatch)
    assert (code, said) == (4, "kvlatch: a storm needs httpx: pip install httpx\n")


@pytest.fixture
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is installed: what is tested here comes before anything is imported."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *_: name)


@pytest.mark.usefixtures("_installed")
@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--metrics", "http://h/metrics"], "--metrics has no effect without --url: it is about a deployment"),
        (["--label", "mine"], "--label has no effect without --url"),
        (["--yes"], "--yes has no effect without --url"),
        (["--header", "a: b"], "--header has no effect without --url"),
        (["--url", "http://h"], "--url needs the metrics page of each prefill engine"),
        (["--url", "h:30000", "--metrics", "http://h/metrics"], "'h:30000' is not an address: http://HOST:PORT"),
        (["--url", "http://h", "--metrics", "h/metrics"], "'h/metrics' is not an address"),
        *[
            (["--url", "http://h", "--metrics", "http://h/m", *option], f"{option[0]} has no effect with --url")
            for option in (
                ["--build", "latch"],
                ["--fault", "kill-decode"],
                ["--noise", "0"],
                ["--queue", "1"],
                ["--hits", "1"],
                ["--aborts", "both"],
                ["--reuse"],
                ["--ranks", "2"],
            )
        ],
        (["--url", "http://me:secret@h", "--metrics", "http://h/m"], "a password in an address would get into the"),
        (["--url", "http://h", "--metrics", "http://h/m", "--header", "secret"], "--header takes 'NAME: VALUE'"),
        (["--url", "http://h", "--metrics", "http://h/m", "--header", "X: a\nb"], "--header X: its value is empty, or"),
        (["--url", "http://h", "--metrics", "http://h/m", "--header", "X:"], "--header X: its value is empty, or"),
        (["--build", "latch", "--build", "fix-a", "--build", "fix-b"], "--build names at most two builds"),
        (["--build", "latch/"], "latch/: an atomicity is one of locked, split, cas"),
        (["--seconds", "nan"], "nan is not a finite number"),
        (["--patience", "0.1", "inf"], "inf is not a finite number"),
        (["--url", "", "--metrics", "http://h/m"], "'' is not an address"),
        (["--out", "/dev/null/x"], "/dev/null is not a folder"),
        (["--build", "nope"], "no design is called 'nope'"),
        (["--build", "latch/sloppy"], "an atomicity is one of locked, split, cas"),
        (["--build", "./no/such/folder"], "no/such/folder: there is no such folder"),
        (["--build", "no/such.whl"], "no/such.whl: there is no such file"),
        (["--build", "latch", "--build", "latch/locked"], "refused: latch/locked and latch/locked are the same"),
        (["--build", "latch", "--reuse"], "--reuse, --ranks and --backend are about published code"),
        (["--build", "latch", "--backend", "mooncake"], "--reuse, --ranks and --backend are about published code"),
        (["--build", "latch", "--ranks", "2"], "--reuse, --ranks and --backend are about published code"),
        (["--fault", "earthquake"], "'earthquake' is not one of"),
        (["--noise", "2"], "2.0 is not in the range"),
        (["--patience", "2", "1"], "patience: the least, 2, is more than the most, 1"),
    ],
)
def test_bad_usage_exits_2_with_one_line(
    arguments: list[str],
    line: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """What was wrong is said before anything is started, and nothing is written."""
    monkeypatch.chdir(tmp_path)
    code, said = run(*arguments, capsys=capsys, monkeypatch=monkeypatch)
    assert code == 2
    assert line in said
    assert said.count("\n") == 1
    assert "secret" not in said or "me:secret" not in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("_installed")
def test_a_deployment_is_not_stormed_without_a_yes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an answer nothing is sent; the question says how much would be, and how fast at most."""
    pytest.importorskip("httpx", reason="needs the extra live")
    where = ("--url", "http://127.0.0.1:9", "--metrics", "http://127.0.0.1:9/metrics")
    question = "Send up to 80 requests to http://127.0.0.1:9, 20 a second at most, most of which hang up?"
    code, said = run(*where, "--requests", "77", capsys=capsys, monkeypatch=monkeypatch)
    assert (code, said) == (2, f"kvlatch: {question} Say so with --yes\n")
    asked: list[str] = []
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("click.confirm", lambda text, **_: asked.append(text))
    code, said = run(*where, "--requests", "77", capsys=capsys, monkeypatch=monkeypatch)
    assert (code, said, asked) == (2, "kvlatch: nothing was sent\n", [question])


def test_a_folder_with_files_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A named folder has to be empty; without a name the first free one is taken."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "storm-1").mkdir()
    assert folder(None) == Path("storm-2")
    assert folder(Path("storm-1")) == Path("storm-1")
    (tmp_path / "storm-1" / "report.json").touch()
    with pytest.raises(Failure, match="storm-1 is not empty: name another folder with --out"):
        folder(Path("storm-1"))


def test_control_and_treatment_take_turns_and_the_seed_says_who_begins() -> None:
    """Four repetitions each, the same plan for the same seed, and not always the same build first."""
    planned = list(plan(ASKED))
    assert planned == list(plan(ASKED))
    assert Counter((role, subject.name) for role, _, subject in planned) == {
        ("control", "seed-control/locked"): 4,
        ("treatment", "latch/locked"): 4,
    }
    assert [number for _, number, _ in planned] == [1, 1, 2, 2, 3, 3, 4, 4]
    firsts = {tuple(role for role, *_ in plan(attrs.evolve(ASKED, seed=seed)))[::2] for seed in range(9)}
    assert len(firsts) > 1
    alone = list(plan(attrs.evolve(ASKED, builds=("fix-a/split",), repetitions=2)))
    assert [(role, number, subject.name) for role, number, subject in alone] == [
        ("alone", 1, "fix-a/split"),
        ("alone", 2, "fix-a/split"),
    ]


def test_a_design_is_named_with_or_without_its_atomicity() -> None:
    """Without, it is the first that the design claims; one that it does not claim can be run too."""
    assert (rules_of("latch").level, rules_of("latch/cas").level) == ("locked", "cas")
    assert rules_of("sglang-0.5.23").level == "split"
    assert rules_of("latch/split").design is DESIGNS["latch"]


@pytest.mark.parametrize(
    ("conclusion", "run", "code"),
    [
        ("treatment fixes it", made("treatment"), 0),
        ("treatment fixes it", made("treatment", wrong_digests=1), 1),
        ("treatment fixes it", made("treatment", unaccounted=1), 1),
        ("treatment fixes it", made("treatment", ghosts=1), 1),
        ("treatment fixes it", made("treatment", released_early=1), 1),
        ("treatment fixes it", made("treatment", lost_failures=1), 1),
        ("treatment fixes it", made("treatment", hits=19), 3),
        ("treatment helps", made("treatment", pinned=1), 1),
        ("no difference", made("treatment", pinned=1), 1),
        ("no difference", made("treatment"), 3),
        ("inconclusive", made("treatment"), 3),
        ("drains", made(), 0),
        ("pins", made(pinned=2), 1),
        ("inconclusive", made(hits=0), 3),
    ],
)
def test_the_exit_code_is_about_the_build_in_question(conclusion: Conclusion, run: Run, code: int) -> None:
    """What the control leaves behind is what it is there for; what the treatment leaves behind is a failure."""
    runs = (run, made("control", pinned=3, wrong_digests=5)) if run.role == "treatment" else (run,)
    storm = Storm(command="", seed=1, version="", settings={}, runs=runs, conclusion=conclusion, sentence="", p=None)
    assert exit_code(storm) == code


def test_the_laws_of_each_build_rest_on_what_happened() -> None:
    """Kept with a count, broken with a sentence, and not judged where nothing happened or nothing can be seen."""
    runs = (made("control", pinned=3, lost_failures=1), made("treatment", hits=0))
    storm = Storm(
        command="", seed=1, version="", settings={}, runs=runs, conclusion="treatment fixes it", sentence="", p=None
    )
    control, treatment = reports(storm)
    assert in_question(storm) == [treatment]
    said = {one.law: (one.verdict, str(one.answer)) for one in (*control.judgements,)}
    assert said["no-pin"] == ("broken", "3 requests in the prefill inflight queue after the drain")
    assert said["terminal-sticky"][0] == "broken"
    assert said["terminal-sticky"][1].startswith("1 room in which a terminal status gave way")
    told = "0 of 9 requests had no ending for a patient client, 3 stayed in the queue"
    assert said["settlement"] == ("broken", told)
    said = {one.law: (one.verdict, str(one.answer)) for one in treatment.judgements}
    assert said["no-pin"] == ("not judged", "no abort landed inside the window, and fewer than 20 clear no build")
    assert said["success-complete"] == ("kept", "4 completed requests could have broken it")
    assert said["settlement"] == ("kept", "9 requests could have broken it")
    assert treatment.exit_code == 3
    foreign = made(hits=None, ghosts=None, lost_failures=None, released_early=None, wrong_digests=None)
    (report,) = reports(attrs.evolve(storm, runs=(foreign,)))
    assert {one.law: one.verdict for one in report.judgements} == {
        "no-pin": "kept", "terminal-sticky": "not judged", "no-ghost": "not judged", "pages-held": "not judged",
        "success-complete": "not judged", "settlement": "kept",
    }  # fmt: skip
    killed = attrs.evolve(foreign, faults=("kill-prefill",))
    (report,) = reports(attrs.evolve(storm, runs=(killed,)))
    assert report.exit_code == 3


def test_no_report_has_a_key() -> None:
    """The command is shown with the names of the headers alone."""
    called = ["storm", "--header", "Authorization: Bearer k3y-k3y", "--header=X-Key: s3cret", "--url", "http://h"]
    shown = command(called)
    assert shown == "kvlatch storm --header 'Authorization: ***' '--header=X-Key: ***' --url http://h"
    asked = attrs.evolve(ASKED, headers=dict(map(header, ("Authorization: Bearer k3y-k3y", "X-Short: a"))))
    assert asked.secrets == ("Bearer k3y-k3y", "k3y-k3y", "Bearer")
    assert "k3y" not in repr(asked)


def test_runs_that_cannot_be_compared_are_reported_as_such() -> None:
    """A storm that has been made is never lost: it is refused in its report; an interrupted one has no conclusion."""
    assert judge([made("control"), made("treatment")])[0] == "refused"
    conclusion, sentence, p = judge([made("control")])
    assert (conclusion, sentence, p) == (
        "inconclusive",
        "Inconclusive: interrupted before both builds were stormed.",
        None,
    )


def test_every_count_that_should_stay_0_is_set_beside_its_property() -> None:
    """What the matrix has pinned of a design is said of its build; a foreign build has no proofs."""
    assert set(PROPERTY_OF) <= {field.name for field in attrs.fields(Counts)}
    assert set(PROPERTY_OF.values()) <= set(BY_NAME)
    said = proofs_of([made(), made(name="fix-a/split"), made(name="elsewhere")])
    assert set(said) == {"latch/locked", "fix-a/split"}
    assert set(said["latch/locked"].values()) == {"proved: never"}
    assert said["fix-a/split"]["lost_failures"].startswith("refuted in ")


def test_against_takes_the_report_of_one_build(tmp_path: Path) -> None:
    """A file that is none, and a report that compares two builds, are refused in one line."""
    file = tmp_path / "report.json"
    file.write_text("{")
    with pytest.raises(Failure, match=r"report\.json: "):
        storms._earlier(file)
    with pytest.raises(Failure, match="/dev/zero: neither a file nor a pipe"):
        storms._earlier(Path("/dev/zero"))
    from kvlatch.commands.storm.records_json import as_json

    both = Storm(
        command="", seed=1, version="", settings={}, runs=(made("control"),), conclusion="pins", sentence="", p=None
    )
    file.write_text(json.dumps(as_json(both)))
    with pytest.raises(Failure, match="compares two builds"):
        storms._earlier(file)
    file.write_text(json.dumps(as_json(attrs.evolve(both, runs=(made(),)))))
    assert storms._earlier(file) == (made(),)
