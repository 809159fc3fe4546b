"""Event logs as files, read piece by piece: NDJSON, Parquet and Arrow, told apart by how they begin.

An event says which room, what was done, and what the status *table* showed for the room right afterwards; not what a
sender with a latch would answer.

==========  =========================================  ========================================================
field       values                                     missing or null
==========  =========================================  ========================================================
room        integer, 0 to 2**63 - 1                    an error
op          create, clear, poll, abort, write          an error
status      a status by name, or Absent                unobserved: the event says what was done, not what came of it
incoming    the status that a write writes, by name    unsaid; ignored where ``op`` is not ``write``
thread      who did it: a string or an integer         unsaid
time        when, in seconds: a number                 unsaid
==========  =========================================  ========================================================

**NDJSON**: a header line, ``{"kvlatch-log": 1}``, then one object a line, in the order in which the table changed.
No law looks at ``thread`` and ``time``: a value of another kind is as good as none. Other fields, of the header as well
(a build, a host), are for the reader of the file and are not looked at.
A blank line is an error. The standard library reads it, a line at a time, so that each fault has its line. (pyarrow's
JSON reader joins lines, skips blank ones, and ends the process on a line that says ``null``.) Large logs are better
written as columns.

**Parquet and Arrow** (a file or a stream; need pyarrow): a column for each field; the last three may be left out.
``op`` and the statuses are strings, dictionaries of strings, or numbers: ``op`` in the order above, statuses as
``KVPoll`` with 5 for Absent. ``time`` is a number or a timestamp. If the schema's metadata has a ``kvlatch-log``, it
must be 1. Rows are counted from 1.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

import attrs
import numpy as np
import numpy.typing as npt

from kvlatch.reference.logs.laws import OPS, STATUSES, UNOBSERVED, UNSAID, encode
from kvlatch.spec.status import KVPoll

VERSION: Final = 1
_KEY: Final = "kvlatch-log"
_NAMES: Final = ("string", "large_string", "dictionary")
"""How types of columns of names begin."""
_PARQUET, _ARROW_FILE, _ARROW_STREAM = b"PAR1", b"ARROW1", b"\xff\xff\xff\xff"
_MOST_ROOM: Final = 2**63 - 1
_LONGEST_LINE: Final = 1 << 16
_BUFFER: Final = 1 << 20
_LONGEST_TIME: Final = 1e18
"""Seconds, more than any clock has; no NaN is below it."""
_INCOMING: Final = tuple(status.name for status in KVPoll)
_OP_NUMBER: Final = {name: number for number, name in enumerate(OPS)}
_STATUS_NUMBER: Final = {name: number for number, name in enumerate(STATUSES)}


class LogError(ValueError):
    """A log that cannot be read, or not any further: one line that says where and why."""

    exit_code: ClassVar[int] = 2


class CannotCheck(LogError):
    """What would be needed is not installed, or not there."""

    exit_code = 4


@attrs.frozen
class Note:
    """Who did what an event says, and when, in seconds; each is None where the log does not say it."""

    thread: str | None = None
    time: float | None = None

    @classmethod
    def of(cls, thread: Any, time: Any) -> Note:
        """The note that two values of a log make."""
        said = str(thread) if type(thread) in (str, int) else ""
        known = type(time) in (int, float) and abs(time) < _LONGEST_TIME
        return cls(said or None, float(time) if known else None)


@attrs.frozen(eq=False)
class Chunk:
    """Events of consecutive lines (or rows): ids, bytes as ``log_laws.encode`` makes them, the line of the first.

    ``done`` says how much of the log has been read with it, in the unit of ``Log.total``. ``notes`` has one entry for
    each event of the room whose notes were asked for.
    """

    rooms: npt.NDArray[np.int64]
    codes: npt.NDArray[np.uint8]
    line: int
    done: int
    notes: Sequence[Note] = ()


@attrs.frozen(eq=False)
class Log:
    """An opened log. ``chunks`` can be gone through once, and raises LogError where it cannot go on.

    ``unit`` is what the events are numbered by; ``total`` is the size of the log in bytes or rows.
    """

    unit: str
    total: int
    chunks: Iterator[Chunk]


def open_log(path: Path, chunk: int, room: int | None = None) -> Log:
    """The log in a file, in chunks of at most so many events; LogError if it is none that can be read.

    ``room`` is the one whose notes are read.
    """
    try:
        with path.open("rb") as file:
            start = file.read(6)
        if start.startswith(_PARQUET):
            return _parquet(path, chunk, room)
        if start.startswith((_ARROW_FILE, _ARROW_STREAM)):
            return _arrow(path, chunk, room, stream=start.startswith(_ARROW_STREAM))
        return _ndjson(path, chunk, room)
    except OSError as error:
        raise LogError(f"{path}: {error.strerror or error}") from error


def is_log(path: Path) -> bool:
    """Whether a file begins as an event log does, of whatever version. A pipe is none: looking at it would empty it."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        start = file.readline(_LONGEST_LINE)
    header = _object(start)
    columns = start.startswith((_PARQUET, _ARROW_FILE, _ARROW_STREAM))
    return columns or (isinstance(header, dict) and _KEY in header)


# --------------------------------------------------------------------------------------------------------------------
# NDJSON


def _ndjson(path: Path, chunk: int, room: int | None) -> Log:
    with path.open("rb") as file:
        header = _object(file.readline(_LONGEST_LINE))
    if not isinstance(header, dict) or _KEY not in header:
        raise LogError(f'{path}, line 1: not an event log: NDJSON begins with {{"{_KEY}": {VERSION}}}')
    if header[_KEY] != VERSION:
        raise LogError(f"{path}, line 1: version {header[_KEY]!r}, and this reads version {VERSION}")
    return Log("line", path.stat().st_size, _ndjson_chunks(path, chunk, room))


def _ndjson_chunks(path: Path, chunk: int, room: int | None) -> Iterator[Chunk]:
    line, fault = 2, ""
    with path.open("rb") as file:
        file.readline(_LONGEST_LINE)
        while not fault:
            rooms, codes = array("q"), bytearray()
            notes = []
            while len(codes) < chunk and (text := file.readline(_LONGEST_LINE)):
                event = _event(text)
                if isinstance(event, str):
                    fault = f"{path}, line {line + len(codes)}: {event}"
                    break
                rooms.append(event[0])
                codes.append(event[1])
                if event[0] == room:
                    told = _object(text)
                    notes.append(Note.of(told.get("thread"), told.get("time")))
            if not codes:
                break
            yield Chunk(np.frombuffer(rooms, np.int64), np.frombuffer(codes, np.uint8), line, file.tell(), notes)
            line += len(codes)
    if fault:
        raise LogError(fault)


def _object(text: bytes) -> Any:
    """What a line says; None if it is no JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _event(text: bytes) -> tuple[int, int] | str:
    """Room and code of an event, or what is wrong with the line."""
    event = _object(text)
    if not isinstance(event, dict):
        cut = "" if text.endswith(b"\n") else ": the line is cut off, or the last one is unfinished"
        return f"not a JSON object{cut}" if text.strip() else "a blank line where an event should be"
    room = event.get("room")
    if room is None:
        return 'no "room"'
    if type(room) is not int or not 0 <= room <= _MOST_ROOM:
        return f'"room" is {json.dumps(room)}, and must be an integer from 0 to 2**63 - 1'
    op, incoming, observed = event.get("op"), event.get("incoming"), event.get("status")
    if op is None:
        return 'no "op"'
    if not isinstance(op, str) or op not in _OP_NUMBER:
        return _not_one('"op"', op, OPS)
    if incoming is not None and incoming not in _INCOMING:
        return _not_one('"incoming"', incoming, _INCOMING)
    if observed is not None and observed not in STATUSES:
        return _not_one('"status"', observed, STATUSES)
    return room, encode(
        _OP_NUMBER[op],
        UNSAID if incoming is None else _STATUS_NUMBER[incoming],
        UNOBSERVED if observed is None else _STATUS_NUMBER[observed],
    )


def _not_one(field: str, value: object, names: Sequence[str]) -> str:
    return f"{field} is {json.dumps(value)}, and must be one of {', '.join(names)}"


# --------------------------------------------------------------------------------------------------------------------
# Parquet and Arrow


def _parquet(path: Path, chunk: int, room: int | None) -> Log:
    pa = _pyarrow(path)
    import pyarrow.parquet as pq

    try:
        schema = pq.read_schema(path)
        columns = _columns(path, schema, room)
        names = [name for name in columns if str(schema.field(name).type).startswith(_NAMES)]
        # Without these two options a row group, or in time the whole file, would be held in memory.
        file = pq.ParquetFile(path, read_dictionary=names, pre_buffer=False, buffer_size=_BUFFER)
        batches = file.iter_batches(batch_size=chunk, columns=columns)
        return Log("row", file.metadata.num_rows, _chunks(path, batches, room, pa))
    except pa.ArrowException as error:
        raise LogError(f"{path}: not a Parquet file that can be read: {_line_of(error)}") from error


def _arrow(path: Path, chunk: int, room: int | None, *, stream: bool) -> Log:
    pa = _pyarrow(path)

    def batches() -> Iterator[Any]:
        with reader:
            whole = reader if stream else (reader.get_batch(i) for i in range(reader.num_record_batches))
            for batch in whole:
                for start in range(0, batch.num_rows, chunk):
                    yield batch.slice(start, chunk).select(columns)

    try:
        source = pa.memory_map(str(path))
        reader = pa.ipc.open_stream(source) if stream else pa.ipc.open_file(source)
        columns = _columns(path, reader.schema, room)
        return Log("row", source.size(), _chunks(path, batches(), room, pa, source))
    except pa.ArrowException as error:
        raise LogError(f"{path}: not an Arrow file that can be read: {_line_of(error)}") from error


def _pyarrow(path: Path) -> Any:
    try:
        import pyarrow as pa
        import pyarrow.ipc  # `pa.ipc` is there once it is imported
    except ImportError as error:
        raise CannotCheck(f"{path}: Parquet and Arrow are read with pyarrow: install kvlatch[logs]") from error
    return pa


def _line_of(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _columns(path: Path, schema: Any, room: int | None) -> list[str]:
    """The columns to read; LogError if one is missing, or is of a type that cannot be right."""
    version = (schema.metadata or {}).get(_KEY.encode(), b"1")
    if version != b"%d" % VERSION:
        raise LogError(f"{path}: version {version.decode(errors='replace')}, and this reads version {VERSION}")
    types = {name: str(schema.field(name).type) for name in schema.names}
    for name in ("room", "op", "status"):
        if name not in types:
            raise LogError(f"{path}: no column {name!r}: it has {', '.join(types) or 'none'}")
    if "int" not in types["room"] or "dict" in types["room"]:
        raise LogError(f"{path}: column 'room' is of {types['room']}, and must be of integers")
    wanted = ("room", "op", "status", "incoming", *(("thread", "time") if room is not None else ()))
    return [name for name in wanted if name in types]


def _chunks(path: Path, batches: Iterator[Any], room: int | None, pa: Any, source: Any = None) -> Iterator[Chunk]:
    """The batches as chunks, up to the first fault; progress is counted in bytes of ``source``, or else in rows."""
    row = 1
    try:
        for batch in batches:
            rooms, codes, good, fault = _batch(batch, pa)
            done = source.tell() if source else row + batch.num_rows - 1
            notes = () if room is None else _notes(batch, rooms[:good] == room, pa)
            yield Chunk(rooms[:good], codes[:good], row, done, notes)
            if fault:
                raise LogError(f"{path}, row {row + good}: {fault}")
            row += batch.num_rows
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise LogError(f"{path}, after row {row - 1}: {_line_of(error)}") from error


def _batch(batch: Any, pa: Any) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8], int, str]:
    """Rooms and codes of a batch, how many rows of it are good, and what is wrong with the next one."""
    names = batch.schema.names
    column = batch.column(names.index("room"))
    rooms = column.fill_null(0).to_numpy(zero_copy_only=False)
    bad = (rooms < 0) | (rooms > _MOST_ROOM)
    if column.null_count:
        bad |= column.is_null().to_numpy(zero_copy_only=False)
    faults = [_fault(bad, lambda i: f"'room' is {column[i].as_py()}, and must be an integer from 0 to 2**63 - 1")]
    fields = {}
    for name, numbers, missing in (
        ("op", _OP_NUMBER, None),
        ("incoming", {name: _STATUS_NUMBER[name] for name in _INCOMING}, UNSAID),
        ("status", _STATUS_NUMBER, UNOBSERVED),
    ):
        if name in names:
            fields[name], wrong = _numbers(batch.column(names.index(name)), name, numbers, missing, pa)
            faults.append(wrong)
    incoming = fields.get("incoming", np.full(len(rooms), UNSAID, np.uint8))
    codes = encode(fields["op"], incoming, fields["status"])
    good, fault = min(filter(None, faults), default=(len(rooms), ""))
    return rooms.astype(np.int64, copy=False), codes, good, fault


def _notes(batch: Any, chosen: npt.NDArray[np.bool_], pa: Any) -> list[Note]:
    """The notes of the chosen rows."""
    rows = np.flatnonzero(chosen)
    types = pa.types
    plain = (types.is_string, types.is_large_string, types.is_dictionary, types.is_integer, types.is_floating)

    def values(name: str) -> list[Any]:
        if name in batch.schema.names:
            column = batch.column(batch.schema.names.index(name)).take(pa.array(rows))
            if types.is_timestamp(column.type):  # not as Python has it, which knows no nanoseconds
                micros = column.cast(pa.timestamp("us"), safe=False).cast(pa.int64()).to_pylist()
                return [None if value is None else value / 1e6 for value in micros]
            if any(is_one(column.type) for is_one in plain):
                return list(column.to_pylist())
        return [None] * len(rows)

    return [Note.of(*pair) for pair in zip(values("thread"), values("time"), strict=True)]


def _numbers(
    column: Any, name: str, numbers: Mapping[str, int], missing: int | None, pa: Any
) -> tuple[npt.NDArray[np.uint8], tuple[int, str] | None]:
    """A column of names or numbers as numbers, and the first row of it that is neither one, with what is wrong."""
    unknown = 255
    if pa.types.is_integer(column.type):
        known = range(len(numbers))
        values = column.fill_null(0).to_numpy(zero_copy_only=False)
        table = np.array([*known, unknown if missing is None else missing, unknown], np.uint8)
        index = np.where((values >= 0) & (values < len(numbers)), values, len(numbers) + 1)
        if column.null_count:
            index[column.is_null().to_numpy(zero_copy_only=False)] = len(numbers)
    else:
        if not pa.types.is_dictionary(column.type):
            column = column.dictionary_encode()
        names = column.dictionary.to_pylist()
        index = column.indices.fill_null(len(names)).to_numpy(zero_copy_only=False)
        nothing = unknown if missing is None else missing
        table = np.array([*(numbers.get(n, unknown) for n in names), nothing], np.uint8)
    found = table[index]
    return found, _fault(found == unknown, lambda i: _not_one(f"'{name}'", column[i].as_py(), tuple(numbers)))


def _fault(bad: npt.NDArray[np.bool_], say: Any) -> tuple[int, str] | None:
    if not bad.any():
        return None
    first = int(bad.argmax())
    return first, say(first)
