"""SGLang's text logs as events: what its three named versions print on aborts, failures, time-outs and dead threads.

A sender that times out in Bootstrapping says for how long it has been there. What was printed about its room in that
time was about this very request: if decode's metadata was complete, the wake-up was lost; if an abort was marked as
Failed, it was undone. Whatever came before may be about another request that had the id, and what came within ``APART``
seconds of the time-out may have come after it: nobody is accused then.
"""

from __future__ import annotations

import calendar
import re
import time
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final, TypeVar

import attrs

from kvlatch.reference.logs.converting.digest import Digest, Place, Said
from kvlatch.reference.logs.converting.messages import (
    ABORTED,
    BEGINNINGS,
    MESSAGES,
    THREADS,
    TIMED_OUT,
    TOLD,
    Message,
    Side,
)
from kvlatch.reference.logs.converting.requests import request_of
from kvlatch.reference.logs.events import MOST_ROOM

APART: Final = 2.0
"""Seconds by which a line must precede that of a time-out so that what it is about came before, too."""
OPEN: Final = 300.0
"""Seconds after which a request of which nothing more is said is listed: SGLang's own time-outs are as long."""
LONGEST: Final = 1 << 20
"""Characters of a line that are read together."""
NOBODY: Final = "?"
"""The room of a thread that died, of which no line says whose message it was about."""
_MOST: Final = 1 << 20
"""Rooms that are remembered at a time."""
_HEAD: Final = re.compile(
    r"[^\[]{0,200}\[(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?P<ms>\.\d{3})?(?P<who> [^\]]*)?\] (?P<said>.*)",
    re.DOTALL,
)
_RANKS: Final = re.compile(r"(?:[A-Z]{2,5}\d+)(?: [A-Z]{2,5}\d+)*")
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
_RAISED: Final = re.compile(r"Exception in thread [^(]*\((?P<thread>\w+)\):")
_SIDE: Final = re.compile(r"server_args=.*disaggregation_mode'?[=:] ?'(?P<side>prefill|decode)'")
_FAILED: Final = ("bootstrap-failed", "transfer-failed", "handshake-failed", "receive-failed")
_THREAD: Final = {
    "marked": "bootstrap", "ignored": "bootstrap", "info": "bootstrap", "bootstrapped": "bootstrap",
    "skipped-cleared": "worker", "late-status": "decode",
}  # fmt: skip

Key = tuple[str | None, int]
K = TypeVar("K")
V = TypeVar("V")


@attrs.define
class _Death:
    """A thread that died, until its traceback has been read."""

    place: Place
    side: Side | None
    rank: str | None
    thread: str
    error: str = ""


@attrs.define
class Engine:
    """One engine's text log, maybe in several files: turns its lines into the members of events.

    ``name`` is put behind the side to make the node. ``side`` is whose log it is, if its start does not say so.
    """

    name: str
    digest: Digest
    side: Side | None = None
    _clock: dict[str | None, float] = attrs.field(factory=dict)
    _now: float | None = None
    _grain: float = 1.0
    """Seconds that a time may be too early by: times are whole seconds, unless SGLANG_LOG_MS is set."""
    _complete: dict[Key, float] = attrs.field(factory=dict)
    """When decode's metadata for a room was complete."""
    _marked: dict[Key, tuple[float, Place]] = attrs.field(factory=dict)
    """When an abort for a room was marked as Failed."""
    _made: dict[Key, float] = attrs.field(factory=dict)
    """Rooms of which a sender is known to have been made, and when that was said."""
    _asked: dict[str, tuple[float, Place]] = attrs.field(factory=dict)
    """Requests that prefill has received and not finished."""
    _death: _Death | None = None
    _sides: set[Side] = attrs.field(factory=set)

    def events(self, file: str, lines: Iterable[str]) -> Iterator[Said]:
        """The members of each event, in the order of the lines."""
        for number, raw in enumerate(lines, 1):
            self.digest.read += 1
            line = _COLOUR.sub("", raw) if "\x1b" in raw else raw
            head = _HEAD.match(line.rstrip("\r\n"))
            if head is None:
                yield from self._without_head(file, number, line)
                continue
            yield from self._buried()
            who = _RANKS.fullmatch((head["who"] or "").strip())
            rank = who[0] if who else None
            at = self._at(head["time"], head["ms"], rank)
            if at is not None:
                yield from self._line(Place(file, number), rank, at, head["said"])
        yield from self._buried()

    @property
    def _whose(self) -> Side | None:
        """Whose log it is; None if nobody has said, or if both engines write there."""
        return self.side or (next(iter(self._sides)) if len(self._sides) == 1 else None)

    def close(self) -> None:
        """No more lines will come: list in the digest what has no end."""
        end = self._now or 0.0
        marked = [place for at, place in self._marked.values() if end - at >= OPEN]
        asked = [place for at, place in self._asked.values() if end - at >= OPEN]
        for says, places in (
            (
                f"marked as Failed by an abort {OPEN:.0f} s or more before the end, and not ended by prefill since",
                marked,
            ),
            (
                f"received by prefill {OPEN:.0f} s or more before the end, and nothing says that the request is over",
                asked,
            ),
        ):
            if places:
                self.digest.open[says] = [*self.digest.open.get(says, []), *places]

    # ----------------------------------------------------------------------------------------------------------------
    # Lines

    def _at(self, stamp: str, ms: str | None, rank: str | None) -> float | None:
        """The time of a line in seconds, as if it were UTC. It never goes back: clocks do, and a log does not."""
        seconds = _seconds(stamp)
        if seconds is None:
            return None
        at = seconds + float(ms or 0)
        if at < self._clock.get(rank, at) - APART:  # set back: how long ago something was is not known any more
            self._forget()
        self._grain = 0.001 if ms else 1.0
        at = self._clock[rank] = max(at, self._clock.get(rank, at))
        self._now = max(at, self._now or at)
        return at

    def _line(self, place: Place, rank: str | None, at: float, said: str) -> Iterator[Said]:
        if found := _SIDE.match(said):
            side: Side = "prefill" if found["side"] == "prefill" else "decode"
            if side in self._sides:  # it has been started again: what it was about is over
                self._forget()
            self._sides.add(side)
            return
        for message in MESSAGES if said.startswith(BEGINNINGS) else ():
            if match := message.pattern.match(said):
                named = match.groupdict()
                if "room" in named and int(named["room"]) > MOST_ROOM:
                    return
                if "room" in named:
                    place = attrs.evolve(place, room=int(named["room"]))
                self.digest.take(message.name, message.says, place)
                if message.name == "died":
                    self._death = _Death(place, "prefill", rank, named["thread"])
                elif place.room is not None:
                    yield from self._said(message, place, rank, at, named)
                return
        if said.startswith(("Receive: ", "Finish: ")):
            yield from self._request(place, at, said)

    def _said(
        self, message: Message, place: Place, rank: str | None, at: float, named: dict[str, str | None]
    ) -> Iterator[Said]:
        """The events of one message about a room."""
        key = rank, place.room or 0
        told = self._told(message.side, place, rank, at, _THREAD.get(message.name, "scheduler"))
        match message.name:
            case "marked":
                _remember(self._marked, key, (at, place))
                yield told | {"op": "abort"}
            case "bootstrapped":
                _remember(self._complete, key, at)
                yield told | {"op": "infos"}
                yield told | {"op": "write", "incoming": "WaitingForInput"}
                yield told | {"op": "end"}
            case "skipped-cleared" | "late-status":
                yield told | {"op": "poll", "status": "Absent"}
            case "told-abort":
                yield told | {"op": "abort"}
            case name if name in _FAILED:
                yield from self._failed(
                    message.side, key, told | {"request": named["rid"]}, at, named["why"] or "", place
                )

    def _failed(self, side: Side, key: Key, told: Said, at: float, why: str, place: Place) -> Iterator[Said]:
        """A request that its scheduler has ended as Failed, and the reason that it gives."""
        timed_out = TIMED_OUT.pattern.search(why)
        if side == "prefill":
            if timed_out and timed_out["status"] == "Bootstrapping":
                yield from self._timed_out(key, told, at, float(timed_out["seconds"]), place)
            if ABORTED.pattern.search(why):
                yield told | {"op": "abort"}
            self._over(key, told["request"])
        elif not TOLD.pattern.search(why):  # decode has given up by itself: a time-out, an abort, a lost connection
            yield told | {"op": "abort"}
        yield told | {"op": "conclude", "incoming": "Failed"}

    def _timed_out(self, key: Key, told: Said, at: float, seconds: float, place: Place) -> Iterator[Said]:
        """It was Bootstrapping to the end: hold that against what happened while this very sender lived."""

        def while_it_lived(then: float) -> bool:
            return at - seconds + self._grain <= then <= at - APART

        marked, complete = self._marked.get(key), self._complete.get(key)
        undone = marked is not None and while_it_lived(marked[0])
        lost = complete is not None and while_it_lived(complete)
        if (undone or lost) and key not in self._made:
            _remember(self._made, key, at)
            yield told | {"op": "create"}
        elif undone or lost:  # which of the two requests the metadata is of would not be known
            undone = lost = False
        if marked and undone:
            seen = told | {"op": "poll", "status": "Failed", "time": marked[0], "source": _source(marked[1])}
            del seen["thread"]  # it is told here, late: in the order of its thread it would come before the create
            yield seen
        if undone or lost:
            yield told | {"op": "poll", "status": "Bootstrapping"}
        elif complete is not None:
            says = "timed out in Bootstrapping with complete metadata, its own or that of an earlier request"
            self.digest.open.setdefault(says, []).append(place)
        yield told | {"op": "write", "incoming": "Failed"}

    def _request(self, place: Place, at: float, said: str) -> Iterator[Said]:
        """A line of the request logger, whose process has no rank."""
        request = request_of(said)
        if request is None:
            return
        place = attrs.evolve(place, room=request.room)
        side = self._whose
        if side is None:
            self.digest.leave_out("requests of an engine that does not say whether it is prefill or decode (--side)")
            return
        name = "finished" if request.reason else "received"
        self.digest.take(f"{side}-{name}", f"{side} {name} a request", place)
        if not request.reason:
            if side == "prefill" and request.rid:
                _remember(self._asked, request.rid, (at, place))
            return
        told = self._told(side, place, None, at, "tokenizer") | {"request": request.rid}
        failed = next(filter(None, (m.pattern.match(request.message) for m in MESSAGES if m.name in _FAILED)), None)
        if side == "prefill":
            for rank in self._clock:
                self._over((rank, request.room), request.rid)
        if failed is not None:
            yield from self._failed(side, (None, request.room), told, at, failed["why"] or "", place)
        elif request.reason == "abort":
            yield told | {"op": "abort"}
        else:
            yield told | {"op": "conclude", "incoming": "Success"}

    def _forget(self) -> None:
        """What was said before is not about the requests that come."""
        for known in (self._complete, self._marked, self._asked):
            known.clear()

    def _over(self, key: Key, rid: str | None) -> None:
        self._marked.pop(key, None)
        self._complete.pop(key, None)
        self._asked.pop(rid or "", None)

    # ----------------------------------------------------------------------------------------------------------------
    # Threads that die

    def _without_head(self, file: str, number: int, line: str) -> Iterator[Said]:
        """A line that goes on with the one before it, or Python's own about a thread that died."""
        if (raised := _RAISED.search(line)) and raised["thread"] in THREADS:
            yield from self._buried()
            place = Place(file, number)
            self.digest.take("thread-died", "a thread of the transfers died", place)
            self._death = _Death(place, None, None, raised["thread"])
        elif self._death and line.strip() and not line[0].isspace():
            self._death.error = line.strip()

    def _buried(self) -> Iterator[Said]:
        """The death whose traceback has been read."""
        death, self._death = self._death, None
        if death is not None:
            side = death.side or self._whose
            at = self._clock.get(death.rank, self._now) or 0.0
            told = self._told(side, death.place, death.rank, at, death.thread) | {"room": NOBODY}
            yield told | {"op": "end", "error": death.error or "an exception"}

    def _told(self, side: str | None, place: Place, rank: str | None, at: float, thread: str) -> Said:
        """What each event of a line has."""
        said: Said = {"room": place.room, "op": "", "node": f"{side}@{self.name}" if side else self.name}
        if rank is not None:
            said["rank"] = rank
        return said | {"thread": thread, "time": round(at, 3), "source": _source(place)}


@lru_cache(1 << 10)
def _seconds(stamp: str) -> int | None:
    """A date and a time as seconds; None if there is no such day."""
    try:
        return calendar.timegm(time.strptime(stamp, "%Y-%m-%d %H:%M:%S"))
    except ValueError:
        return None


def _source(place: Place) -> str:
    return f"{place.file}:{place.line}"


def _remember(known: dict[K, V], key: K, value: V) -> None:
    """Keep the newest ones; the oldest are forgotten."""
    known.pop(key, None)
    known[key] = value
    if len(known) > _MOST:
        del known[next(iter(known))]
