"""How commands exit, whatever happens to their input, their output, and the user's own code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import pytest

from kvlatch.commands import prove
from kvlatch.commands.main import main
from kvlatch.proofs import pins

COMMAND = (sys.executable, "-m", "kvlatch")
QUICK = ("prove", "--design", "latch", "--property", "no-pin")
TRACES = Path(pins.__file__).with_name("traces")
TRACE = TRACES / "fix-a.no-ghost.itf.json"
SEED = Path(__file__).parents[1] / "logs" / "seed.ndjson"
LIMIT = 300.0


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def here(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command line in this process: its exit code, what it prints, and what it says on the error stream."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["kvlatch", *arguments])
        with pytest.raises(SystemExit) as done:
            main()
        assert isinstance(done.value.code, int)
        return done.value.code, *capsys.readouterr()

    return run


def kvlatch(*arguments: str, cwd: Path | None = None, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """The command line as a process."""
    return subprocess.run(
        [*COMMAND, *arguments], cwd=cwd, input=stdin, capture_output=True, text=True, timeout=LIMIT, check=False
    )


def in_shell(command: str) -> subprocess.CompletedProcess[str]:
    """A shell's redirections, which subprocess does not have; the exit code is that of kvlatch."""
    line = f'kvlatch() {{ "{sys.executable}" -m kvlatch "$@"; }}; set -o pipefail; {command}'
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=LIMIT, check=False)  # noqa: S607


# --- Standard output ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [" ".join(QUICK), "atlas --json", "--help"])
def test_a_reader_that_has_gone_changes_no_verdict(command: str) -> None:
    """What has no reader is written to nobody: exit 0, because all of it holds."""
    done = in_shell(f"kvlatch {command} | head -1")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_reader_that_has_gone_makes_nothing_right(tmp_path: Path) -> None:
    """What is violated is violated without a reader, and its trace is written."""
    done = in_shell(f"kvlatch prove --design fix-a --property no-ghost --workers 1 --traces {tmp_path} | head -1")
    assert (done.returncode, done.stderr) == (1, "")
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
@pytest.mark.parametrize("command", ["--help", f"show {TRACE}", f"show {TRACE} --json"])
def test_a_full_disk_is_one_line(command: str) -> None:
    """Exit 4: it cannot be said here; not a traceback, and no verdict."""
    done = in_shell(f"kvlatch {command} >/dev/full")
    assert (done.returncode, done.stderr) == (4, "kvlatch: the output cannot be written: No space left on device\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_report_on_a_full_disk_is_one_line(here: Run) -> None:
    """Exit 4 here too; the verdict has been printed, and is not what the exit code says."""
    code, _, err = here(
        "prove", "--design", "latch", "--atomicity", "cas", "--property", "no-pin", "--junit", "/dev/full"
    )
    assert (code, err) == (4, "kvlatch: the output cannot be written: No space left on device\n")


def test_a_folder_that_is_gone_is_one_line(tmp_path: Path) -> None:
    """A shell may stand in a folder that has been deleted."""
    done = in_shell(f"mkdir {tmp_path}/gone; cd {tmp_path}/gone; rmdir {tmp_path}/gone; kvlatch prove --design a:B")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "the current folder" in done.stderr


def test_a_stream_that_is_closed_is_not_missed() -> None:
    """``>&-``: the exit code is all that is asked for."""
    assert in_shell(f"kvlatch show {TRACE} >&-").returncode == 0
    assert in_shell(f"kvlatch replay {TRACE} >&- 2>&-").returncode == 1
    assert in_shell("kvlatch prove --design nope 2>&-").returncode == 2


def test_a_terminal_without_unicode_gets_escapes() -> None:
    """The locale decides how a line looks, never how a command exits."""
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    command = [*COMMAND, "show", str(TRACE)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "no-ghost is broken" in done.stdout


def test_a_name_that_is_not_utf_8_can_be_said(tmp_path: Path) -> None:
    """A file name is bytes on Linux."""
    odd = os.fsencode(tmp_path) + b"/\xff.itf.json"
    Path(os.fsdecode(odd)).write_text("{}")
    done = subprocess.run([*COMMAND, "show", odd], capture_output=True, timeout=LIMIT, check=False)
    assert done.returncode == 2
    assert b"lacks '#meta'" in done.stderr
    assert done.stderr.count(b"\n") == 1


@pytest.mark.parametrize("to_all", [True, False], ids=["from the keyboard", "by kill"])
def test_ctrl_c_exits_130_at_once(to_all: bool) -> None:
    """In the middle of the proofs, with processes at work: one line, no traceback, and nobody goes on working."""
    with subprocess.Popen(
        # In the background of a shell ^C is ignored, and a process inherits that.
        ["/usr/bin/env", "--default-signal=INT", *COMMAND, "prove", "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            process.stdout.readline()  # the first cell: the others are being decided
            start = time.monotonic()
            if to_all:
                os.killpg(process.pid, signal.SIGINT)
            else:
                process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=LIMIT)
        finally:
            process.kill()
    assert (process.returncode, said.strip()) == (130, "kvlatch: interrupted")
    assert time.monotonic() - start < LIMIT / 2
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


# --- The user's own code ----------------------------------------------------------------------------------------------

MINE = """
import attrs
from kvlatch.spec.designs import DESIGNS
from kvlatch.spec.status import KVPoll
def nine(current, incoming):
    return 9
def looks_up(current, incoming):
    return {}[current]
def leaves(current, incoming):
    raise SystemExit(0)
def mine(**changes):
    return attrs.evolve(DESIGNS["latch"], name="mine", **changes)
"""

WRONG = {
    "typo": (MINE + 'DESIGN = mine(guard="skp")', "guard is never 'skp': it is one of skips, fails"),
    "nine": (MINE + "DESIGN = mine(merge=nine)", "Failed <- Failed gives 9, not a KVPoll"),
    "raises": (MINE + "DESIGN = mine(merge=looks_up)", "KeyError: <KVPoll.Failed: 0>"),
    "leaves": (MINE + "DESIGN = mine(merge=leaves)", "sys.exit(0)"),
    "exits": ("import sys; sys.exit(0)", "importing wrong_exits exits (sys.exit(0))"),
    "quits": ("quit()", "importing wrong_quits exits (sys.exit(None))"),
    "syntax": ("def (", "invalid syntax"),
    "indent": ("if 1:\nx", "expected an indented block"),
    "null": ("x = '\0'", "null bytes"),
    "booms": ("raise RuntimeError('boom\\nbang')", "RuntimeError: boom bang"),
    "imports": ("import no_such_module", "No module named 'no_such_module'"),
    "empty": ("", "module 'wrong_empty' has no attribute 'DESIGN'"),
    "number": ("DESIGN = 7", "is a int, not a kvlatch.spec.designs.Design"),
    "deep": ("def f(): f()\nf()", "RecursionError"),
}


@pytest.mark.parametrize("fault", WRONG)
def test_a_fault_of_the_users_design_is_one_line(
    fault: str, tmp_path: Path, here: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit 2, never 0 and never a traceback."""
    text, says = WRONG[fault]
    (tmp_path / f"wrong_{fault}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    code, out, err = here("prove", "--design", f"wrong_{fault}:DESIGN", "--json")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert says in err


def test_a_module_that_exits_is_not_taken_for_a_verdict(tmp_path: Path) -> None:
    """In a process of its own, as its user would see it: not exit 0 without a word."""
    (tmp_path / "leaves.py").write_text("import sys; sys.exit(0)")
    for command in (("prove", "--design"), ("conform",), ("storm", "--design"), ("show", str(TRACE), "--design")):
        done = kvlatch(*command, "leaves:DESIGN", cwd=tmp_path)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr


def test_the_line_blames_the_users_own_file(tmp_path: Path) -> None:
    """Not the function of kvlatch that noticed it."""
    (tmp_path / "blamed.py").write_text(MINE + 'DESIGN = attrs.evolve(DESIGNS["latch"], guard="skp")')
    (tmp_path / "innocent.py").write_text("import blamed")
    last = MINE.count("\n") + 1
    for module in ("blamed", "innocent"):
        said = kvlatch("prove", "--design", f"{module}:DESIGN", cwd=tmp_path).stderr
        assert said.endswith(f"(blamed.py, line {last})\n")


def test_what_the_users_module_prints_is_not_the_commands_output(tmp_path: Path) -> None:
    """With --json every line of standard output is an object."""
    (tmp_path / "loud.py").write_text(MINE + "print('hello')\nDESIGN = mine()")
    done = kvlatch("prove", "--design", "loud:DESIGN", "--property", "no-pin", "--json", cwd=tmp_path)
    assert done.returncode == 0
    assert all(json.loads(line)["verdict"] == "proved" for line in done.stdout.splitlines())
    assert "hello" in done.stderr


@pytest.mark.parametrize("target", [":x", "..:x", "a:", ":", "a..b:c", "a:b:c", "a b:c", "-:x", "a:b.c", "é!:x"])
@pytest.mark.parametrize("command", [("prove", "--design"), ("conform",), ("storm", "--design")], ids=lambda c: c[0])
def test_a_target_that_cannot_be_one(command: tuple[str, ...], target: str, here: Run) -> None:
    """One line and exit 2, whoever takes a MODULE:NAME."""
    code, out, err = here(*command, target)
    assert (code, out, err.count("\n")) == (2, "", 1)


# --- Files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["missing/x.xml", ".", "file/x.xml", ""])
def test_a_report_that_cannot_be_written_is_noticed_before_any_work(
    target: str, tmp_path: Path, here: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing folder, a folder in its place, a file where a folder should be."""
    (tmp_path / "file").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(prove, "_decide", lambda *_, **__: pytest.fail("work was done"))
    code, out, err = here("prove", "--junit", target)
    assert (code, out, err.count("\n")) == (2, "", 1)


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write everywhere")
def test_a_folder_without_permission_is_noticed_before_any_work(tmp_path: Path, here: Run) -> None:
    """And so is a folder that could not be made."""
    tmp_path.chmod(0o500)
    for option in ("--junit", "--traces"):
        assert here("prove", "--design", "fix-a", option, str(tmp_path / "x"))[:2] == (2, "")


@pytest.mark.parametrize("command", ["show", "replay"])
def test_a_trace_has_an_end(command: str, tmp_path: Path) -> None:
    """A device is refused, a file beyond the limit is not read to its end, a pipe is read."""
    done = kvlatch(command, "/dev/zero")
    assert (done.returncode, done.stderr) == (2, "kvlatch: /dev/zero: neither a file nor a pipe\n")
    huge = tmp_path / "huge.itf.json"
    with huge.open("wb") as file:
        file.truncate(10**12)  # sparse: it takes no place
    done = kvlatch(command, str(huge))
    assert (done.returncode, "larger than 32 MiB" in done.stderr) == (2, True)
    assert in_shell(f"kvlatch {command} <(cat {TRACE})").returncode == (0 if command == "show" else 1)


def test_an_archive_that_would_fill_the_disk_is_refused(tmp_path: Path) -> None:
    """Three GB in a few MB of gzip: exit 2, at once."""
    bomb = tmp_path / "bomb.tar.gz"
    with tarfile.open(bomb, "w:gz", compresslevel=1) as archive:
        for number in range(20):
            member = tarfile.TarInfo(f"file-{number}")
            member.size = 30 * 2**20
            archive.addfile(member, BytesIO(bytes(member.size)))
    done = kvlatch("recheck", str(bomb))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


# --- Options that do nothing ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["prove", "--only", "ptx", "--design", "latch"], "--design has no effect with --only ptx"),
        (["prove", "--only", "ptx", "--workers", "1"], "--workers has no effect with --only ptx"),
        (["prove", "--only", "ptx", "--thorough"], "--thorough has no effect"),
        (["prove", "--only", "ptx", "--traces", "x"], "--traces has no effect"),
        (["prove", "--only", "ptx", "--certificates", "x"], "--certificates has no effect"),
        (["prove", "--only", "ptx", "--pin"], "--pin has no effect"),
        (["prove", "--traces", "x"], "--traces has no effect without a selection"),
        (["prove", "--pin", "--design", "latch"], "--pin has no effect on a selection"),
        (["prove", "--design", "latch", "--design", "fix-a", "--atomicity", "split"], "latch claims no split"),
        (["prove", "--design", "fix-a", "--atomicity", "split", "--atomicity", "cas"], "--atomicity cas selects"),
        (["show", str(TRACE), "--profile", "failure-overrides"], "--profile has no effect on a trace"),
        (["show", str(TRACE), "--mermaid", "--json"], "--mermaid has no effect with --json"),
        (["replay", str(TRACE), "--repeat", "3"], "--repeat has no effect without --on"),
        (["replay", str(TRACE), "--backend", "mooncake"], "--backend has no effect without --on"),
        (["replay", str(TRACE), "--timeout", "3"], "--timeout has no effect without --on"),
    ],
    ids=lambda value: " ".join(value[1:]) if isinstance(value, list) else "",
)  # fmt: skip
def test_an_option_that_would_do_nothing_is_refused(arguments: list[str], says: str, here: Run) -> None:
    """Exit 2, and one line that names it."""
    code, out, err = here(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert says in err


@pytest.mark.parametrize("folder", ["spec", "reference", "proofs"])
def test_a_checkouts_folder_is_not_imported_by_its_own_name(folder: str) -> None:
    """It would be a second package, whose KVPoll is not that of kvlatch."""
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", f"import {folder}"], cwd=root, capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert done.returncode == 1
    assert f"ImportError: import kvlatch.{folder}, not {folder}" in done.stderr
