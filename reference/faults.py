"""What keeps foreign code from being judged at all."""

from __future__ import annotations

from typing import ClassVar


class AdapterFault(Exception):
    """The code cannot be driven: it does not answer, or its answer is not one. That says nothing about any law."""

    exit_code: ClassVar[int] = 3


class Refused(Exception):
    """Foreign code was not judged: one line that says why, and the exit code that goes with it."""

    def __init__(self, line: str, exit_code: int) -> None:
        super().__init__(" ".join(line.split()))
        self.exit_code = exit_code
