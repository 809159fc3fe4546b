"""Parquet files, Arrow files and Arrow streams, batch by batch, here or at a URL; pyarrow is imported late."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from kvlatch.reference.logs.events import CannotCheck
from kvlatch.reference.logs.files import File

NAMES: Final = ("string", "large_string", "dictionary")
"""How types of columns of names begin."""


def parquet(path: File, pa: Any) -> tuple[Any, int]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(_source(path, pa)) as file:
        return file.schema_arrow, file.metadata.num_rows


def _parquet_batches(path: File, pa: Any, wanted: list[str], rows: int) -> Iterator[tuple[Any, int]]:
    import pyarrow.parquet as pq

    schema = parquet(path, pa)[0]
    names = [name for name in wanted if str(schema.field(name).type).startswith(NAMES)]
    done = 0
    # Without these two options a row group, or in time the whole file, would be held in memory.
    with pq.ParquetFile(_source(path, pa), read_dictionary=names, pre_buffer=False, buffer_size=1 << 20) as file:
        for batch in file.iter_batches(batch_size=rows, columns=wanted):
            done += batch.num_rows
            yield batch.select(wanted), done


def arrow_file(path: File, pa: Any) -> tuple[Any, int]:
    with _opened(path, pa) as source, pa.ipc.open_file(source) as reader:
        return reader.schema, source.size()


def arrow_stream(path: File, pa: Any) -> tuple[Any, int]:
    with _opened(path, pa) as source, pa.ipc.open_stream(source) as reader:
        return reader.schema, source.size()


def _arrow_file_batches(path: File, pa: Any, wanted: list[str], rows: int) -> Iterator[tuple[Any, int]]:
    with _opened(path, pa) as source, pa.ipc.open_file(source) as reader:
        for number in range(reader.num_record_batches):
            yield from _cut(reader.get_batch(number), wanted, rows, source.tell())


def _arrow_stream_batches(path: File, pa: Any, wanted: list[str], rows: int) -> Iterator[tuple[Any, int]]:
    with _opened(path, pa) as source, pa.ipc.open_stream(source) as reader:
        for batch in reader:
            yield from _cut(batch, wanted, rows, source.tell())


def _cut(batch: Any, wanted: list[str], rows: int, done: int) -> Iterator[tuple[Any, int]]:
    batch.validate(full=True)
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows).select(wanted), done


BATCHES: Final[Mapping[Any, Callable[[File, Any, list[str], int], Iterator[tuple[Any, int]]]]] = {
    parquet: _parquet_batches, arrow_file: _arrow_file_batches, arrow_stream: _arrow_stream_batches,
}  # fmt: skip


def _source(path: File, pa: Any) -> Any:
    """What a Parquet reader opens: a path, or a file of a URL."""
    return pa.PythonFile(path.open(), "r") if path.remote else path.name


def _opened(path: File, pa: Any) -> Any:
    return pa.PythonFile(path.open(), "r") if path.remote else pa.OSFile(path.name)


def compressed_stream(path: File) -> Any:
    """What is in a .zst file, or in a pipe."""
    source = path.open() if path.piped or path.remote else path.name
    return pyarrow_for(path.name).input_stream(source, compression="zstd")


def pyarrow_for(path: str) -> Any:
    try:
        import pyarrow as pa
        import pyarrow.ipc  # `pa.ipc` is there once it is imported
    except ImportError as error:
        raise CannotCheck(f"{path}: Parquet, Arrow and .zst are read with pyarrow: install kvlatch[logs]") from error
    return pa


def raised(pa: Any) -> tuple[type[Exception], ...]:
    """What Arrow raises on a damaged file: among others KeyError for a dictionary that is missing."""
    return (pa.ArrowException, OSError, UnicodeDecodeError, MemoryError, OverflowError, KeyError, ValueError, TypeError)


def line_of(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
