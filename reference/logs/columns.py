"""Event logs as columns, Parquet and Arrow (a file or a stream): a column for each field, rows counted from 1.

``op`` and the statuses are strings, dictionaries of strings, or numbers: ``op`` in the order of ``events.OPS``,
statuses as ``KVPoll`` with 5 for Absent. ``time`` is a number of seconds or a timestamp. If the schema's metadata has a
``kvlatch-log``, it says the version; else the version is 2. Its ``ops``, with spaces between, are those that the log
has.

Every batch is validated in full before it is looked at, because Arrow does not check what it reads: one flipped byte of
an offset is a crash of the process. What Arrow raises is a LogError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final

import attrs
import numpy as np
import numpy.typing as npt

from kvlatch.reference.logs.events import (
    KEY,
    OPS,
    STATUSES,
    TABLE_OPS,
    VERSIONS,
    CannotCheck,
    Event,
    LogError,
    Names,
    declared,
)
from kvlatch.reference.logs.parse import Fault, event_of
from kvlatch.reference.logs.prefetch import prefetched

CHUNK: Final = 1 << 18
"""Rows read at a time; three columns of them are about 3 MB."""
_EVENTS: Final = 1 << 14
"""Rows that are made into events at a time."""
_NAMES: Final = ("string", "large_string", "dictionary")
"""How types of columns of names begin."""
_KNOWN: Final = ("room", "op", "status", "incoming", "node", "rank", "request", "chunk", "thread", "time", "peer",
                 "last", "error")  # fmt: skip


@attrs.frozen(eq=False)
class Columns:
    """Rows as arrays, for the screen: ``rooms`` int64 (the bits of an unsigned id), ``codes`` and ``times``.

    ``codes`` are those of ``laws.encode``; ``times``, float64 in seconds, is None where the log has none. ``row`` is
    the number of the first row, ``done`` how much has been read with these.
    """

    rooms: npt.NDArray[np.int64]
    codes: npt.NDArray[np.uint8]
    times: npt.NDArray[np.float64] | None
    row: int
    done: int


@attrs.frozen(eq=False)
class ColumnLog:
    """A log of columns. It can be gone through any number of times."""

    path: str
    version: int
    total: int
    declared: frozenset[str]
    columns: tuple[str, ...]
    rows: int
    """How many are read at a time."""
    is_table: bool
    """Whether it may be a log of one table by integer ids, in which nobody says whose request an event is about."""
    _open: Callable[[Sequence[str], int], Iterator[tuple[Any, int]]]
    unit: str = "row"

    @classmethod
    def of(cls, path: Path, magic: bytes, rows: int = CHUNK) -> ColumnLog:
        """LogError if the file is not whole, or has columns of which no event can be made."""
        pa = _pyarrow(path)
        reads = _parquet if magic == b"PAR1" else _arrow_stream if magic == b"\xff\xff\xff\xff" else _arrow_file
        try:
            schema, total = reads(path, pa)
            version, ops = _version(path, schema), _declared(path, schema)
            types = _types(path, schema)
        except _raised(pa) as error:
            raise LogError(f"{path}: cannot be read: {_line_of(error)}") from error
        columns = tuple(name for name in _KNOWN if name in types)
        is_table = types["room"].startswith(("int", "uint")) and not {"node", "rank", "request"} & set(columns)

        def batches(wanted: Sequence[str], most: int) -> Iterator[tuple[Any, int]]:
            return _READERS[reads](path, pa, list(wanted), most)

        return cls(str(path), version, total, ops, columns, rows, is_table, batches)

    def batches(self) -> Iterator[tuple[list[Event], int]]:
        """All events: see ``read.Log``."""
        yield from self._events(None)

    def of_rooms(self, chosen: Callable[[npt.NDArray[np.int64]], npt.NDArray[np.bool_]]) -> Iterator[list[Event]]:
        """The events of some rooms, chosen by their keys in the screen."""
        for events, _ in self._events(chosen):
            yield events

    def _events(
        self, chosen: Callable[[npt.NDArray[np.int64]], npt.NDArray[np.bool_]] | None
    ) -> Iterator[tuple[list[Event], int]]:
        pa, names = _pyarrow(Path(self.path)), Names()
        row = 1
        most = self.rows if chosen is not None else min(self.rows, _EVENTS)
        for batch, done in prefetched(self._guarded(self.columns, most)):
            rows: Any = batch
            lines: Sequence[int] = range(row, row + batch.num_rows)
            if chosen is not None:
                mine = np.flatnonzero(chosen(_rooms(batch)[0]))
                rows, lines = batch.take(pa.array(mine)), [row + at for at in mine.tolist()]
            row += batch.num_rows
            events: list[Event] = []
            fault = ""
            for line, said in zip(lines, _plain(rows, pa).to_pylist(), strict=True):
                try:
                    events.append(event_of(line, said, names, self.version))
                except Fault as error:
                    fault = f"{self.path}, row {line}: {error.in_columns}"
                    break
            yield events, done
            if fault:
                raise LogError(fault)

    def table(self) -> Iterator[Columns]:
        """The events as arrays; NotATable if it turns out that there is more in the log than statuses."""
        pa = _pyarrow(Path(self.path))
        wanted = [name for name in ("room", "op", "status", "incoming", "time") if name in self.columns]
        row = 1

        def decoded() -> Iterator[tuple[Columns, str]]:
            nonlocal row
            for batch, done in self._guarded(wanted, self.rows):
                columns, good, fault = _columns(batch, row, done, pa)
                yield columns, f"{self.path}, row {row + good}: {fault}" if fault else ""
                row += batch.num_rows

        for columns, fault in prefetched(decoded()):
            yield columns
            if fault:
                raise LogError(fault)

    def _guarded(self, wanted: Sequence[str], rows: int) -> Iterator[tuple[Any, int]]:
        """The batches; whatever Arrow raises is a LogError."""
        pa = _pyarrow(Path(self.path))
        row = 0
        try:
            for batch, done in self._open(wanted, rows):
                batch.validate(full=True)
                yield batch, done
                row += batch.num_rows
        except _raised(pa) as error:
            raise LogError(f"{self.path}, after row {row}: {_line_of(error)}") from error


class NotATable(Exception):
    """The log has events that the screen does not know: everything has to be judged by the judge."""


# --------------------------------------------------------------------------------------------------------------------
# Files


def _parquet(path: Path, _pa: Any) -> tuple[Any, int]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        return file.schema_arrow, file.metadata.num_rows


def _parquet_batches(path: Path, pa: Any, wanted: list[str], rows: int) -> Iterator[tuple[Any, int]]:
    import pyarrow.parquet as pq

    schema = _parquet(path, pa)[0]
    names = [name for name in wanted if str(schema.field(name).type).startswith(_NAMES)]
    done = 0
    # Without these two options a row group, or in time the whole file, would be held in memory.
    with pq.ParquetFile(path, read_dictionary=names, pre_buffer=False, buffer_size=1 << 20) as file:
        for batch in file.iter_batches(batch_size=rows, columns=wanted):
            done += batch.num_rows
            yield batch.select(wanted), done


def _arrow_file(path: Path, pa: Any) -> tuple[Any, int]:
    with pa.OSFile(str(path)) as source, pa.ipc.open_file(source) as reader:
        return reader.schema, source.size()


def _arrow_stream(path: Path, pa: Any) -> tuple[Any, int]:
    with pa.OSFile(str(path)) as source, pa.ipc.open_stream(source) as reader:
        return reader.schema, source.size()


def _arrow_file_batches(path: Path, pa: Any, wanted: list[str], rows: int) -> Iterator[tuple[Any, int]]:
    with pa.OSFile(str(path)) as source, pa.ipc.open_file(source) as reader:
        for number in range(reader.num_record_batches):
            yield from _cut(reader.get_batch(number), wanted, rows, source.tell())


def _arrow_stream_batches(path: Path, pa: Any, wanted: list[str], rows: int) -> Iterator[tuple[Any, int]]:
    with pa.OSFile(str(path)) as source, pa.ipc.open_stream(source) as reader:
        for batch in reader:
            yield from _cut(batch, wanted, rows, source.tell())


def _cut(batch: Any, wanted: list[str], rows: int, done: int) -> Iterator[tuple[Any, int]]:
    batch.validate(full=True)
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows).select(wanted), done


_READERS: Final[Mapping[Any, Callable[[Path, Any, list[str], int], Iterator[tuple[Any, int]]]]] = {
    _parquet: _parquet_batches, _arrow_file: _arrow_file_batches, _arrow_stream: _arrow_stream_batches,
}  # fmt: skip


def compressed_stream(path: Path, source: IO[bytes] | Path) -> Any:
    """What is in a .zst file, or in a pipe."""
    pa = _pyarrow(path)
    return pa.input_stream(str(source) if isinstance(source, Path) else source, compression="zstd")


def _pyarrow(path: Path) -> Any:
    try:
        import pyarrow as pa
        import pyarrow.ipc  # `pa.ipc` is there once it is imported
    except ImportError as error:
        raise CannotCheck(f"{path}: Parquet, Arrow and .zst are read with pyarrow: install kvlatch[logs]") from error
    return pa


def _raised(pa: Any) -> tuple[type[Exception], ...]:
    """What Arrow raises on a damaged file: among others KeyError for a dictionary that is missing."""
    return (pa.ArrowException, OSError, UnicodeDecodeError, MemoryError, OverflowError, KeyError, ValueError, TypeError)


def _line_of(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _version(path: Path, schema: Any) -> int:
    said = (schema.metadata or {}).get(KEY.encode(), b"%d" % VERSIONS[-1])
    if said not in {b"%d" % version for version in VERSIONS}:
        known = " and ".join(map(str, VERSIONS))
        raise LogError(f"{path}: version {said.decode(errors='replace')}, and this reads versions {known}")
    return int(said)


def _declared(path: Path, schema: Any) -> frozenset[str]:
    said = (schema.metadata or {}).get(b"ops", b"")
    try:
        return declared({"ops": said.decode().split()})
    except (LogError, UnicodeDecodeError) as error:
        raise LogError(f"{path}: {error}") from error


def _types(path: Path, schema: Any) -> dict[str, str]:
    """The types of the columns; LogError if one is missing, is there twice, or cannot be right."""
    types = {name: str(schema.field(at).type) for at, name in enumerate(schema.names)}
    if len(types) < len(schema.names):
        raise LogError(f"{path}: two columns have one name: {', '.join(schema.names)}")
    for name in ("room", "op", "status"):
        if name not in types:
            raise LogError(f"{path}: no column {name!r}: it has {', '.join(types) or 'none'}")
    if not types["room"].startswith(("int", "uint", *_NAMES)):
        raise LogError(f"{path}: column 'room' is of {types['room']}, and must be of integers or strings")
    return types


# --------------------------------------------------------------------------------------------------------------------
# Rows as arrays


def _columns(batch: Any, row: int, done: int, pa: Any) -> tuple[Columns, int, str]:
    """The rows before the first fault, how many they are, and the fault."""
    from kvlatch.reference.logs.codes import UNOBSERVED, UNSAID, encode

    names = batch.schema.names
    rooms, bad = _rooms(batch)
    faults = [_first(bad)] if bad is not None else []
    fields = {}
    for name, known, missing in (
        ("op", TABLE_OPS, None),
        ("status", STATUSES, UNOBSERVED),
        ("incoming", STATUSES[:-1], UNSAID),
    ):
        if name in names:
            fields[name], fault = _numbers(batch.column(names.index(name)), name, known, missing, pa)
            faults.append(fault)
    codes = encode(fields["op"], fields.get("incoming", np.full(1, UNSAID, np.uint8)), fields["status"])
    good = min((at for at in faults if at is not None), default=batch.num_rows)
    said = _said(batch.slice(good, 1), pa) if good < batch.num_rows else ""
    times = _times(batch, pa)
    clock = None if times is None else times[:good]
    return Columns(rooms[:good], codes[:good].astype(np.uint8, copy=False), clock, row, done), good, said


def _rooms(batch: Any) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_] | None]:
    """The ids as 64 bits, and which rows have none, or a negative one."""
    column = batch.column(batch.schema.names.index("room"))
    values = column.fill_null(0).to_numpy(zero_copy_only=False) if column.null_count else column.to_numpy()
    bad = values < 0 if values.dtype.kind == "i" and len(values) and values.min() < 0 else None
    if column.null_count:
        nulls = column.is_null().to_numpy(zero_copy_only=False)
        bad = nulls if bad is None else bad | nulls
    wide = values.astype(np.uint64 if values.dtype.kind == "u" else np.int64, copy=False)
    return wide.view(np.int64), bad


def _numbers(
    column: Any, name: str, known: Sequence[str], missing: int | None, pa: Any
) -> tuple[npt.NDArray[np.uint8], int | None]:
    """A column of names or numbers as numbers, and the first row of it that is neither."""
    unknown = 255
    nothing = unknown if missing is None else missing
    if pa.types.is_integer(column.type):
        values = column.fill_null(0).to_numpy(zero_copy_only=False)
        table = np.array([*range(len(known)), nothing, unknown], np.uint8)
        index = np.where((values >= 0) & (values < len(known)), values, len(known) + 1)
        if column.null_count:
            index[column.is_null().to_numpy(zero_copy_only=False)] = len(known)
        labels: list[Any] = []
    else:
        if not pa.types.is_dictionary(column.type):
            column = column.dictionary_encode()
        labels = column.dictionary.to_pylist()
        index = column.indices
        index = index.fill_null(len(labels)) if index.null_count else index
        index = index.to_numpy(zero_copy_only=False)
        numbers = {label: number for number, label in enumerate(known)}
        table = np.array([*(numbers.get(label, unknown) for label in labels), nothing], np.uint8)
    found = table.take(index)
    if labels and unknown not in table[: len(labels)] and not (column.null_count and missing is None):
        return found, None
    if name == "op" and (later := _later(column, found == unknown)):
        raise NotATable(later)
    return found, _first(found == unknown)


def _later(column: Any, bad: npt.NDArray[np.bool_]) -> str | None:
    """An operation that only version 2 has, if the first bad row has one."""
    if not bad.any():
        return None
    value = column[int(bad.argmax())].as_py()
    if type(value) is int and 0 <= value < len(OPS):
        return tuple(OPS)[value]
    return value if value in OPS else None


def _first(bad: npt.NDArray[np.bool_]) -> int | None:
    return int(bad.argmax()) if bad.any() else None


def _said(row: Any, pa: Any) -> str:
    """What is wrong with a row."""
    try:
        event_of(0, _plain(row, pa).to_pylist()[0], Names(), VERSIONS[0])
    except Fault as error:
        return error.in_columns
    return "not an event"


def _plain(batch: Any, pa: Any) -> Any:
    """The batch with timestamps as seconds, since Python's own know no nanoseconds, and without what is not plain."""
    types = pa.types
    plain = (types.is_string, types.is_large_string, types.is_dictionary, types.is_integer, types.is_floating,
             types.is_boolean, types.is_null)  # fmt: skip
    columns = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if types.is_timestamp(column.type):
            columns[name] = pa.array(_seconds(column, pa), pa.float64(), from_pandas=True)
        elif any(is_one(column.type) for is_one in plain):
            columns[name] = column
    return pa.RecordBatch.from_pydict(columns)


def _times(batch: Any, pa: Any) -> npt.NDArray[np.float64] | None:
    """The times in seconds, NaN where there is none; None if there is no column of them that is one."""
    if "time" not in batch.schema.names:
        return None
    column = batch.column(batch.schema.names.index("time"))
    if pa.types.is_timestamp(column.type):
        return _seconds(column, pa)
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        return None
    return np.asarray(column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False), np.float64)


def _seconds(column: Any, pa: Any) -> npt.NDArray[np.float64]:
    micros = column.cast(pa.timestamp("us"), safe=False).cast(pa.int64())
    return np.asarray(micros.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False), np.float64) / 1e6
