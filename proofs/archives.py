"""Where certificates are: a directory, or one archive of it, which is not trusted.

An archive is read to its end before anything of it is written, and what certificates cannot be is refused: too many
files, too large ones, and names that could lie outside or hide another.
"""

from __future__ import annotations

import gzip
import io
import re
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO, Final, cast

MOST_FILES: Final = 50_000
MOST_BYTES_OF_A_FILE: Final = 32 * 2**20
MOST_BYTES: Final = 512 * 2**20
"""What certificates may hold, all together. Those that ship have 1,170 files, 12 MB, and half a MB in the largest."""
NAME: Final = r"[A-Za-z0-9_+*][A-Za-z0-9_.+*-]*(/[A-Za-z0-9_+*][A-Za-z0-9_.+*-]*){0,3}"
"""A name of a file in a certificate directory: at most four parts, none of which begins with a dot."""


class Malformed(ValueError):
    """This is no certificate directory, in one line."""


@contextmanager
def opened(path: Path) -> Iterator[Path]:
    """A certificate directory; an archive of one is unpacked while it is looked at. Malformed if it is neither."""
    if path.is_dir():
        _check_sizes((file.relative_to(path).as_posix(), _size(file)) for file in path.rglob("*") if not file.is_dir())
        yield path
        return
    with TemporaryDirectory(prefix="kvlatch-") as scratch:
        try:
            _check_archive(path)
            with tarfile.open(path, "r:gz") as archive:
                _unpack(archive, Path(scratch))
        except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
            raise Malformed(f"{path}: not an archive of certificates: {error}") from error
        yield Path(scratch)


class _Capped(io.RawIOBase):
    """A stream that raises Malformed past a number of bytes, whatever size it claims to have."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self._left = stream, MOST_BYTES

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size if 0 <= size <= self._left else self._left + 1)
        self._left -= len(data)
        if self._left < 0:
            raise Malformed(f"unpacked, it has more than {MOST_BYTES // 2**20} MiB, which no certificates have")
        return data


def _check_archive(path: Path) -> None:
    """Read an archive to its end, before anything of it is written: Malformed if it holds too much, or a bad name."""
    with gzip.open(path) as stream, tarfile.open(fileobj=_Capped(cast(BinaryIO, stream)), mode="r|") as archive:
        _check_sizes(_named(archive))


def _named(archive: tarfile.TarFile) -> Iterator[tuple[str, int | None]]:
    """The members with their sizes; Malformed for a name that could lie outside, or hide another."""
    seen: set[str] = set()
    for member in archive:
        if not re.fullmatch(NAME, member.name) or member.name in seen:
            raise Malformed(f"{member.name}: not a file of a certificate directory")
        seen.add(member.name)
        yield member.name, member.size if member.isreg() else None


def _size(file: Path) -> int | None:
    return file.stat().st_size if file.is_file() and not file.is_symlink() else None


def _check_sizes(files: Iterable[tuple[str, int | None]]) -> None:
    """Malformed unless all are plain files (with a size, not None), neither too many nor too large."""
    total = 0
    for number, (name, size) in enumerate(files, 1):
        if size is None:
            raise Malformed(f"{name}: not a file of a certificate directory")
        total += size
        if size > MOST_BYTES_OF_A_FILE or total > MOST_BYTES or number > MOST_FILES:
            raise Malformed(f"{name}: too large, or one too many: no certificates have so much")


def _unpack(archive: tarfile.TarFile, directory: Path) -> None:
    """Write the files of an archive that has been checked."""
    for member in archive:
        content = archive.extractfile(member)
        if content is None:
            raise Malformed(f"{member.name}: not a file of a certificate directory")
        target = directory / member.name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content.read())
