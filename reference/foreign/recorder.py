"""What a process was doing when it ended, as a flight recorder keeps it.

A child process writes what it is about to do into a file that its parent has mapped into memory too. The words are
still there when the child has been killed, and a number that grows with them tells a child that works from one that
does not. Nothing is recorded in a process that has no recorder: then each call here returns at once.

Standard library only, and nothing of kvlatch: the oracle calls this in the middle of foreign code.
"""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path
from typing import Final, Self

_HEAD: Final = struct.Struct("<QII")
"""Beats, bytes of what goes on now, bytes of the steps before."""
_NOW: Final = 1 << 10
_STEPS: Final = 1 << 18
_SIZE: Final = _HEAD.size + _NOW + _STEPS


class Recorder:
    """The memory that two processes share."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self._beats, self._now, self._steps = _HEAD.unpack_from(memory)

    @classmethod
    def make(cls, path: Path) -> Self:
        """A recorder in a file that is not there yet."""
        with path.open("xb") as file:
            file.truncate(_SIZE)
        return cls.open(path)

    @classmethod
    def open(cls, path: Path) -> Self:
        """A recorder that another process has made."""
        with path.open("r+b") as file:
            return cls(mmap.mmap(file.fileno(), _SIZE))

    # --- By the child ---

    def write(self, now: str, step: str | None) -> None:
        """Put down what goes on now; ``step`` is kept, too, with those before it."""
        words = now.encode(errors="replace")[:_NOW]
        self._memory[_HEAD.size : _HEAD.size + len(words)] = words
        if step is not None:
            line = f"{step}\n".encode(errors="replace")
            if self._steps + len(line) > _STEPS:
                self._steps = 0  # of a very long play, the end
            at = _HEAD.size + _NOW + self._steps
            self._memory[at : at + len(line)] = line
            self._steps += len(line)
        self._beats += 1
        _HEAD.pack_into(self._memory, 0, self._beats, len(words), self._steps)

    def fresh(self) -> None:
        """Forget the steps: others begin."""
        self._steps = 0

    # --- By the parent ---

    @property
    def beats(self) -> int:
        """How much has been put down."""
        return int(_HEAD.unpack_from(self._memory)[0])

    @property
    def now(self) -> str:
        """What goes on."""
        length = _HEAD.unpack_from(self._memory)[1]
        return self._memory[_HEAD.size : _HEAD.size + length].decode(errors="replace")

    @property
    def steps(self) -> list[str]:
        """What has been done since the last fresh start."""
        length, at = _HEAD.unpack_from(self._memory)[2], _HEAD.size + _NOW
        return self._memory[at : at + length].decode(errors="replace").splitlines()


_mine: Recorder | None = None
"""The recorder of this process, if a parent watches it."""


def keep(recorder: Recorder | None) -> None:
    """From now on this process puts down what it does."""
    global _mine  # noqa: PLW0603  # one process, one recorder
    _mine = recorder


os.register_at_fork(after_in_child=lambda: keep(None))  # what a copy of this process does is not what this one does


def kept() -> bool:
    """What is put down is kept: the words are worth making."""
    return _mine is not None


def fresh() -> None:
    """Something begins, for which the steps before do not count."""
    if _mine is not None:
        _mine.fresh()


def now(what: str) -> None:
    """This goes on from now."""
    if _mine is not None:
        _mine.write(what, None)


def step(what: str) -> None:
    """This goes on from now, and is kept as a step."""
    if _mine is not None:
        _mine.write(what, what)
