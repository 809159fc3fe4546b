"""Files to convert: which engine each belongs to, in which order they come, and what they are."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import Final

from kvlatch.reference.logs.converting.digest import Digest, Said
from kvlatch.reference.logs.converting.messages import Side
from kvlatch.reference.logs.converting.spans import Spans, is_spans
from kvlatch.reference.logs.converting.text import LONGEST, Engine
from kvlatch.reference.logs.events import KEY, VERSIONS, LogError
from kvlatch.reference.logs.files import STDIN, File
from kvlatch.reference.logs.read import BROKEN_STREAM, MAGIC, opened

HEADER: Final = {KEY: VERSIONS[-1], "converted": True}
"""The first line of the log. It declares no operations: nothing is logged each time that it happens."""
_START: Final = 1 << 12
"""Bytes at the start of a file that say what it is, and when it begins."""
_STAMP: Final = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)")


def converted(paths: Sequence[Path | str], name: str | None, side: Side | None, digest: Digest) -> Iterator[Said]:
    """The events of text logs, or of spans: members for a line each, and what was found in the digest.

    Files of one name, up to its first dot, are one engine's, and come in the order of their first times, as a rotated
    log should. ``name`` makes all of them one engine's. LogError if a file cannot be read, or for text and spans at
    once.
    """
    starts = {path: _start(path) for path in paths}
    kinds = {is_spans(start) for start in starts.values()}
    if len(kinds) > 1:
        raise LogError("text logs and spans are converted one after the other: their clocks are not the same")
    if True in kinds:
        spans = Spans(digest)
        for path in paths:
            with _lines(path) as lines:
                spans.read(str(path), lines)
        events: Iterable[Said] = spans.events()
    else:
        events = _of_text({path: name or _engine(path, paths) for path in paths}, starts, side, digest)
    for said in events:
        digest.events += 1
        yield said


def unit_of(paths: Sequence[Path | str]) -> str:
    """What the files consist of."""
    return "span" if is_spans(_start(paths[0])) else "line"


def _of_text(
    engines: dict[Path | str, str], starts: dict[Path | str, str], side: Side | None, digest: Digest
) -> Iterator[Said]:
    for name in dict.fromkeys(engines.values()):
        engine = Engine(name, digest, side)
        files = [path for path, of in engines.items() if of == name]
        for path in sorted(files, key=lambda path: _first_time(starts[path])):
            with _lines(path) as lines:
                yield from engine.events(str(path), lines)
        engine.close()


def _engine(path: Path | str, among: Sequence[Path | str]) -> str:
    """What an engine is called: its file's name up to the first dot, with the folder where two would be the same."""
    own = Path(path)
    stem = "stdin" if str(path) in STDIN else own.name.lstrip(".").partition(".")[0]
    folders = {Path(other).parent for other in among if Path(other).name.lstrip(".").partition(".")[0] == stem}
    return stem if len(folders) < 2 else f"{own.parent}/{stem}"


def _first_time(start: str) -> str:
    found = _STAMP.search(start)
    return found[1] if found else ""


def _start(path: Path | str) -> str:
    """The first characters of a file; of a packed pipe nothing, so that it is taken for text."""
    file = File.of(path)
    if file.piped:
        return file.start(_START).decode("utf-8", "replace")
    try:
        with opened(file, file.start(MAGIC)) as text:
            return text.read(_START).decode("utf-8", "replace")
    except BROKEN_STREAM as error:
        raise LogError(f"{path}: {error}") from error


@contextmanager
def _lines(path: Path | str) -> Iterator[Iterator[str]]:
    """The lines of a file, unpacked. LogError where it cannot be read any further."""
    file = File.of(path)
    try:
        with TextIOWrapper(opened(file, file.start(MAGIC)), encoding="utf-8", errors="replace") as text:
            yield iter(lambda: text.readline(LONGEST), "")
    except BROKEN_STREAM as error:
        raise LogError(f"{path}: {error}") from error
