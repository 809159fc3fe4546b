"""``kvlatch convert``: from an engine's own logs to a verdict."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kvlatch.commands.main import main

LOGS = Path(__file__).parents[1] / "logs" / "sglang"
PREFILL, DECODE = LOGS / "prefill.log", LOGS / "decode.log"
ROOM = "4618074507212012089"

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def here(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command line in this process: its exit code, what it prints, and what it says on the error stream."""

    def run(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["kvlatch", *map(str, arguments)])
        with pytest.raises(SystemExit) as done:
            main()
        assert isinstance(done.value.code, int)
        return done.value.code, *capsys.readouterr()

    return run


def test_from_two_text_logs_to_a_broken_law(here: Run, tmp_path: Path) -> None:
    """The wake-up that was lost is named, and each event says the line that it is from."""
    log = tmp_path / "log.ndjson"
    code, out, told = here("convert", PREFILL, DECODE, "--into", log)
    assert (code, out) == (0, "")
    assert "1  marked as Failed by an abort 300 s or more before the end" in told
    sources = [json.loads(line)["source"] for line in log.read_text("utf-8").splitlines()[1:]]
    assert f"{PREFILL}:10" in sources
    code, out, _ = here("check", log, "--json")
    found = {finding["law"]: finding["room"] for finding in json.loads(out)["findings"]}
    assert (code, found) == (1, {"no-lost-wakeup": ROOM})
    verdicts = {one["law"]: one["verdict"] for one in json.loads(out)["judgements"]}
    assert [law for law, verdict in verdicts.items() if verdict == "kept"] == ["one-outcome", "no-crash"]


def test_through_pipes() -> None:
    """A text log comes from one process, and goes to the next."""
    command = [sys.executable, "-m", "kvlatch"]
    made = subprocess.run([*command, "convert", "-"], input=PREFILL.read_bytes(), capture_output=True, check=True)
    done = subprocess.run([*command, "check", "-"], input=made.stdout, capture_output=True, check=False)
    assert done.returncode == 1
    assert b"no-lost-wakeup: in 1 room" in done.stdout


def test_what_was_found_for_machines(here: Run) -> None:
    code, _, told = here("convert", PREFILL, "--json")
    said = json.loads(told)
    assert (code, said["unit"], said["read"]) == (0, "line", 11)
    assert said["open"][0]["places"] == [{"file": str(PREFILL), "line": 9, "room": "902117743355201188"}]


@pytest.mark.parametrize("log", [PREFILL, "spans"])
def test_check_says_what_to_do_with_an_engines_own_log(here: Run, tmp_path: Path, log: Path | str) -> None:
    if log == "spans":
        log = tmp_path / "spans.json"
        log.write_text('{"resourceSpans": []}\n', encoding="utf-8")
    code, _, told = here("check", log)
    assert code == 2
    assert "kvlatch convert LOG | kvlatch check -" in told


def test_what_cannot_be_converted(here: Run, tmp_path: Path) -> None:
    """Nothing known is exit 3; what is no file, or would be overwritten, or cannot be unpacked, is exit 2."""
    other, packed, spans = tmp_path / "other.log", tmp_path / "x.gz", tmp_path / "s.json"
    other.write_text("[2026-03-01 10:00:00] The server is fired up\n", encoding="utf-8")
    packed.write_bytes(b"\x1f\x8b\x08nothing")
    spans.write_text('{"resourceSpans": []}', encoding="utf-8")
    for arguments, exits, says in (
        ((other,), 3, "no line says anything of a request"),
        ((spans,), 3, "no span says anything of a request"),
        ((tmp_path,), 2, "a folder"),
        ((tmp_path / "none",), 2, "no such file"),
        ((packed,), 2, "x.gz"),
        ((other, spans), 2, "one after the other"),
        ((other, "--into", other), 2, "a file of its own"),
        ((other, "--into", tmp_path / "no" / "x"), 2, "No such file"),
    ):
        code, _, told = here("convert", *arguments)
        assert (code, told.count("\n") < 3) == (exits, True), told
        assert says in told
