"""On a narrow terminal a command says what it says in a pipe: no table cuts a value."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections import Counter
from pathlib import Path

import pytest

from kvlatch.proofs import pins

COMMAND = (sys.executable, "-m", "kvlatch")
TRACES = Path(pins.__file__).with_name("traces")
SEED = Path(__file__).parents[1] / "logs" / "seed.ndjson"
LIMIT = 300.0
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07")


def piped(*arguments: str) -> str:
    """What the command prints into a pipe."""
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


def on_terminal(columns: int, *arguments: str) -> str:
    """What it prints on a pseudo-terminal of this width."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {**os.environ, "COLUMNS": str(columns), "TERM": "xterm"}
    with subprocess.Popen([*COMMAND, *arguments], stdout=theirs, stderr=subprocess.DEVNULL, env=environment) as process:
        os.close(theirs)
        output = bytearray()
        while part := _read(ours):
            output += part
        process.wait(LIMIT)
    os.close(ours)
    return _ESCAPE.sub("", output.decode())


def _read(terminal: int) -> bytes:
    """What has been printed meanwhile; nothing once the other end is closed, which Linux calls an error."""
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""


def values(text: str) -> Counter[str]:
    """Every number with the letters that belong to it, and every verdict.

    Not how long it took; nor the names of threads, which are headings where there is room, and else a column.
    """
    lasting = re.sub(r"\d+\.\d+ s\b|worker\s+\d+", "", text)
    return Counter(re.findall(r"\d+[dr]?(?:/\d+[dr]?)*|holds|unknown", lasting))


@pytest.mark.parametrize("columns", [80, 40])
@pytest.mark.parametrize(
    "arguments",
    [
        ("prove", "--design", "fix-a", "--workers", "1"),
        ("prove", "--design", "fix-b", "--atomicity", "split"),
        ("atlas",),
        ("show", str(TRACES / "fix-a.split.success-not-overwritten.itf.json")),
        ("show", str(SEED), "--room", "771203388710254007"),
    ],
    ids=" ".join,
)
def test_a_narrow_terminal_shows_the_same_numbers(arguments: tuple[str, ...], columns: int, tmp_path: Path) -> None:
    """Whole numbers, whole verdicts, no ellipsis."""
    more = ("--traces", str(tmp_path)) if arguments[0] == "prove" else ()
    expected, shown = values(piped(*arguments, *more)), on_terminal(columns, *arguments, *more)
    assert sum(expected.values()) > 10
    assert values(shown) == expected
    assert "…" not in shown


def test_the_headers_of_the_matrix_are_whole(tmp_path: Path) -> None:
    """Each property's name can be read, also where it is broken at its hyphen."""
    shown = on_terminal(80, "prove", "--design", "fix-a", "--workers", "1", "--traces", str(tmp_path))
    for part in ("settlement", "resurrection", "not-overwritten", "lost-wakeup"):
        assert part in shown
