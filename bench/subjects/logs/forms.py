"""The forms in which the same run may be written: what a log leaves out, how it names things, in which order it comes.

No form makes a healthy run wrong. What a form leaves out was not observed.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from typing import Any, Final

Event = dict[str, Any]
Form = Callable[[list[Event], random.Random], list[Event]]

STATUSES: Final = ("Failed", "Bootstrapping", "WaitingForInput", "Transferring", "Success", "Absent")


def whole(events: list[Event], _: random.Random) -> list[Event]:
    """All there is."""
    return events


def bare(events: list[Event], _: random.Random) -> list[Event]:
    """No threads, no times."""
    return [{name: value for name, value in e.items() if name not in ("thread", "time")} for e in events]


def nameless(events: list[Event], _: random.Random) -> list[Event]:
    """No request numbers: early and late messages cannot be told from ghosts."""
    return [{name: value for name, value in event.items() if name != "request"} for event in events]


def table_only(events: list[Event], _: random.Random) -> list[Event]:
    """The operations of version 1, with node, rank and request."""
    return [event for event in events if event["op"] in ("create", "write", "poll", "abort", "clear")]


def unpolled(events: list[Event], _: random.Random) -> list[Event]:
    """Nobody logs polls."""
    return [event for event in events if event["op"] != "poll"]


def unseen(events: list[Event], draw: random.Random) -> list[Event]:
    """One status in three was not observed."""
    return [
        {name: value for name, value in event.items() if name != "status" or draw.random() > 1 / 3} for event in events
    ]


def numbers(events: list[Event], _: random.Random) -> list[Event]:
    """Statuses by number."""
    return [
        {name: STATUSES.index(value) if name in ("status", "incoming") else value for name, value in event.items()}
        for event in events
    ]


def by_process(events: list[Event], _: random.Random) -> list[Event]:
    """One file for each process, one behind the other."""
    return sorted(events, key=lambda event: (event["node"], event["rank"]))


def swapped(events: list[Event], draw: random.Random) -> list[Event]:
    """Neighbouring lines of one thread have changed places; their times say so."""
    events = list(events)
    place = [tuple(event.get(name) for name in ("room", "node", "rank", "thread")) for event in events]
    for i in range(0, len(events) - 1, 2):
        if place[i] == place[i + 1] and events[i]["time"] < events[i + 1]["time"] and draw.random() < 0.5:
            events[i], events[i + 1] = events[i + 1], events[i]
    return events


def cut(events: list[Event], draw: random.Random) -> list[Event]:
    """The process was killed somewhere in the middle."""
    return events[: draw.randrange(len(events))]


def one_sided(events: list[Event], _: random.Random) -> list[Event]:
    """Only prefill's first rank has kept its log."""
    return [event for event in events if event["node"] == "prefill-0" and event["rank"] == 0]


def begun(events: list[Event], draw: random.Random) -> list[Event]:
    """Each node's log begins somewhere: what came before has been rotated away."""
    starts = {node: draw.randrange(len(events)) for node in sorted({str(event["node"]) for event in events})}
    return [event for i, event in enumerate(events) if i >= starts[str(event["node"])]]


def set_back(events: list[Event], draw: random.Random) -> list[Event]:
    """The clock is set back by an hour, or by a minute."""
    at, by = draw.randrange(len(events)), draw.choice((60, 3600))
    return [event | {"time": event["time"] - by * (i >= at)} for i, event in enumerate(events)]


FORMS: Final[tuple[Form, ...]] = (
    whole, bare, nameless, table_only, unpolled, unseen, numbers, by_process, swapped, cut, one_sided, begun, set_back,
)  # fmt: skip
KEEPS_FAULTS: Final[tuple[Form, ...]] = (whole, bare, numbers, swapped)
"""Forms in which every planted fault can still be seen."""


def written(events: list[Event], packed: bool = False) -> bytes:
    """NDJSON, version 2, perhaps through gzip."""
    lines = [{"kvlatch-log": 2}, *events]
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines).encode()
    return gzip.compress(text) if packed else text
