"""The event log, version 2: what an event can say. ``docs/log-format.md`` says the same to whoever writes a log.

An event is something that one thread did for one room. The first five operations are about the status table, and their
``status`` is what the table showed right after; the others are about the rest of a request's life. Whatever a log
leaves out was not observed: a law that would need it is not judged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final, NamedTuple

import attrs

from kvlatch.spec.status import ABSENT, TERMINAL, KVPoll

VERSIONS: Final = (1, 2)
KEY: Final = "kvlatch-log"
"""The member of the header line, and the key of a schema's metadata, that says which version a log is in."""
MOST_ROOM: Final = 2**64 - 1
STATUSES: Final = (*(status.name for status in KVPoll), ABSENT)
"""What the table can show; a number in a log is an index into these."""
LIVE: Final = tuple(status.name for status in KVPoll if status not in TERMINAL)
"""Of a room that is shown as one of these, the request is not over."""
TABLE_OPS: Final = ("create", "clear", "poll", "abort", "write")
"""The operations of version 1."""
OPS: Final[Mapping[str, str]] = {
    "create": "a sender is made for a new request: it writes Bootstrapping",
    "clear": "the request's entry is removed from the table",
    "poll": "the table is looked at",
    "abort": "Failed is written, because the client or decode gives the request up",
    "write": "the status in `incoming` is written",
    "infos": "decode's metadata for the request is complete, and is stored",
    "forget": "decode's metadata is removed",
    "hold": "the request is given its KV pages",
    "release": "the request's KV pages go back to their pool",
    "enqueue": "a chunk is queued for the workers; `last` says that it is the request's last one",
    "drop": "a chunk is given up: nobody will send it",
    "take": "a worker takes a chunk from the queue",
    "post": "a worker starts the transfer of a chunk: from now on its pages are read",
    "arrive": "the transfer of a chunk has ended well: its pages are not read any more",
    "fail": "the transfer of a chunk has failed: its pages are not read any more",
    "tell": "decode (`peer`) is told that the request has ended as `incoming`",
    "conclude": "the sender reports `incoming`, a terminal status, to its scheduler from now on",
    "settle": "the scheduler is through with the request: nothing more will be done for it",
    "end": "the thread is through with the message or the chunk that it was about; `error` if it raised",
}
"""Every operation, in the order of its number in a column, with its meaning."""
EXPECTS: Final[Mapping[str, tuple[str, ...]]] = {
    "chunk": ("enqueue", "drop", "take", "post", "arrive", "fail"),
    "incoming": ("tell", "conclude"),
}
"""Fields that an operation cannot do without."""

Room = int | str


class LogError(ValueError):
    """A log that cannot be read, or not any further: one line that says where and why.

    ``line`` is the first line (or row) that was not read, if it is known.
    """

    exit_code: ClassVar[int] = 2

    def __init__(self, says: str, line: int = 0) -> None:
        super().__init__(says)
        self.line = line


class Unfinished(LogError):
    """A log that ends in the middle of a line, as a process leaves it that was killed: what came before is whole."""


class CannotCheck(LogError):
    """What would be needed is not installed, or not there."""

    exit_code = 4


class Event(NamedTuple):
    """One event. Each field but the first three is None where the log does not say it.

    ``line`` is that of the log (or its row, from 1); ``room`` an integer below 2**64 or a string; ``node`` and ``rank``
    say whose table it is; ``request`` tells apart the requests that use one room id; ``thread`` is who did it, and
    ``time`` when, in seconds; ``peer`` is whom a ``tell`` is for; ``error`` is what ended a thread.
    """

    line: int
    room: Room
    op: str
    status: str | None = None
    incoming: str | None = None
    node: str | None = None
    rank: str | None = None
    request: str | None = None
    chunk: int | None = None
    thread: str | None = None
    time: float | None = None
    peer: str | None = None
    last: bool = False
    error: str | None = None

    @property
    def after(self) -> str | None:
        """What is known of the entry afterwards, if the event says it."""
        return ABSENT if self.status is None and self.op == "clear" else self.status


@attrs.frozen
class Names:
    """How a log names statuses: ours, their numbers, and another engine's names from the header's ``statuses``."""

    known: Mapping[object, str] = attrs.field(
        factory=lambda: {name: name for name in STATUSES} | dict(enumerate(STATUSES))
    )

    @classmethod
    def of(cls, header: Mapping[str, object]) -> Names:
        """LogError if ``statuses`` is not an object that leads to statuses of ours."""
        given = header.get("statuses", {})
        if not isinstance(given, dict) or not all(value in STATUSES for value in given.values()):
            raise LogError(f'"statuses" must map names to {", ".join(STATUSES)}')
        names = cls()
        return cls({**names.known, **given})


def declared(header: Mapping[str, object]) -> frozenset[str]:
    """The operations that a log says it has: a header's ``ops``. LogError if it is no list of operations."""
    given = header.get("ops", [])
    if not isinstance(given, list) or not all(isinstance(op, str) and op in OPS for op in given):
        raise LogError(f'"ops" must be a list of operations: {", ".join(OPS)}')
    return frozenset(given)


def process_of(header: Mapping[str, object]) -> str | None:
    """Which process writes the log, by a header's ``process``: the tables of two are two. LogError if it is no name."""
    given = header.get("process")
    if given is not None and type(given) not in (str, int):
        raise LogError('"process" must be a string or an integer')
    return None if given is None else str(given)


def name_of(room: Room, node: str | None = None, rank: str | None = None) -> str:
    """A room as a reader knows it: ``room 7``, ``room 7 on prefill-0, rank 1``."""
    place = ", ".join([*([node] if node else []), *([f"rank {rank}"] if rank is not None else [])])
    shown = room if isinstance(room, int) or room.isprintable() else room.encode("unicode_escape").decode()
    return f"room {shown}{f' on {place}' if place else ''}"
