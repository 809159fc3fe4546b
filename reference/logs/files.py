"""Where a log lies: a file of this machine, standard input (``-``), or a URL that fsspec opens (``s3://bucket/log``)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import IO, Any, Final, cast

import attrs

from kvlatch.reference.logs.events import CannotCheck, LogError

STDIN: Final = ("-", "/dev/stdin")
_SCHEME: Final = "://"


def is_url(name: str | Path) -> bool:
    """Whether a name is a URL and no path."""
    return isinstance(name, str) and _SCHEME in name


@attrs.frozen
class File:
    """A file to read from, by its name."""

    name: str

    @classmethod
    def of(cls, name: str | Path) -> File:
        """The file of that name, a path or a URL."""
        return cls(str(name))

    def __str__(self) -> str:
        return self.name

    @property
    def piped(self) -> bool:
        """Whether it is standard input."""
        return self.name in STDIN

    @property
    def remote(self) -> bool:
        """Whether it is a URL."""
        return is_url(self.name)

    @property
    def regular(self) -> bool:
        """Whether it can be read again from its start, and has a size. A device or a pipe has neither."""
        return self.remote or Path(self.name).is_file()

    @property
    def size(self) -> int:
        """In bytes; 0 if it is not known."""
        if self.remote:
            with self.open() as file:
                return int(getattr(file, "size", None) or 0)
        return Path(self.name).stat().st_size if self.regular else 0

    def start(self, count: int) -> bytes:
        """Its first bytes; none of a device or a pipe, of which nothing could be looked at and left."""
        if self.piped:
            buffered: Any = sys.stdin.buffer
            return cast("bytes", buffered.peek(count)[:count])
        if not self.regular:
            return b""
        with self.open() as file:
            return file.read(count)

    def open(self) -> IO[bytes]:
        """The bytes. OSError if it cannot be opened, LogError if nothing here can open such a URL."""
        if self.piped:
            return sys.stdin.buffer
        if not self.remote:
            return Path(self.name).open("rb")
        try:
            import fsspec
        except ImportError as error:
            raise CannotCheck(f"{self.name}: URLs are read with fsspec: install kvlatch[dask]") from error
        try:
            return cast("IO[bytes]", fsspec.open(self.name, "rb").open())
        except ImportError as error:  # fsspec names the package that its protocol needs
            raise CannotCheck(f"{self.name}: {error}") from error
        except OSError:
            raise
        except Exception as error:  # each store raises its own kinds
            raise LogError(f"{self.name}: {error}") from error
