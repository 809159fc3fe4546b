"""Where a thread is, in words: in the manager's code, not in the standard library or in the oracle."""

from __future__ import annotations

import sys
import threading
from types import FrameType

from kvlatch.reference.oracle import interleave, table

_LIBRARY = threading.__file__.rpartition("/")[0] + "/"
ORACLE = {__file__, interleave.__file__, table.__file__}
"""The files of the oracle itself, which are no place in anybody's manager."""


def short(file: str, line: int) -> str:
    """A place in words: ``manager.py:42``."""
    return f"{file.rpartition('/')[2]}:{line}"


def place() -> str:
    """Where the calling thread is: in foreign code, else in the standard library."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename in ORACLE:
        frame = frame.f_back
    inner = frame
    while frame is not None and is_library(frame.f_code.co_filename):
        frame = frame.f_back
    found = frame or inner
    return "" if found is None else short(found.f_code.co_filename, found.f_lineno)


_INSIDE = tuple(_LIBRARY + folder for folder in ("concurrent/", "asyncio/", "logging/"))


def inside() -> bool:
    """Whether it is an executor, an event loop or a logger that makes what is being made, and not the manager."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (frame.f_code.co_filename in ORACLE or frame.f_code.co_filename == threading.__file__):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename.startswith(_INSIDE)


def is_library(file: str) -> bool:
    """A file of the standard library, or of the oracle."""
    return file in ORACLE or (file.startswith((_LIBRARY, "<frozen")) and "site-packages" not in file)
