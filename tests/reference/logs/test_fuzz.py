"""Mutated logs of every format: an answer or one line, never a crash. A sample; KVLATCH_FUZZ asks for more inputs."""

import gzip
import os
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
"""Of each format; the whole is 100,000."""
BATCH = max(100, INPUTS // 20)
"""For one process."""


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


@pytest.mark.parametrize("name", FORMATS)
def test_a_mutated_log_is_an_answer_or_one_line(tmp_path: Path, name: str) -> None:
    """In processes of their own, since what Arrow does with a bad offset is to end the process."""
    log, path = FORMATS[name](tmp_path / "log", rows_of(SEED) * 2), tmp_path / "mutant"
    for batch in range(max(1, INPUTS // BATCH)):
        command = [sys.executable, "-m", "tests.reference.logs.fuzz", str(log), str(path), str(batch), str(BATCH)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1_200, check=False)
        seed = path.with_suffix(".seed").read_text()
        assert done.returncode == 0, f"{name}, seed {seed}: status {done.returncode}: {done.stderr}"
