"""The log of one process while it is written: an event costs its host a lock and an append, a thread writes it down.

Formatting and the write to the operating system happen twenty times a second in a thread of the tape's own, in whole
lines and without the lock that the host takes, so a killed process leaves a readable log that lacks at most the last
moment. If the events come faster than they can be written, whoever brings one event too many writes them all itself:
nothing is left out, since a log with gaps accuses the innocent, and memory stays bounded.
"""

from __future__ import annotations

import atexit
import collections
import json
import os
import sys
import threading
import time
import weakref
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

INTERVAL: Final = 0.05
"""Seconds between two writes."""
MOST_WAITING: Final = 1 << 14
"""Events in memory, about 4 MB."""
STATUS: Final = ("Failed", "Bootstrapping", "WaitingForInput", "Transferring", "Success")
VERSION: Final = 2


class _Mine(threading.local):
    """What a tape knows of the calling thread: its name, which a thread that has ended no longer tells."""

    thread = ""


class Tape:
    """An event log that is being written. ``lock`` is held over a change of a table and the call of ``note``.

    ``path`` gets the process's number: ``name.4711.ndjson``, and in a forked child a number of its own. ``about`` is
    for people. OSError if it cannot be created.
    """

    def __init__(
        self, path: Path, ops: Collection[str], node: str | None = None, rank: str | None = None,
        about: str = "",
    ) -> None:  # fmt: skip
        self.failed = ""
        """Why nothing is recorded any more."""
        self._stem = path
        place = {name: value for name, value in (("node", node), ("rank", rank)) if value is not None}
        self._place = "".join(f', "{name}": {json.dumps(value)}' for name, value in place.items())
        self._header = {"kvlatch-log": VERSION, "ops": list(ops)} | ({"about": about} if about else {})
        self._wall = time.time() - time.monotonic()
        self._mine = _Mine()
        self._begin()
        self._open()
        alive = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: _in_child(alive()))
        atexit.register(_at_exit, alive)

    def _begin(self) -> None:
        """What a process has of its own."""
        self.lock = threading.RLock()
        self.events = 0
        self._waiting: list[tuple[Any, ...]] = []
        self._batches: collections.deque[list[tuple[Any, ...]]] = collections.deque()
        self._writing = threading.RLock()
        self._closed = threading.Event()
        self._file: int | None = None

    def _open(self) -> None:
        number, path = 1, self._stem.with_name(f"{self._stem.name}.{os.getpid()}.ndjson")
        while True:
            try:
                self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
                break
            except FileExistsError:
                number += 1
                path = self._stem.with_name(f"{self._stem.name}.{os.getpid()}-{number}.ndjson")
        self.path = path
        process = f"{os.getpid()}-{time.time_ns()}"
        _write(self._file, json.dumps(self._header | {"process": process}) + "\n")
        writer = threading.Thread(
            target=_keep_writing, args=(weakref.ref(self), self._closed), name="kvlatch", daemon=True
        )
        writer.start()

    def note(
        self, op: str, room: int | str, status: int | None = -1, incoming: int | None = None,
        request: str | None = None, chunk: int | None = None, last: bool = False, peer: str | None = None,
        error: str | None = None,
    ) -> None:  # fmt: skip
        """Take an event down, with the calling thread and the time. ``status`` is None for no entry, -1 for unobserved.

        Statuses are the engine's numbers, which are KVPoll's.
        """
        if self.failed:
            return
        thread = self._mine.thread or self._named()
        with self.lock:
            self._waiting.append(
                (time.monotonic(), thread, op, room, status, incoming, request, chunk, last, peer, error)
            )
            full = len(self._waiting) >= MOST_WAITING or self._file is None
        if full:
            self.flush()

    def _named(self) -> str:
        """The name of the calling thread, in JSON."""
        self._mine.thread = name = json.dumps(threading.current_thread().name)
        return name

    def flush(self) -> None:
        """Write down what is waiting. Whoever holds ``lock`` may take ``_writing``, but not the other way round."""
        with self.lock:
            if self._waiting:
                self._batches.append(self._waiting)
                self._waiting = []
        with self._writing:
            try:
                if self._file is None and self._batches and not self.failed:
                    self._open()
                while self._batches:
                    self._put(self._batches.popleft())
            except Exception as error:  # noqa: BLE001  # a full disk, most likely: the server must not notice
                self.stop(error)

    def _put(self, events: list[tuple[Any, ...]]) -> None:
        if self.failed or self._file is None:
            return
        _write(self._file, "".join([self._line(*event) for event in events]))
        self.events += len(events)

    def _line(
        self, moment: float, thread: str, op: str, room: int | str, status: int | None, incoming: int | None,
        request: str | None, chunk: int | None, last: bool, peer: str | None, error: str | None,
    ) -> str:  # fmt: skip
        """One event as the format has it."""
        shown = "" if status == -1 else ', "status": "Absent"' if status is None else f', "status": "{STATUS[status]}"'
        more = f', "incoming": "{STATUS[incoming]}"' if incoming is not None else ""
        if request is not None:
            more += f', "request": "{request}"'
        if chunk is not None:
            more += f', "chunk": {chunk}' + (', "last": true' if last else "")
        if peer is not None:
            more += f', "peer": {json.dumps(peer)}'
        if error is not None:
            more += f', "error": {json.dumps(error)}'
        where = room if type(room) is int and room >= 0 else _id(room)
        return (
            f'{{"room": {where}, "op": "{op}"{shown}{more}{self._place}, "thread": {thread}, '
            f'"time": {self._wall + moment:.6f}}}\n'
        )

    def stop(self, error: BaseException | str) -> None:
        """Record nothing any more, and say so once. What is waiting is given up: it may be what cannot be written."""
        if not self.failed:
            self.failed = f"{type(error).__name__}: {error}" if isinstance(error, BaseException) else error
            say(f"{self.path}: the recording ends here: {self.failed}")
        self._waiting = []
        self._batches.clear()

    def close(self) -> None:
        """Write down the rest, and close the file."""
        self.flush()
        with self._writing:
            self.failed = self.failed or "closed"
            self._closed.set()
            if self._file is not None:
                os.close(self._file)
                self._file = None


def say(line: str) -> None:
    """One line for whoever runs the server."""
    try:
        sys.stderr.write(f"kvlatch: {line}\n")
        sys.stderr.flush()
    except Exception:  # noqa: BLE001, S110  # a server may have closed its standard error, and that is not our business
        pass


def _write(file: int, text: str) -> None:
    """All of it, however much the system takes at a time."""
    rest = memoryview(text.encode())
    while rest:
        rest = rest[os.write(file, rest) :]


def _keep_writing(tape: weakref.ref[Tape], closed: threading.Event) -> None:
    while not closed.wait(INTERVAL):
        if (alive := tape()) is None:
            return
        alive.flush()
        del alive


def _at_exit(tape: weakref.ref[Tape]) -> None:
    if (alive := tape()) is not None:
        alive.close()


def _in_child(tape: Tape | None) -> None:
    """A forked process writes a log of its own once it has something to say; its parent writes what is waiting."""
    if tape is None or tape.failed:
        return
    if tape._file is not None:
        os.close(tape._file)
    tape._begin()


def _id(room: Any) -> str:
    """A room id that is no plain unsigned integer, as JSON: a NumPy integer is one, a negative one is a string."""
    if hasattr(room, "__index__"):
        number = int(room)
        return str(number) if number >= 0 else f'"{number}"'
    return json.dumps(room if isinstance(room, str) else str(room))
