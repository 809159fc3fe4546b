"""The log writers of examples/: what they write is read, a healthy life is cleared, and the incident's is found."""

import shutil
import subprocess
from pathlib import Path

import pytest

from kvlatch.reference.logs.check import check

EXAMPLES = Path(__file__).parents[3] / "examples"
COMPILERS = {
    "c": ["gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread", str(EXAMPLES / "c" / "log.c")],
    "rust": ["rustc", "-O", "--edition=2021", "-Dwarnings", str(EXAMPLES / "rust" / "log.rs")],
}


@pytest.mark.parametrize("language", COMPILERS)
def test_logs_from_other_languages(tmp_path: Path, language: str) -> None:
    """The largest id, two threads, a node and a rank; with the incident's merge the worker's line is blamed."""
    if shutil.which(COMPILERS[language][0]) is None:
        pytest.skip(f"{COMPILERS[language][0]} is not installed")
    program = tmp_path / "log"
    subprocess.run([*COMPILERS[language], "-o", str(program)], check=True, timeout=120)
    for arguments, laws, lines in (([], {}, 6), (["max"], {"terminal-sticky": 1, "no-resurrection": 1}, 5)):
        written = subprocess.run([program, *arguments], check=True, capture_output=True, timeout=60).stdout
        log = tmp_path / f"{len(arguments)}.ndjson"
        log.write_bytes(written)
        report = check(log)
        assert (report.error, report.events, report.version) == (None, lines, 2)
        assert {law: count for law, count in report.laws.items() if law not in ("no-pin", "settlement")} == laws
        assert {finding.line for finding in report.violations} == ({5} if laws else set())
        assert all((finding.room, finding.node, finding.rank) == (str(2**64 - 1), "prefill-0", "0")
                   for finding in report.findings)  # fmt: skip
