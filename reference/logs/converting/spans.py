"""SGLang's OpenTelemetry spans as events: OTLP in JSON, as a collector's file exporter writes it.

A request has a root span with its room, in hexadecimal; below it is a span for each thread that works on it, with the
thread's rank; below that, one for each stage that it has been through. A stage is exported once it is over, so a
request that hangs leaves no span of the stage that it hangs in. Spans tell how a request ended at either end. When a
collector has no room it drops spans, so no request is accused of a span that is not there.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import attrs

from kvlatch.reference.logs.converting.digest import Digest, Place, Said
from kvlatch.reference.logs.converting.messages import ABORTED, MESSAGES, TOLD, Side
from kvlatch.reference.logs.events import MOST_ROOM, LogError

ENDED: Final[Mapping[str, Side]] = {"prefill_transfer_kv_cache": "prefill", "decode_transferred": "decode"}
"""Stages that are over only when the request has ended as Success at that end."""
BEGUN: Final[Mapping[str, Side]] = {
    "prefill_prepare": "prefill", "prefill_bootstrap": "prefill", "decode_prepare": "decode",
    "decode_bootstrap": "decode", "decode_waiting": "decode",
}  # fmt: skip
"""Other stages of a transfer: whose they are."""
ROOM: Final = "bootstrap_room"
RANKS: Final = ("dp_rank", "tp_rank", "pp_rank")
OPEN: Final = 300.0
"""Seconds after its last stage for which a request must be without an end to be listed."""
_DEEPEST: Final = 64
"""Spans from a stage to its root; a longer chain is a circle."""
_NO_JSON: Final = object()
_ERROR: Final = (2, "STATUS_CODE_ERROR")


@attrs.frozen
class _Span:
    """A span; ``at`` is when it ended, in seconds."""

    place: Place
    name: str
    trace: str
    parent: str
    at: float
    attributes: Mapping[str, object]
    failed: bool


@attrs.define
class Spans:
    """The spans of some files. All of them are held, since a parent may come after its child, or in another file."""

    digest: Digest
    _spans: dict[tuple[str, str], _Span] = attrs.field(factory=dict)
    _rooms: dict[str, set[int]] = attrs.field(factory=dict)
    """The rooms that the roots of a trace name."""

    def read(self, file: str, text: Iterable[str]) -> None:
        """Take in a file: one JSON document, or one in each line. LogError if it is none.

        A last line that is cut off, as a process leaves it that was killed, is left out.
        """
        lines = iter(text)
        first = next(lines, "")
        whole = _json(first)
        if whole is _NO_JSON:  # one document, in many lines
            whole = _json("".join([first, *lines]))
            if whole is _NO_JSON:
                raise LogError(f"{file}: it is not OTLP in JSON")
        self._document(file, whole)
        for number, line in enumerate(lines, 2):
            said = _json(line)
            if said is not _NO_JSON:
                self._document(f"{file}:{number}", said)
            elif not line.endswith("\n"):
                self.digest.leave_out("a last line that is cut off")
            elif line.strip():
                raise LogError(f"{file}, line {number}: it is not OTLP in JSON")

    def _document(self, file: str, said: object) -> None:
        for resource in _list(said, "resourceSpans"):
            for scope in _list(resource, "scopeSpans") or _list(resource, "instrumentationLibrarySpans"):
                for span in _list(scope, "spans"):
                    self.digest.read += 1
                    self._take(Place(file, self.digest.read), span)

    def _take(self, place: Place, span: object) -> None:
        if not isinstance(span, dict):
            return
        attributes = {
            str(one.get("key")): _value(one.get("value")) for one in _list(span, "attributes") if isinstance(one, dict)
        }
        try:
            at = int(span.get("endTimeUnixNano") or 0) / 1e9
        except (TypeError, ValueError):
            return
        status = span.get("status")
        failed = isinstance(status, dict) and status.get("code") in _ERROR
        trace, own, parent = (str(span.get(name) or "") for name in ("traceId", "spanId", "parentSpanId"))
        one = _Span(place, str(span.get("name")), trace, parent, at, attributes, failed)
        self._spans[trace, own] = one
        if (room := _room(attributes)) is not None:
            self._rooms.setdefault(trace, set()).add(room)

    def events(self) -> list[Said]:
        """The members of the events, in the order of time; what has no end goes into the digest."""
        found: list[tuple[float, Said]] = []
        last: dict[tuple[str, int, str | None], tuple[float, Place]] = {}
        over: set[tuple[int, str]] = set()
        newest = max((span.at for span in self._spans.values()), default=0.0)
        for span in self._spans.values():
            known = self._known(span)
            if known is None:
                continue
            side, room, rid, place = known
            thread = self._thread(span)
            if thread is not None and thread.at > 0 and (span.name in ENDED or thread.failed):
                over.add((room, side))
            if span.name in BEGUN:
                at, _ = last.get((side, room, rid), (0.0, place))
                last[side, room, rid] = max(at, span.at), place
            for said in self._said(span, side, place, rid):
                over.add((room, side))
                found.append((span.at, said))
        self._open([place for (side, room, _), (at, place) in last.items()
                    if (room, side) not in over and newest - at >= OPEN])  # fmt: skip
        return [said for _, said in sorted(found, key=lambda one: one[0])]

    def _known(self, span: _Span) -> tuple[Side, int, str | None, Place] | None:
        """Whose span it is: the end, the room and the request; None if it says nothing of a transfer."""
        side = ENDED.get(span.name) or BEGUN.get(span.name)
        failure = next((m for m in MESSAGES if m.pattern.match(str(span.attributes.get("reason", "")))), None)
        side = side or (failure.side if failure is not None and span.failed else None)
        if side is None:
            return None
        says = f"stage {span.name}" if failure is None else failure.says
        root = self._root(span)
        rooms = self._rooms.get(span.trace, set())
        room = _room(root.attributes) if root else None
        room = room if room is not None else (next(iter(rooms)) if len(rooms) == 1 else None)
        if room is None:
            self.digest.leave_out("stages of a request whose root span, which has its room, is not there")
            return None
        rid = root.attributes.get("rid") if root else None
        place = attrs.evolve(span.place, room=room)
        self.digest.take(span.name if failure is None else failure.name, says, place)
        return side, room, None if rid is None else str(rid), place

    def _said(self, span: _Span, side: Side, place: Place, rid: str | None) -> Iterator[Said]:
        thread = self._thread(span)
        attributes = thread.attributes if thread else {}
        host = str(attributes.get("host_id") or "")[:8]
        told: Said = {"room": place.room, "op": "", "node": f"{side}@{host}" if host else side}
        ranks = [f"{name[:2].upper()}{attributes[name]}" for name in RANKS if attributes.get(name) is not None]
        told |= {"rank": " ".join(ranks)} if ranks else {}
        told |= {"request": rid} if rid is not None else {}
        told |= {"thread": "scheduler", "time": round(span.at, 6), "source": f"{place.file}:{place.line}"}
        if span.name in ENDED:
            yield told | {"op": "conclude", "incoming": "Success"}
        elif span.failed:
            why = str(span.attributes.get("reason", ""))
            given_up = ABORTED.pattern.search(why) if side == "prefill" else not TOLD.pattern.search(why)
            if given_up:
                yield told | {"op": "abort"}
            yield told | {"op": "conclude", "incoming": "Failed"}

    def _up(self, span: _Span) -> Iterator[_Span]:
        """The span and those above it."""
        for _ in range(_DEEPEST):
            yield span
            above = self._spans.get((span.trace, span.parent))
            if above is None:
                return
            span = above

    def _root(self, span: _Span) -> _Span | None:
        return next((above for above in self._up(span) if _room(above.attributes) is not None), None)

    def _thread(self, span: _Span) -> _Span | None:
        return next((above for above in self._up(span) if "thread_label" in above.attributes), None)

    def _open(self, places: list[Place]) -> None:
        if places:
            says = f"in a stage {OPEN:.0f} s or more before the end, and no span says how the request ended"
            self.digest.open[says] = places


def is_spans(start: str) -> bool:
    """Whether a file begins as OTLP in JSON does."""
    return start.lstrip().startswith("{") and "resourceSpans" in start


def _json(text: str) -> object:
    """What a text says; ``_NO_JSON`` if it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return _NO_JSON


def _list(said: object, name: str) -> list[Any]:
    found = said.get(name) if isinstance(said, dict) else None
    return found if isinstance(found, list) else []


def _value(said: object) -> object:
    """The value of an attribute; integers may come as strings."""
    if not isinstance(said, dict):
        return None
    for name, value in said.items():
        if name == "intValue":
            try:
                return int(value)
            except (TypeError, ValueError):
                return None
        if name in ("stringValue", "boolValue", "doubleValue"):
            return value if not isinstance(value, float) or math.isfinite(value) else None
    return None


def _room(attributes: Mapping[str, object]) -> int | None:
    """The room, which is written in hexadecimal."""
    said = attributes.get(ROOM)
    try:
        room = int(said, 16) if isinstance(said, str) else said if type(said) is int else None
    except ValueError:
        return None
    return room if room is not None and 0 <= room <= MOST_ROOM else None
