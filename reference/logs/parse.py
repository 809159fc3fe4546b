"""One event from its members, as JSON or a row of columns has them; a fault is said in half a sentence."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from kvlatch.reference.logs.events import EXPECTS, MOST_ROOM, OPS, STATUSES, TABLE_OPS, Event, Names
from kvlatch.reference.logs.parts import Glimpse
from kvlatch.spec.status import ABSENT, TERMINAL

LONGEST_TIME: Final = 1e18
"""Seconds, more than any clock has; no NaN is below it."""
_NUMBERED: Final = tuple(OPS)
_TERMINAL: Final = tuple(status.name for status in TERMINAL)
_EXPECTED: Final = {op: field for field, ops in EXPECTS.items() for op in ops}
_KEYS: Final = ("node", "rank", "request")


class Fault(ValueError):
    """What is wrong with an event."""

    @property
    def in_columns(self) -> str:
        """The same, of a column and not of a member."""
        return re.sub(r'"(\w+)"', r"'\1'", str(self), count=1)


def event_of(line: int, said: Mapping[str, Any], names: Names, version: int) -> Event:
    """The event; Fault if it is none. Members that the format does not know are not looked at."""
    known = names.known
    get = said.get
    room, op, status, incoming = get("room"), get("op"), get("status"), get("incoming")
    if type(room) is not int and type(room) is not str:
        raise Fault('no "room"' if room is None else f'"room" is {_shown(room)}, and must be an integer or a string')
    if type(room) is int and not 0 <= room <= MOST_ROOM:
        raise Fault(f'"room" is {_shown(room)}, and must be an integer from 0 to 2**64 - 1, or a string')
    if type(op) is int and 0 <= op < len(_NUMBERED):
        op = _NUMBERED[op]
    if type(op) is not str or op not in OPS or (version == 1 and op not in TABLE_OPS):
        raise Fault('no "op"' if op is None else _not_one('"op"', op, TABLE_OPS if version == 1 else OPS))
    if status is not None:
        status = _status(status, "status", known)
    if incoming is not None:
        incoming = _status(incoming, "incoming", known)
        if incoming == ABSENT:
            raise Fault(_not_one('"incoming"', ABSENT, STATUSES[:-1]))
    thread, time = get("thread"), get("time")
    thread = str(thread) if type(thread) in (str, int) and thread != "" else None
    time = float(time) if isinstance(time, int | float) and _is_time(time) else None
    if version == 1:
        return Event(line, room, op, status, incoming, None, None, None, None, thread, time)
    node, rank, request = (_key(name, get(name)) for name in _KEYS)
    chunk = get("chunk")
    if chunk is not None and (type(chunk) is not int or chunk < 0):
        raise Fault(f'"chunk" is {_shown(chunk)}, and must be an integer that is not negative')
    if op in _EXPECTED and (chunk if _EXPECTED[op] == "chunk" else incoming) is None:
        raise Fault(f'no "{_EXPECTED[op]}", which {op!r} cannot do without')
    if op in EXPECTS["incoming"] and incoming not in _TERMINAL:
        raise Fault(_not_one('"incoming"', incoming, _TERMINAL))
    peer, error = get("peer"), get("error")
    return Event(
        line, room, op, status, incoming, node, rank, request, chunk, thread, time,
        str(peer) if type(peer) in (str, int) else None, get("last") is True,
        str(error) if error not in (None, False, "") else None,
    )  # fmt: skip


def glance(line: int, said: Mapping[str, Any], names: Names, version: int) -> Glimpse | None:
    """What an event says of its table, at a fifth of the price; None if that much of it is not right."""
    get = said.get
    op, status, incoming, time = get("op"), get("status"), get("incoming"), get("time")
    if type(op) is int and 0 <= op < len(_NUMBERED):
        op = _NUMBERED[op]
    if type(op) is not str or op not in OPS or (version == 1 and op not in TABLE_OPS):
        return None
    if status is not None:
        status = names.known.get(status) if type(status) in (str, int) else None
        if status is None:
            return None
    incoming = names.known.get(incoming) if type(incoming) in (str, int) else None
    time = float(time) if isinstance(time, int | float) and _is_time(time) else None
    if version == 1:
        return Glimpse(None, None, op, status, incoming, time, line, time)
    node, rank = get("node"), get("rank")
    if not all(value is None or type(value) in (str, int) for value in (node, rank)):
        return None
    node, rank = (None if value is None else str(value) for value in (node, rank))
    return Glimpse(node, rank, op, status, incoming, time, line, time)


def _status(value: object, field: str, known: Mapping[object, str]) -> str:
    found = known.get(value) if type(value) in (str, int) else None
    if found is None:
        raise Fault(_not_one(f'"{field}"', value, STATUSES if field == "status" else STATUSES[:-1]))
    return found


def _is_time(value: float) -> bool:
    return type(value) is not bool and abs(value) < LONGEST_TIME


def _key(name: str, value: object) -> str | None:
    if value is None or type(value) is str:
        return value
    if type(value) is int:
        return str(value)
    raise Fault(f'"{name}" is {_shown(value)}, and must be a string or an integer')


def _not_one(field: str, value: object, names: Iterable[str]) -> str:
    return f"{field} is {_shown(value)}, and must be one of {', '.join(names)}"


def _shown(value: object) -> str:
    """A value as it stands in the log, cut to a size that a line of output can take."""
    text = json.dumps(value, default=repr)
    return text if len(text) <= 80 else f"{text[:77]}..."
