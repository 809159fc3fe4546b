"""The command line: what it prints, what it writes, and how it exits."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from kvlatch.commands import main as cli
from kvlatch.commands import prove as prove_command
from kvlatch.proofs import pins
from kvlatch.proofs.prove import Cell, Row, design_of
from kvlatch.proofs.ptx import kernels
from kvlatch.proofs.verdicts import Proved, Refuted, Unknown
from kvlatch.proofs.worlds import WORLDS
from kvlatch.spec.protocols import protocol_of
from kvlatch.spec.traces import read, verify

TRACES = Path(pins.__file__).with_name("traces")
SEED = Path(__file__).parents[1] / "logs" / "seed.ndjson"


def run(*arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """The command line in this process: exit code, standard output, standard error."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["kvlatch", *arguments])
        with pytest.raises(SystemExit) as exit_:
            cli.main()
    out, err = capsys.readouterr()
    assert isinstance(exit_.value.code, int)
    return exit_.value.code, out, err


def test_a_refuted_selection_exits_1_and_writes_a_trace_that_re_executes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The trace is named, shown with a column per thread, and is a run of the spec."""
    code, out, _ = run(
        "prove", "--design", "seed-control", "--atomicity", "locked", "--workers", "1", "--property", "terminal-sticky",
        "--traces", str(tmp_path), capsys=capsys,
    )  # fmt: skip
    assert code == 1
    path = tmp_path / "seed-control.terminal-sticky.itf.json"
    assert str(path) in out
    assert "worker 0 wrote Transferring over Failed" in " ".join(out.split())
    assert len(verify(read(path)).actions) == 12


def test_a_proved_selection_exits_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What holds says its scope, and leaves no file."""
    code, out, _ = run(
        "prove", "--design", "fix-a", "--atomicity", "locked", "--property", "terminal-sticky", "--traces",
        str(tmp_path / "none"), capsys=capsys,
    )  # fmt: skip
    assert code == 0
    assert "any number of rooms, workers, chunks and requests on a room id" in out
    assert "everything selected holds" in out
    assert not (tmp_path / "none").exists()


def test_json_lines_say_the_same_for_machines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One object a line, length null where it is proved, and JUnit beside it."""
    junit = tmp_path / "report.xml"
    code, out, _ = run(
        "prove", "--design", "fix-a", "--workers", "1", "--property", "no-resurrection", "--json",
        "--junit", str(junit), "--traces", str(tmp_path), capsys=capsys,
    )  # fmt: skip
    assert code == 1
    cells = {cell["atomicity"]: cell for cell in map(json.loads, out.splitlines())}
    assert (cells["locked"]["verdict"], cells["locked"]["length"]) == ("proved", None)
    assert (cells["split"]["verdict"], cells["split"]["length"], cells["split"]["scope"]) == (
        "refuted", 15, "orderly network",
    )  # fmt: skip
    assert all(cell["ms"] >= 0 and cell["property"] == "no-resurrection" for cell in cells.values())
    suite = ET.parse(junit).getroot()  # noqa: S314  # our own file
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["prove", "--design", "nope"], "no design is called 'nope'"),
        (["prove", "--property", "nope"], "no property is called 'nope'"),
        (["prove", "--design", "latch", "--atomicity", "split"], "latch claims no split"),
        (["prove", "--workers", "9"], "9 is not in the range"),
        (["show", "nowhere.itf.json"], "does not exist"),
        (["replay", str(TRACES / "fix-a.no-ghost.itf.json"), "--on", "vllm==1"], "--on takes sglang==VERSION"),
        (["replay", str(TRACES / "fix-a.no-ghost.itf.json"), "--on", "sglang=="], "pinned are 0.4.6"),
        (["replay", str(TRACES / "fix-a.pages-held.itf.json"), "--on", "sglang==0.5.23"], "cannot see"),
        (["show", str(TRACES / "fix-a.no-ghost.itf.json"), "--design", "nope"], "no design is called 'nope'"),
        (["check", "nowhere.ndjson"], "does not exist"),
        (["check", str(SEED), "--design", "nope"], "no design is called 'nope'"),
        (["show", str(SEED)], "is an event log: name a room with --room ID"),
        (["show", str(SEED), "--room", "5"], "no event of room 5: the log has 5 rooms"),
        (["show", str(SEED), "--room", "five"], "no event of room five: the log has 5 rooms"),
        (["vectors", str(TRACES)], "is there already"),
        (["nonsense"], "No such command"),
    ],
)
def test_bad_input_is_one_line_and_exits_2(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The line says what was wrong."""
    code, out, err = run(*arguments, capsys=capsys)
    assert (code, out) == (2, "")
    assert said in err
    assert len(err.splitlines()) == 1


def test_a_trace_that_the_spec_does_not_allow_exits_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Show and replay both refuse it, and say which step."""
    text = (TRACES / "seed-control.terminal-sticky.itf.json").read_text(encoding="utf-8")
    wrong = tmp_path / "wrong.itf.json"
    wrong.write_text(text.replace('"admit"', '"admitted"'), encoding="utf-8")
    for command in ("show", "replay"):
        code, _, err = run(command, str(wrong), capsys=capsys)
        assert code == 2
        assert "step 4: unknown action 'admitted'" in err


def test_show_tells_the_room_that_check_names(capsys: pytest.CaptureFixture[str]) -> None:
    """The line that ``check`` names is the marked one, in decimal and in hexadecimal, as a table and as a diagram."""
    room, line = re.findall(r"room (\d+), line (\d+)", run("check", str(SEED), capsys=capsys)[1])[0]
    table = run("show", str(SEED), "--room", room, capsys=capsys)[1]
    assert f"{line}*" in table
    assert "is pinned" in table
    assert run("show", str(SEED), "--room", hex(int(room)), capsys=capsys)[1] == table
    assert run("show", str(SEED), "--room", room, "--mermaid", capsys=capsys)[1].startswith("sequenceDiagram")


def test_show_and_replay_of_a_pinned_trace(capsys: pytest.CaptureFixture[str]) -> None:
    """A table for a person, a diagram for a document, and exit 1 for the spec's own verdict."""
    path = str(TRACES / "fix-a.split.terminal-sticky.itf.json")
    assert "bootstrap" in run("show", path, capsys=capsys)[1]
    assert run("show", path, "--mermaid", capsys=capsys)[1].startswith("sequenceDiagram")
    code, out, _ = run("replay", path, "--json", capsys=capsys)
    assert code == 1
    assert json.loads(out)["violated"] is True


def test_every_pinned_trace_is_a_run_of_its_design_that_breaks_its_property() -> None:
    """And there is one for each refuted verdict, with the pinned number of steps."""
    pinned = pins.pinned()
    lengths = {
        (trace.design, trace.atomicity, trace.instance.count(str(trace.instance.crowd)), trace.prop): len(
            verify(trace).actions
        )
        for trace in map(read, TRACES.glob("*.itf.json"))
    }
    for key, word in pinned.items():
        steps = word.rstrip("dr")
        if steps.isdigit():
            fewest = protocol_of(design_of(key[0])).counts[0]
            assert int(steps) in (lengths.get(key), lengths.get((*key[:2], fewest, key[3]))), key
    assert all(key in pinned for key in lengths)


def test_a_verdict_that_is_not_the_pinned_one_is_a_failure() -> None:
    """A lost counterexample fails as a lost proof does."""
    row = Row("seed-control", "locked", 1)
    proved, refuted = Proved("", (), {}), Refuted(WORLDS[0], (("create", {}),) * 12)
    assert pins.differences([Cell(row, "terminal-sticky", refuted, 0)]) == {}
    assert pins.differences([Cell(row, "terminal-sticky", proved, 0)]) == {
        (row, "terminal-sticky"): "holds, expected 12"
    }
    assert pins.differences([Cell(row, "released-once", Unknown("why"), 0)])
    stranger = Row("stranger", "locked", 1)
    assert pins.differences([Cell(stranger, "no-pin", proved, 0)]) == {
        (stranger, "no-pin"): "holds, expected not pinned"
    }


def test_an_uncaught_exception_exits_70(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """It must not read as a violation."""

    def crash(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(prove_command, "_decide", crash)
    code, _, err = run("prove", capsys=capsys)
    assert code == 70
    assert "internal error" in err


def test_help_imports_nothing_heavy() -> None:
    """Z3, cvc5, NumPy and rich stay out until a command needs them."""
    script = (
        "import sys, kvlatch.commands.main; "
        "print([m for m in ('z3', 'cvc5', 'numpy', 'rich', 'kvlatch.spec.protocol') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.strip() == "[]"


def test_check_names_the_room_the_line_and_the_pin(capsys: pytest.CaptureFixture[str]) -> None:
    """The incident as a log: exit 1, the line that broke the law, and the room that is pinned by it."""
    code, out, _ = run("check", str(SEED), capsys=capsys)
    assert code == 1
    assert out.startswith("room 771203388710254007, line 15: Transferring over Failed")
    assert "\nroom 771203388710254007 is pinned" in out


@pytest.mark.parametrize(("profile", "expected"), [("first-terminal-wins", 1), ("failure-overrides", 0)])
def test_check_of_a_profile(profile: str, expected: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A late Failed over Success is judged by the profile that was asked for."""
    log = tmp_path / "log.ndjson"
    lines = [{"kvlatch-log": 1}, {"room": 1, "op": "create", "status": "Bootstrapping"}]
    lines += [{"room": 1, "op": "write", "status": status} for status in ("Success", "Failed")]
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert run("check", str(log), "--profile", profile, capsys=capsys)[0] == expected


def test_a_log_that_is_cut_off_is_reported_up_to_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A caution names the line, as a process that was killed leaves it, and what came before is judged."""
    log = tmp_path / "cut.ndjson"
    log.write_bytes(SEED.read_bytes()[:-20])
    code, out, _ = run("check", str(log), capsys=capsys)
    assert code == 1
    assert "line 25: the log ends in the middle of it" in out
    assert "Transferring over Failed" in out


def test_kernels_that_cannot_be_compiled_are_not_checked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without NVRTC: exit 4 and the reason; never a pass."""

    def missing(*_: object, **__: object) -> list[kernels.Finding]:
        return [kernels.Finding("write_entry", 90, "step", "not checked", reason="NVRTC is not installed")]

    monkeypatch.setattr(kernels, "prove_kernels", missing)
    monkeypatch.setattr(kernels, "refute_planted", list)
    code, out, _ = run("prove", "--only", "ptx", capsys=capsys)
    assert code == 4
    assert "not checked: NVRTC is not installed" in out
