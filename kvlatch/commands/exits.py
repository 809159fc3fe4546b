"""What a command comes to: an exit code, and one line if it fails.

0: what was asked holds; 1: it is violated, and a trace has been written; 2: usage, or bad input; 3: unknown, a
time-out, or a fault of foreign code; 4: it cannot be checked here; 70: an internal error, never to be read as a
verdict.
"""

from __future__ import annotations

from typing import Final

OK: Final = 0
VIOLATED: Final = 1
USAGE: Final = 2
UNKNOWN: Final = 3
CANNOT: Final = 4
INTERNAL: Final = 70
INTERRUPTED: Final = 130


class Failure(Exception):
    """What the user should read, in one line, and the exit code that goes with it."""

    def __init__(self, line: str, code: int) -> None:
        super().__init__(line)
        self.code = code
