"""Event logs as files, read piece by piece: NDJSON (plain, .gz, .zst, a pipe), Parquet and Arrow.

How a file begins says what it is, not its name. ``docs/log-format.md`` describes the format; ``events.py`` has its
words.
NDJSON is read by the standard library, a line at a time, so that each fault has its line: pyarrow's JSON reader joins
lines, skips blank ones, and ends the process on a line that says ``null``. Parquet, Arrow and .zst need pyarrow
(``kvlatch[logs]``).
"""

from __future__ import annotations

import gzip
import io
import json
import re
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final, Protocol, cast

import attrs

from kvlatch.reference.logs.arrow import compressed_stream
from kvlatch.reference.logs.columns import CHUNK, ColumnLog
from kvlatch.reference.logs.events import KEY, VERSIONS, Event, LogError, Names, Unfinished, declared, process_of
from kvlatch.reference.logs.files import File
from kvlatch.reference.logs.parse import Fault, event_of, glance
from kvlatch.reference.logs.parts import Batch, Glimpse, Part

BATCH: Final = 1 << 13
"""Events of a text log that are read, ordered and judged together."""
_PARQUET, _ARROW_FILE, _ARROW_STREAM = b"PAR1", b"ARROW1", b"\xff\xff\xff\xff"
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
MAGIC: Final = 6
"""Bytes at the start of a file that say what it is."""
_SERVER: Final = re.compile(rb"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[^\]]*\] ")
"""How a line of an engine's own log begins."""
_LONGEST_LINE: Final = 1 << 16
_UNFINISHED: Final = "the log ends in the middle of it, as a process leaves it that was killed"
_LOOK_AGAIN: Final = 0.2
"""Seconds between two looks at a log that is being written: a file does not say when it has grown."""
BROKEN_STREAM: Final = (OSError, EOFError, zlib.error)


class Log(Protocol):
    """An opened log. ``unit`` is what its events are numbered by, ``total`` its size in bytes or rows (0: unknown).

    ``declared`` are the operations that it says it has, ``process`` is which process writes it, if it says so.
    """

    @property
    def path(self) -> str: ...
    @property
    def unit(self) -> str: ...
    @property
    def version(self) -> int: ...
    @property
    def total(self) -> int: ...
    @property
    def declared(self) -> frozenset[str]: ...
    @property
    def process(self) -> str | None: ...

    def batches(self, part: Part | None = None, until: int | None = None) -> Iterator[Batch]:
        """The events of a part of the rooms, or of all of them, before a line. Can be gone through once.

        LogError where the log cannot be read any further, after the events before that place; Unfinished if that is
        its last line, which is cut off. What is wrong with an event is found by the part that it is in.
        """
        ...


def open_log(path: Path | str, batch: int | None = None, *, follow: bool = False) -> Log:
    """The log in a file, at a URL, or on standard input (``-``); LogError if it is none that can be read.

    At most ``batch`` events are read at a time. ``follow`` waits at the end of an NDJSON file for more, until the
    process is interrupted.
    """
    file = File.of(path)
    try:
        start = file.start(MAGIC)
        if start.startswith((_PARQUET, _ARROW_FILE, _ARROW_STREAM)):
            if file.piped:
                raise LogError(f"{path}: columns cannot be read from a pipe: name the file")
            if follow:
                raise LogError(f"{path}: only NDJSON can be followed while it is written")
            return ColumnLog.of(file, start[:4], batch or CHUNK)
        return TextLog.of(file, start, batch or BATCH, follow)
    except OSError as error:
        raise LogError(f"{path}: {error.strerror or error}") from error


def is_log(path: Path) -> bool:
    """Whether a file begins as an event log does, of whatever version. A pipe is none: looking at it would empty it."""
    if not path.is_file():
        return False
    file = File.of(path)
    start = file.start(MAGIC)
    if start.startswith((_PARQUET, _ARROW_FILE, _ARROW_STREAM)):
        return True
    try:
        with opened(file, start) as lines:
            header = _object(lines.readline(_LONGEST_LINE))
    except (LogError, *BROKEN_STREAM):
        return False
    return isinstance(header, dict) and KEY in header


def opened(file: File, start: bytes) -> IO[bytes]:
    """The text of a file that begins with ``start``, unpacked."""
    if start.startswith(_GZIP):
        return cast("IO[bytes]", gzip.open(file.open() if file.piped or file.remote else file.name))
    if start.startswith(_ZSTD):
        return io.BufferedReader(compressed_stream(file), 1 << 16)
    return file.open()


# --------------------------------------------------------------------------------------------------------------------
# NDJSON


@attrs.frozen(eq=False)
class TextLog:
    """NDJSON: a header line, ``{"kvlatch-log": 2}``, then an object a line."""

    path: str
    version: int
    total: int
    declared: frozenset[str]
    process: str | None
    names: Names
    _file: IO[bytes]
    _header: int
    _size: int
    _follow: bool
    unit: str = "line"

    @classmethod
    def of(cls, source: File, start: bytes, batch: int, follow: bool) -> TextLog:
        """LogError if the header is not one, or of a version that this does not read; Unfinished if it is cut off."""
        file, text = opened(source, start), b""
        try:
            text = file.readline(_LONGEST_LINE)
            version, names, ops, process = _header(text)
        except (LogError, *BROKEN_STREAM) as error:
            file.close()
            said = str(error) if isinstance(error, LogError) else f"cannot be unpacked: {error}"
            cut = isinstance(error, LogError) and b"{".startswith(text[:1]) and not text.endswith(b"\n")
            raise (Unfinished if cut else LogError)(f"{source}, line 1: {said}") from error
        total = 0 if start.startswith((_GZIP, _ZSTD)) else source.size
        return cls(source.name, version, total, ops, process, names, file, len(text), batch, follow)

    def batches(self, part: Part | None = None, until: int | None = None) -> Iterator[Batch]:
        """See :class:`Log`. The file is closed at the end."""
        line, done = 1, self._header
        fault, cut = "", False
        text = b""
        with self._file:
            while not fault and line + 1 != until:
                events: list[Event] = []
                others: list[Glimpse] = []
                first = line
                while line - first < self._size and line + 1 != until:
                    try:
                        text = self._line(waiting=line == first)
                        if not text:
                            break
                        line += 1
                        done += len(text)
                        self._take(line, json.loads(text), part, events, others)
                    except Fault as error:
                        fault = f"{self.path}, line {line}: {error}"
                        break
                    except BROKEN_STREAM as error:
                        fault = f"{self.path}, after line {line}: cannot be read any further: {error}"
                        line += 1
                        break
                    except (ValueError, AttributeError, RecursionError):
                        cut = text[:1] == b"{" and not text.endswith(b"\n") and len(text) < _LONGEST_LINE
                        fault = f"{self.path}, line {line}: {_UNFINISHED if cut else _no_object(text)}"
                        break
                if line != first or not text:
                    yield Batch(events, others, done)
                if not text and not self._follow:
                    break
        if fault:
            raise (Unfinished if cut else LogError)(fault, line)

    def _take(self, line: int, said: Any, part: Part | None, events: list[Event], others: list[Glimpse]) -> None:
        """An event of the part, or what one of another part says of its table. Fault if it is neither."""
        room = said.get("room")
        mine = part is None or type(room) not in (int, str) or room in part
        glimpse = None if mine else glance(line, said, self.names, self.version)
        if glimpse is not None:
            others.append(glimpse)
        else:
            event = event_of(line, said, self.names, self.version)
            if mine:
                events.append(event)

    def close(self) -> None:
        """For a log that is not gone through."""
        self._file.close()

    def _line(self, *, waiting: bool) -> bytes:
        """The next line; where the log is followed, wait for the end of one that has begun, or for it to begin too."""
        text = self._file.readline(_LONGEST_LINE)
        while self._follow and (text or waiting) and not text.endswith(b"\n") and len(text) < _LONGEST_LINE:
            time.sleep(_LOOK_AGAIN)  # a file wakes nobody when it grows
            text += self._file.readline(_LONGEST_LINE)
        return text


def _header(text: bytes) -> tuple[int, Names, frozenset[str], str | None]:
    """What the first line says; LogError if it is no header of a version that this reads."""
    header = _object(text)
    if not isinstance(header, dict) or KEY not in header:
        if _SERVER.search(text) or b'"resourceSpans"' in text:
            raise LogError("an engine's own log or its spans: kvlatch convert LOG | kvlatch check -")
        raise LogError(f'{"empty" if not text else "not an event log"}: NDJSON begins with {{"{KEY}": {VERSIONS[-1]}}}')
    version = header[KEY]
    if type(version) is not int or version not in VERSIONS:
        raise LogError(f"version {version!r}, and this reads versions {' and '.join(map(str, VERSIONS))}")
    return version, Names.of(header), declared(header), process_of(header)


def _object(text: bytes) -> Any:
    """What a line says; None if it is no JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _no_object(text: bytes) -> str:
    if not text.strip():
        return "a blank line where an event should be"
    return f"not a JSON object{'' if text.endswith(bytes([10])) else ': the line is longer than any event'}"
