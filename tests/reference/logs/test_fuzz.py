"""Mutated logs of every format: an answer or one line, never a crash. A sample; KVLATCH_FUZZ asks for more inputs."""

import gzip
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.reference.logs.log_files import arrow_file, arrow_stream, arrow_table, dictionaries, ndjson, parquet, rows_of

ROOT = Path(__file__).parents[3]
SEED = ROOT / "tests" / "logs" / "seed.ndjson"
INPUTS = int(os.environ.get("KVLATCH_FUZZ", "100"))
"""Of each format; `make thorough` makes 100,000 in pieces, so that it can go on where it was broken off."""
FIRST = int(os.environ.get("KVLATCH_FUZZ_FROM", "0"))
"""The number of the first one."""
TEXT, SPANS = ROOT / "tests" / "logs" / "sglang" / "prefill.log", ROOT / "tests" / "logs" / "sglang" / "spans.json"


def packed(path: Path, rows: list[Any]) -> Path:
    path.write_bytes(gzip.compress(ndjson(path, rows).read_bytes()))
    return path


def zstandard(path: Path, rows: list[Any]) -> Path:
    pa = pytest.importorskip("pyarrow", reason=".zst is read with pyarrow")
    text = ndjson(path, rows).read_bytes()
    with pa.output_stream(str(path), compression="zstd") as file:
        file.write(text)
    return path


def columns(write: Callable[[Path, Any], Path]) -> Callable[[Path, list[Any]], Path]:
    return lambda path, rows: write(path, arrow_table(rows))


FORMATS: dict[str, Callable[[Path, list[Any]], Path]] = {
    "ndjson": ndjson, "gz": packed, "zst": zstandard, "parquet": columns(parquet), "arrow file": columns(arrow_file),
    "arrow stream": columns(arrow_stream), "dictionaries": columns(dictionaries),
}  # fmt: skip


def copied(source: Path) -> Callable[[Path, list[Any]], Path]:
    return lambda path, _: Path(shutil.copyfile(source, path))


ENGINES = {"text": copied(TEXT), "spans": copied(SPANS)}
"""What an engine says by itself; it is converted."""


@pytest.mark.parametrize("name", [*FORMATS, *ENGINES])
def test_a_mutated_log_is_an_answer_or_one_line(tmp_path: Path, name: str) -> None:
    """In processes of their own, since what Arrow does with a bad offset is to end the process."""
    log, path = (FORMATS | ENGINES)[name](tmp_path / "log", rows_of(SEED) * 2), tmp_path / "mutant"
    reader = "convert" if name in ENGINES else "check"
    command = [sys.executable, "-m", "tests.reference.logs.fuzz", reader, str(log), str(path), str(FIRST), str(INPUTS)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1_200, check=False)
    seed = path.with_suffix(".seed").read_text()
    assert done.returncode == 0, f"{name}, seed {seed}: status {done.returncode}: {done.stderr}"
