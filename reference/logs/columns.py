"""Event logs as columns, Parquet and Arrow (a file or a stream): a column for each field, rows counted from 1.

``op`` and the statuses are strings, dictionaries of strings, or numbers: ``op`` in the order of ``events.OPS``,
statuses as ``KVPoll`` with 5 for Absent. ``time`` is a number of seconds or a timestamp. If the schema's metadata has a
``kvlatch-log``, it says the version; else the version is 2. Its ``ops``, with spaces between, are those that the log
has.

Every batch is validated in full before it is looked at, because Arrow does not check what it reads: one flipped byte of
an offset is a crash of the process. What Arrow raises is a LogError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import attrs
import numpy as np
import numpy.typing as npt

from kvlatch.reference.logs.arrow import (
    BATCHES,
    NAMES,
    arrow_file,
    arrow_stream,
    line_of,
    parquet,
    pyarrow_for,
    raised,
)
from kvlatch.reference.logs.events import (
    KEY,
    OPS,
    STATUSES,
    TABLE_OPS,
    VERSIONS,
    Event,
    LogError,
    Names,
    declared,
)
from kvlatch.reference.logs.files import File
from kvlatch.reference.logs.parse import LONGEST_TIME, Fault, event_of, glance
from kvlatch.reference.logs.parts import Batch, Glimpse, Part
from kvlatch.reference.logs.prefetch import prefetched

CHUNK: Final = 1 << 18
"""Rows read at a time; three columns of them are about 3 MB."""
_EVENTS: Final = 1 << 14
"""Rows that are made into events at a time."""
_KNOWN: Final = ("room", "op", "status", "incoming", "node", "rank", "request", "chunk", "thread", "time", "peer",
                 "last", "error")  # fmt: skip
_OF_TABLE: Final = ("room", "op", "status", "incoming", "thread", "time")
"""Those that say all of an event of a status table."""


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
    process: str | None
    columns: tuple[str, ...]
    rows: int
    """How many are read at a time."""
    is_table: bool
    """Whether it may be a log of one table by integer ids, in which nobody says whose request an event is about."""
    _open: Callable[[Sequence[str], int], Iterator[tuple[Any, int]]]
    unit: str = "row"

    @classmethod
    def of(cls, path: File, magic: bytes, rows: int = CHUNK) -> ColumnLog:
        """LogError if the file is not whole, or has columns of which no event can be made."""
        pa = pyarrow_for(path.name)
        reads = parquet if magic == b"PAR1" else arrow_stream if magic == b"\xff\xff\xff\xff" else arrow_file
        try:
            schema, total = reads(path, pa)
            version, ops = _version(path, schema), _declared(path, schema)
            types = _types(path, schema)
        except raised(pa) as error:
            raise LogError(f"{path}: cannot be read: {line_of(error)}") from error
        columns = tuple(name for name in _KNOWN if name in types)
        is_table = types["room"].startswith(("int", "uint")) and not {"node", "rank", "request"} & set(columns)

        def batches(wanted: Sequence[str], most: int) -> Iterator[tuple[Any, int]]:
            return BATCHES[reads](path, pa, list(wanted), most)

        return cls(path.name, version, total, ops, _process(schema), columns, rows, is_table, batches)

    def batches(self, part: Part | None = None, until: int | None = None) -> Iterator[Batch]:
        """See ``read.Log``."""
        chosen = None if part is None else partial(_in_part, part)
        yield from self._events(self.columns, min(self.rows, _EVENTS), chosen, until, glimpsed=True)

    def of_rooms(self, chosen: Callable[[npt.NDArray[np.int64]], npt.NDArray[np.bool_]]) -> Iterator[list[Event]]:
        """The events about the table of some rooms, chosen by their keys in the screen."""
        wanted = [name for name in self.columns if name in _OF_TABLE]
        for batch in self._events(wanted, self.rows, lambda rows: chosen(_rooms(rows)[0])):
            yield batch.events

    def _events(
        self, wanted: Sequence[str], most: int, chosen: Callable[[Any], npt.NDArray[np.bool_]] | None,
        until: int | None = None, *, glimpsed: bool = False,
    ) -> Iterator[Batch]:  # fmt: skip
        pa, names = pyarrow_for(self.path), Names()
        row = 1
        for batch, done in prefetched(self._guarded(wanted, most)):
            rows: Any = batch if until is None else batch.slice(0, until - row)
            lines: Sequence[int] = range(row, row + rows.num_rows)
            row += rows.num_rows
            others: list[Glimpse] = []
            if chosen is not None:
                mine = chosen(rows)
                others = _glimpses(rows, ~mine, lines[0] if lines else 0, names, self.version, pa) if glimpsed else []
                lines = [lines[at] for at in np.flatnonzero(mine).tolist()]
                rows = rows.filter(pa.array(mine))
            events: list[Event] = []
            fault, at = "", 0
            for line, said in zip(lines, _plain(rows, pa).to_pylist(), strict=True):
                try:
                    events.append(event_of(line, said, names, self.version))
                except Fault as error:
                    fault, at = f"{self.path}, row {line}: {error.in_columns}", line
                    break
            yield Batch(events, others, done)
            if fault:
                raise LogError(fault, at)
            if row == until:
                return

    def table(self) -> Iterator[Columns]:
        """The events as arrays; NotATable if it turns out that there is more in the log than statuses."""
        pa = pyarrow_for(self.path)
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
                raise LogError(fault, columns.row + len(columns.codes))

    def _guarded(self, wanted: Sequence[str], rows: int) -> Iterator[tuple[Any, int]]:
        """The batches; whatever Arrow raises is a LogError."""
        pa = pyarrow_for(self.path)
        row = 0
        try:
            for batch, done in self._open(wanted, rows):
                batch.validate(full=True)
                yield batch, done
                row += batch.num_rows
        except raised(pa) as error:
            raise LogError(f"{self.path}, after row {row}: {line_of(error)}", row + 1) from error


class NotATable(Exception):
    """The log has events that the screen does not know: everything has to be judged by the judge."""


def _version(path: File, schema: Any) -> int:
    said = (schema.metadata or {}).get(KEY.encode(), b"%d" % VERSIONS[-1])
    if said not in {b"%d" % version for version in VERSIONS}:
        known = " and ".join(map(str, VERSIONS))
        raise LogError(f"{path}: version {said.decode(errors='replace')}, and this reads versions {known}")
    return int(said)


def _declared(path: File, schema: Any) -> frozenset[str]:
    said = (schema.metadata or {}).get(b"ops", b"")
    try:
        return declared({"ops": said.decode().split()})
    except (LogError, UnicodeDecodeError) as error:
        raise LogError(f"{path}: {error}") from error


def _process(schema: Any) -> str | None:
    said = (schema.metadata or {}).get(b"process")
    return None if said is None else said.decode(errors="replace")


def _types(path: File, schema: Any) -> dict[str, str]:
    """The types of the columns; LogError if one is missing, is there twice, or cannot be right."""
    types = {name: str(schema.field(at).type) for at, name in enumerate(schema.names)}
    if len(types) < len(schema.names):
        raise LogError(f"{path}: two columns have one name: {', '.join(schema.names)}")
    for name in ("room", "op", "status"):
        if name not in types:
            raise LogError(f"{path}: no column {name!r}: it has {', '.join(types) or 'none'}")
    if not types["room"].startswith(("int", "uint", *NAMES)):
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


def _in_part(part: Part, batch: Any) -> npt.NDArray[np.bool_]:
    """Which rows are of rooms of that part."""
    column = batch.column(batch.schema.names.index("room"))
    if str(column.type).startswith(NAMES):
        return part.of_names(column.to_pylist())
    return part.of_keys(_rooms(batch)[0])


def _glimpses(
    batch: Any, chosen: npt.NDArray[np.bool_], first: int, names: Names, version: int, pa: Any
) -> list[Glimpse]:
    """What the chosen rows say of their tables, one for each kind of row, with its latest time, and its last.

    ``first`` is the number of the first row.
    """
    said = [name for name in ("node", "rank", "op", "status", "incoming") if name in batch.schema.names]
    columns = {}
    for name in said:
        column = batch.column(batch.schema.names.index(name))
        columns[name] = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
    times = _times(batch, pa)
    if times is None:
        times = np.full(batch.num_rows, np.nan)
    untimed = ~(np.abs(times) < LONGEST_TIME)
    columns["time"] = pa.array(times, mask=untimed)
    columns["row"] = pa.array(np.arange(batch.num_rows), mask=untimed)
    kinds = pa.table(columns).filter(pa.array(chosen)).group_by(said).aggregate([("time", "max"), ("row", "max")])
    glimpses = []
    for kind in kinds.to_pylist():
        row = kind["row_max"]
        glimpse = glance(first + (row or 0), {**kind, "time": kind["time_max"]}, names, version)
        if glimpse is not None:
            glimpses.append(glimpse._replace(at=None if row is None else float(times[row])))
    return glimpses


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
