"""Mutated logs of every format: an answer or one line, never a crash. A sample; KVLATCH_FUZZ asks for more inputs."""

import gzip
import os
import random
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvlatch.reference.logs.check import check
from kvlatch.reference.logs.events import LogError
from tests.reference.logs.log_files import arrow_file, arrow_stream, arrow_table, dictionaries, ndjson, parquet, rows_of

SEED = Path(__file__).parents[2] / "logs" / "seed.ndjson"
INPUTS = int(os.environ.get("KVLATCH_FUZZ", "100"))
"""Of each format; the whole is 100,000."""
BATCH = 100
MEMORY = 4 << 30
"""Bytes of address space: a length that was mutated into terabytes is refused, not tried."""


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


def mutated(data: bytes, chance: random.Random) -> bytes:
    """Bytes flipped, put in, taken out, or the end cut off."""
    found = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 5))):
        at, how = chance.randrange(len(found) or 1), chance.random()
        if how < 0.7 and found:
            found[at] = chance.randrange(256)
        elif how < 0.8:
            del found[at:]
        elif how < 0.9:
            found[at:at] = chance.randbytes(3)
        else:
            del found[at : at + chance.randrange(20)]
    return bytes(found)


def child(data: bytes, path: Path, batch: int) -> None:
    """Check a batch of mutants, and leave: 0 if each got an answer or a line."""
    code = 1
    try:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        for seed in range(batch * BATCH, (batch + 1) * BATCH):
            path.with_suffix(".seed").write_text(str(seed))
            path.write_bytes(mutated(data, random.Random(seed)))  # noqa: S311  # for no secret
            try:
                check(path)
            except LogError as error:
                if "\n" in str(error):
                    raise
        code = 0
    finally:
        os._exit(code)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("name", FORMATS)
def test_a_mutated_log_is_an_answer_or_one_line(tmp_path: Path, name: str) -> None:
    """In processes of their own, since what Arrow does with a bad offset is to end the process."""
    data = FORMATS[name](tmp_path / "log", rows_of(SEED) * 2).read_bytes()
    path = tmp_path / "mutant"
    check(tmp_path / "log")  # what is computed once per process is there for all children
    for batch in range(max(1, INPUTS // BATCH)):
        pid = os.fork()
        if pid == 0:
            child(data, path, batch)
        status = os.waitpid(pid, 0)[1]
        assert status == 0, f"{name}, seed {path.with_suffix('.seed').read_text()}: status {status}"
