"""What has been seen of one entry of one table, and of the requests that have used its room id.

Nothing is judged here: ``judge.py`` asks.
"""

from __future__ import annotations

from typing import Final

from kvlatch.reference.logs.events import Event
from kvlatch.reference.logs.laws import Seen
from kvlatch.spec.status import ABSENT, F, S, T, W

_REMEMBERED: Final = 2
"""Earlier requests of a room id that late events are still matched with."""
_BEGIN: Final = ("create", "infos")
"""What a request can begin with that has not been heard of."""


class Work:
    """The chunks of one request, as far as they have been logged, and the threads that are busy with them."""

    __slots__ = ("arrived", "busy", "ended", "failed", "last", "lost", "posted", "queued", "reading", "sent", "took")
    # A chunk may be queued again by a worker that cannot send it yet, and may go out in parts: it counts once.

    def __init__(self) -> None:
        self.queued: set[int | None] = set()
        self.busy: set[str | None] = set()
        self.failed: set[str | None] = set()
        self.took: set[str | None] = set()
        self.reading: set[tuple[str | None, int | None]] = set()
        self.sent: set[int | None] = set()
        self.arrived: set[int | None] = set()
        self.last = self.lost = self.posted = self.ended = False

    def take_in(self, event: Event) -> None:
        """What an event says of chunks and workers."""
        match event.op:
            case "enqueue":
                self.queued.add(event.chunk)
                self.sent.add(event.chunk)
                self.last |= event.last
            case "drop":
                self.lost = True
                self.queued.discard(event.chunk)
                self.last |= event.last
            case "take":
                self.queued.discard(event.chunk)
                self.busy.add(event.thread)
                self.took.add(event.thread)
            case "post":
                self.posted = True
                self.arrived.discard(event.chunk)
                self.reading.add((event.thread, event.chunk))
            case "arrive":
                self.arrived.add(event.chunk)
                self.reading.discard((event.thread, event.chunk))
            case "fail":
                self.lost = True
                self.failed.add(event.thread)
                self.reading.discard((event.thread, event.chunk))
            case "end":
                self.ended = True
                self.busy.discard(event.thread)

    @property
    def worker(self) -> str:
        """All workers of the request as one."""
        if self.reading:
            return "transferring"
        return "taken" if self.busy else "idle"

    @property
    def chunk(self) -> str:
        """All its chunks as one."""
        if self.queued:
            return "queued"
        if self.lost:
            return "lost"
        return "done" if self.last and self.arrived >= self.sent else "taken"


class Life:
    """One request on one entry. ``again``: it is not the first one there. ``over``: its entry has been cleared."""

    __slots__ = (
        "aborted", "again", "created", "doubtful", "given_up", "latch", "over", "pages", "phase", "request", "thread",
        "told", "wire", "work",
    )  # fmt: skip

    def __init__(self, request: str | None, *, again: bool) -> None:
        self.request = request
        self.again = again
        self.created = 0
        """The line of its create; 0 if that has not been seen."""
        self.thread: str | None = None
        """Who created it."""
        self.phase = "new"
        self.latch = self.wire = self.pages = "none"
        self.aborted = False
        """The client or decode has given it up, says an abort."""
        self.over = self.given_up = self.doubtful = False
        self.told: dict[tuple[str | None, str | None], str | None] = {}
        """Who was told what, peer and status, and by which thread first."""
        self.work: Work | None = None

    def take_in(self, event: Event) -> None:
        """What an event says of the request, beside the status table."""
        op = event.op
        if op == "hold":
            self.pages, self.phase = "held", "running"
        elif op == "release":
            self.pages = "released" if self.pages in ("none", "held") else "released twice"
        elif op == "tell":
            self.told.setdefault((event.peer, event.incoming), event.thread)
            self.wire = event.incoming or "" if self.wire in ("none", event.incoming) else "both"
        elif op == "conclude":
            self.latch = event.incoming or "" if self.latch == "none" else self.latch
        elif op == "settle":
            self.phase = "done"
        elif op not in ("infos", "forget"):
            self.work = self.work or Work()
            self.work.take_in(event)
            if op in ("enqueue", "drop") and self.phase in ("new", "boot", "running"):
                self.phase = "inflight" if self.work.last else "running"

    def may_tell_too(self, event: Event) -> bool:
        """Whether it is a worker of its own that tells Failed: its chunk failed as well, and nobody looks at the other.

        ``latch`` does so too. A log without ``fail`` shows at most who had a chunk.
        """
        first = self.told.get((event.peer, event.incoming), event.thread)
        workers = (self.work.failed or self.work.took) if self.work else set()
        return event.incoming == F and event.thread != first and (not workers or event.thread in workers)

    @property
    def name(self) -> str:
        """The request as a reader can find it."""
        who = f"request {self.request}" if self.request is not None else "the request"
        by = f" of {self.thread!r}" if self.thread is not None else ""
        return f"{who}{by} created on line {self.created}"


class Entry:
    """One entry: what the table showed last, since when, and whose it is."""

    __slots__ = (
        "broken", "first", "hearing", "infos", "left_by", "life", "looked", "moved", "outcome", "past",
        "status", "thread", "time", "unsure", "waited",
    )  # fmt: skip

    def __init__(self) -> None:
        self.status: str | None = None
        """What the table showed last; None if nobody knows."""
        self.unsure = False
        """Somebody has written since, and the log does not say what the table showed then."""
        self.left_by = ""
        """The operation that showed it first."""
        self.first = "none"
        """The first terminal status since the entry was made."""
        self.outcome = "none"
        """The first terminal status ever."""
        self.thread: str | None = None
        """Who saw that status last, and when."""
        self.time: float | None = None
        self.moved: float | None = None
        """When anything happened to it: polls that are answered alike are no progress."""
        self.waited = False
        """It has been shown waiting for, or in, a transfer."""
        self.life: Life = Life(None, again=False)
        self.past: tuple[Life, ...] = ()
        self.infos: Life | str | None = ""
        """The request whose metadata is there; "" if none has been logged."""
        self.hearing: set[str | None] | None = None
        """Threads that have taken metadata in, and are not through with it."""
        self.looked = self.broken = 0
        """Bit sets of laws: for which it counts as a look, and which it has broken."""

    def show(self, event: Event, status: str) -> None:
        """The table shows a status."""
        self.unsure = False
        if status != self.status:
            self.status, self.left_by = status, event.op
            self.waited |= status in (W, T)
        if status in (F, S):
            self.first = status if self.first == "none" else self.first
            self.outcome = status if self.outcome == "none" else self.outcome
        elif status == ABSENT or event.op == "create":
            self.first = "none"
        self.thread = event.thread
        self.time = self.time if event.time is None else event.time

    def life_of(self, event: Event) -> Life:
        """The request that an event is about: the newest one, unless the event says otherwise."""
        request, life = event.request, self.life
        if request is None or request == life.request:
            return life
        if life.request is None and not life.over:
            life.request = request
            return life
        for earlier in self.past:
            if earlier.request == request:
                return earlier
        if event.op in _BEGIN or (event.op == "write" and life.over):
            return self.begin(request)
        late = Life(request, again=True)
        self.past = (late, *self.past)[:_REMEMBERED]
        return late

    def begin(self, request: str | None) -> Life:
        """Another request begins to use the room id."""
        self.past = (self.life, *self.past)[:_REMEMBERED]
        self.life = Life(request, again=True)
        return self.life

    def hear(self, event: Event, life: Life) -> None:
        """Metadata comes, or goes, and threads are through with it."""
        if event.op == "infos":
            self.infos = life
            self.hearing = self.hearing or set()
            self.hearing.add(event.thread)
        elif event.op == "forget":
            self.infos = None
        if event.op != "infos" and self.hearing:
            self.hearing.discard(event.thread)

    def seen(self, life: Life) -> Seen:
        """The state of the protocol that one of its requests is in, as far as it is known."""
        gen = "second" if life.again else "first"
        mine = life is self.life
        if self.infos == "" or self.infos is life:
            infos = gen if self.infos or self.status not in (None, "Bootstrapping") else "none"
        else:
            infos = "none" if self.infos is None else "first"
        return Seen(
            status=self.status or ABSENT if mine else ABSENT,
            phase=life.phase,
            gen=gen,
            infos=infos if mine else "none",
            latch=life.latch if life.latch in (F, S) else "none",
            notice="once" if life.given_up else "none",
            pages=life.pages,
            wire=life.wire,
            bootstrap="registered" if self.hearing else "idle",
            worker=life.work.worker if life.work else "idle",
            chunk=life.work.chunk if life.work else "unsent",
        )
