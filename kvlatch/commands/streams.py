"""Standard output that may fail: its reader has gone, its disk is full, it was never opened.

None of these is a verdict. ``kvlatch prove | head -1`` goes on and exits as it would have without ``head``; what cannot
be written to a full disk is one line and exit 4.
"""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from kvlatch.commands.exits import CANNOT, Failure

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class _Raw(io.FileIO):
    """A standard stream as bytes. After a failure everything is swallowed: Python would fail once more at its end."""

    failed = False

    def write(self, data: ReadableBuffer) -> int:
        if not self.failed:
            try:
                return super().write(data) or 0
            except BrokenPipeError:
                self.failed = True
            except OSError as error:
                self.failed = True
                raise Failure(f"the output cannot be written: {error.strerror}", CANNOT) from error
        return memoryview(data).nbytes


def guard() -> None:
    """Make the standard streams of this process behave; a stream that a test has replaced is left alone."""
    if sys.__stdout__ is None:
        with suppress(OSError):
            os.open(os.devnull, os.O_WRONLY)  # the lowest number that is free: no other file gets it
        sys.stdout = io.TextIOWrapper(io.BytesIO())
    elif sys.stdout is sys.__stdout__:
        sys.stdout = _text(1, line_buffering=sys.stdout.line_buffering)
    if sys.__stderr__ is None:
        sys.stderr = io.TextIOWrapper(io.BytesIO())
    elif sys.stderr is sys.__stderr__:
        sys.stderr = _text(2, line_buffering=True)


def _text(number: int, *, line_buffering: bool) -> io.TextIOWrapper:
    """What the locale cannot say is written with escapes, and so is a file name that is not UTF-8."""
    encoding = (sys.stdout if number == 1 else sys.stderr).encoding
    raw = io.BufferedWriter(_Raw(number, "w", closefd=False))
    return io.TextIOWrapper(raw, encoding, errors="backslashreplace", line_buffering=line_buffering)
