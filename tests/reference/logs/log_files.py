"""Writes event logs as columns, for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any


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
