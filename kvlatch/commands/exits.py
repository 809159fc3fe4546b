"""The exit codes of every command, and the one line that goes with each but 0 and 1.

0: everything that was judged holds, and something was judged. 1: a law or a property is broken, and a run shows it.
2: usage, bad input, nothing selected, or a user's module that does not import. 3: unknown, a time-out, nothing judged,
or foreign code that cannot be driven. 4: it cannot be done here: no network, a missing package, a full disk.
70: an internal error, never to be read as a verdict. 130: interrupted.
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
        super().__init__(" ".join(line.split()))
        self.code = code
