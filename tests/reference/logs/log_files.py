"""Writes event logs, for tests: as lines and as columns."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from kvlatch.reference.logs.events import STATUSES, TABLE_OPS

Row = dict[str, Any]


def ndjson(path: Path, rows: Iterable[Row | str], version: int = 1, **header: Any) -> Path:
    """An NDJSON log of these events; a string is a line as it stands."""
    first = json.dumps({"kvlatch-log": version, **header})
    path.write_text("\n".join([first, *(row if isinstance(row, str) else json.dumps(row) for row in rows)]) + "\n")
    return path


def rows_of(path: Path) -> list[Row]:
    """The events of an NDJSON log."""
    return [json.loads(line) for line in path.read_text().splitlines()[1:]]


def arrow_table(rows: list[Row], *, numbers: bool = False) -> Any:
    """The events as an Arrow table, names as strings or as numbers; ``time`` is a column if an event has one."""
    pa = pytest.importorskip("pyarrow", reason="Parquet and Arrow are read with pyarrow")
    columns: dict[str, list[Any]] = {name: [row.get(name) for row in rows] for name in ("op", "status", "incoming")}
    kind = pa.string()
    if numbers:
        kind = pa.int16()
        known = {"op": TABLE_OPS, "status": STATUSES, "incoming": STATUSES}
        columns = {
            name: [known[name].index(value) if value is not None else None for value in values]
            for name, values in columns.items()
        }
    arrays = {name: pa.array(values, kind) for name, values in columns.items()}
    if any("time" in row for row in rows):
        arrays["time"] = pa.array([row.get("time") for row in rows], pa.float64())
    kind = pa.uint64() if any((row["room"] or 0) >= 2**63 for row in rows) else pa.int64()
    return pa.table({"room": pa.array([row["room"] for row in rows], kind), **arrays})


def parquet(path: Path, table: Any) -> Path:
    """Write an Arrow table as a Parquet file."""
    import pyarrow.parquet as pq

    pq.write_table(table, path)
    return path


def arrow_file(path: Path, table: Any) -> Path:
    """Write an Arrow table as an Arrow file, in small batches."""
    import pyarrow as pa

    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=7)
    return path


def arrow_stream(path: Path, table: Any) -> Path:
    """Write an Arrow table as a stream, in small batches."""
    import pyarrow as pa

    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=7)
    return path


def dictionaries(path: Path, table: Any) -> Path:
    """An Arrow file whose names, if it has any, are dictionaries."""
    for name in ("op", "status", "incoming") if str(table.schema.field("op").type) == "string" else ():
        place = table.schema.get_field_index(name)
        table = table.set_column(place, name, table.column(name).combine_chunks().dictionary_encode())
    return arrow_file(path, table)


WRITERS: tuple[Callable[[Path, Any], Path], ...] = (parquet, arrow_file, arrow_stream, dictionaries)
