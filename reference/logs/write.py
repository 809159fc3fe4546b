"""Write an event log, version 2: NDJSON, a whole line in one write, so that a process that is killed leaves a log.

This is what a writer in another language has to do too: a header that says which operations the log has, then for each
event a line that goes to the operating system as a whole, in the order in which the table changed. Hold the lock of the
table over the store and the call here: otherwise two lines can change places.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Collection
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from kvlatch.reference.logs.events import EXPECTS, KEY, MOST_ROOM, OPS, STATUSES, VERSIONS, Room
from kvlatch.spec.status import KVPoll

_STARTED: Final = time.time_ns()
_NAMED: Final = {None: "Absent"} | {status: status.name for status in KVPoll}


class LogWriter:
    """Writes one process's log; safe for any number of threads. ``ops`` are the operations that it will have.

    ``node`` and ``rank`` are put into every event. ``process`` tells this process from the next one of the same name,
    whose table begins empty; two logs of one process have the same. OSError if the file cannot be written; it must not
    exist yet.
    """

    def __init__(
        self,
        path: Path,
        ops: Collection[str] = tuple(OPS),
        *,
        node: str | None = None,
        rank: int | str | None = None,
        process: str | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if unknown := [op for op in ops if op not in OPS]:
            raise ValueError(f"no operation is called {unknown[0]!r}: they are {', '.join(OPS)}")
        self._ops = frozenset(ops)
        self._place = {name: value for name, value in (("node", node), ("rank", rank)) if value is not None}
        self._clock = clock
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        whose = process or f"{os.getpid()}-{_STARTED}"
        self._line({KEY: VERSIONS[-1], "ops": [op for op in OPS if op in self._ops], "process": whose})

    def event(self, op: str, room: Room, status: KVPoll | str | None = "", **more: Any) -> None:
        """Write one event now. ``status`` is what the table shows: None for no entry, left out where nobody looked.

        ``more`` are the other fields of the format. ValueError for an event that no reader would take.
        """
        if op not in self._ops:
            raise ValueError(f"{op!r} is not among the operations that this log says it has")
        if isinstance(room, int) and not 0 <= room <= MOST_ROOM:
            raise ValueError(f"{room} is not a room id: it is from 0 to 2**64 - 1, or a string")
        for field, ops in EXPECTS.items():
            if op in ops and more.get(field) is None:
                raise ValueError(f"{op!r} says which {field!r}")
        shown = status if isinstance(status, str) else _NAMED[status]
        if shown and shown not in STATUSES:
            raise ValueError(f"{shown!r} is not a status: they are {', '.join(STATUSES)}")
        if isinstance(more.get("incoming"), KVPoll):
            more["incoming"] = more["incoming"].name
        said = {"room": room, "op": op} | ({"status": shown} if shown else {}) | self._place
        self._line(said | {"time": round(self._clock(), 6)} | more)

    def _line(self, said: dict[str, Any]) -> None:
        os.write(self._file, json.dumps(said).encode() + b"\n")

    def close(self) -> None:
        """Close the file; what was written is there without it."""
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
