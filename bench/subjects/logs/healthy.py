"""Healthy event logs, version 2: what a right prefill and decode side with several ranks would write, at random.

Threads are generators that yield wherever another thread may come in between; a step is a change of a table and its
line, at one moment. Prefill's rules are the recommended ones (the first terminal status stays, what is cleared leaves a
tombstone with the request's number, pages go back when nothing reads them), with late, early and doubled messages,
aborts from both sides, transfers that fail, and ids that are used again. A failure of one rank reaches the others as an
abort, before any of them has succeeded.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Iterator
from typing import Any, Final

import attrs

Event = dict[str, Any]
Thread = Generator[None, None, None]

IDS: Final = (0, 7, 4618074507212012089, 2**63 - 1, 2**63, 2**64 - 1, "chatcmpl-b944e888-0", "2/7", "")
OVER: Final = ("Failed", "Success")


@attrs.frozen
class Shape:
    """How large a request is, and what befalls it. ``early`` and ``late`` are messages out of their time."""

    ranks: int = 1
    chunks: int = 1
    workers: int = 1
    abort: str = ""
    fails: int = -1
    early: bool = False
    late: bool = False
    doubled: bool = False

    @classmethod
    def drawn(cls, draw: random.Random) -> Shape:
        """Half of the requests go well."""
        chunks = draw.randint(1, 3)
        return cls(
            ranks=draw.choice((1, 1, 2, 4)),
            chunks=chunks,
            workers=draw.randint(1, 3),
            abort=draw.choice(("", "", "", "client", "decode")),
            fails=draw.choice((-1, -1, -1, draw.randrange(chunks))),
            early=draw.random() < 0.2,
            late=draw.random() < 0.3,
            doubled=draw.random() < 0.2,
        )


@attrs.define
class Log:
    """What is written, and the clock."""

    draw: random.Random
    events: list[Event] = attrs.field(factory=list)
    now: float = 0.0

    def say(self, op: str, **members: Any) -> None:
        """A line; members that are None are left out."""
        self.now += self.draw.expovariate(1000.0)
        event = {"op": op, "time": round(self.now, 6)} | members
        self.events.append({name: value for name, value in event.items() if value is not None})


@attrs.define(eq=False)
class Table:
    """One rank's table, for one room: what it shows, and whose it is."""

    log: Log
    room: int | str
    node: str
    rank: int
    shown: str = "Absent"
    cleared: int = 0

    def say(self, op: str, request: int, thread: str, **members: Any) -> None:
        """An event of this table."""
        self.log.say(op, room=self.room, node=self.node, rank=self.rank, request=request, thread=thread, **members)

    def update(self, op: str, request: int, thread: str, incoming: str) -> str:
        """Write, by the recommended rules, and say what the table shows then."""
        if request > self.cleared and self.shown not in OVER:
            order = ("Absent", "Bootstrapping", "WaitingForInput", "Transferring", "Success")
            creates = incoming in order[1:3]
            if self.shown != "Absent" or creates:
                self.shown = "Failed" if incoming == "Failed" else max(self.shown, incoming, key=order.index)
        said = incoming if op == "write" else None
        self.say(op, request, thread, incoming=said, status=self.shown)
        return self.shown

    def poll(self, request: int, thread: str) -> str:
        """Look, and say so."""
        self.say("poll", request, thread, status=self.shown)
        return self.shown


@attrs.define(eq=False)
class Job:
    """One request on all ranks of prefill and on decode."""

    shape: Shape
    request: int
    tables: list[Table]
    decode: Table
    ready: set[int] = attrs.field(factory=set)
    queued: list[list[int]] = attrs.field(factory=list)
    reading: list[int] = attrs.field(factory=list)
    arrived: list[int] = attrs.field(factory=list)
    told: set[int] = attrs.field(factory=set)
    settled: set[int] = attrs.field(factory=set)
    word: str | None = None

    def __attrs_post_init__(self) -> None:
        ranks = range(self.shape.ranks)
        self.queued, self.reading, self.arrived = [[] for _ in ranks], [0 for _ in ranks], [0 for _ in ranks]

    def may_fail(self) -> bool:
        """Not when a rank has succeeded, or is through with the request, or has not begun."""
        return all(table.shown not in ("Absent", "Success") and table.cleared < self.request for table in self.tables)

    def fail(self, thread: str, first: int = 0) -> None:
        """Fail on every rank at once; the cause comes first."""
        for rank in sorted(range(len(self.tables)), key=lambda rank: rank != first):
            self.tables[rank].update("abort", self.request, thread, "Failed")
            self.tell(rank, thread)

    def tell(self, rank: int, thread: str) -> None:
        """Tell decode what stands, once."""
        shown = self.tables[rank].shown
        if shown in OVER and rank not in self.told:
            self.told.add(rank)
            self.tables[rank].say("tell", self.request, thread, incoming=shown, peer=self.decode.node)
            if shown == "Failed" or len(self.told) == self.shape.ranks:
                self.word = self.word or shown

    # --- The threads ---

    def scheduler(self, rank: int) -> Thread:
        """Create, wait for decode, enqueue, poll to the end, clear, and give the pages back."""
        table, request, me = self.tables[rank], self.request, "scheduler"
        table.update("create", request, me, "Bootstrapping")
        self.ready.add(rank)
        table.say("hold", request, me)
        while table.shown == "Bootstrapping":
            yield
            if table.log.draw.random() < 0.2:
                table.poll(request, me)
        if table.poll(request, me) not in OVER:
            for chunk in range(self.shape.chunks):
                yield
                table.say("enqueue", request, me, chunk=chunk, last=chunk + 1 == self.shape.chunks or None)
                self.queued[rank].append(chunk)
        while table.shown not in OVER:
            yield
            if table.log.draw.random() < 0.2:
                table.poll(request, me)
        yield
        shown = table.poll(request, me)
        table.say("conclude", request, me, incoming=shown)
        yield
        table.shown, table.cleared = "Absent", request
        table.say("clear", request, me, status="Absent")
        table.say("forget", request, me)
        while self.reading[rank]:
            yield
        table.say("release", request, me)
        table.say("settle", request, me)
        self.settled.add(rank)

    def bootstrap(self, rank: int, late: bool = False) -> Thread:
        """Decode's metadata arrives, perhaps before the request, perhaps after its end, perhaps twice."""
        table, me = self.tables[rank], "bootstrap"
        while not (self.shape.early and not late) and rank not in self.ready:
            yield
        while late and self.request > table.cleared:
            yield
        for _ in range(1 + self.shape.doubled):
            if self.request > table.cleared and table.shown in ("Absent", "Bootstrapping"):
                table.say("infos", self.request, me)
            table.update("write", self.request, me, "WaitingForInput")
            table.say("end", self.request, me)
            yield

    def worker(self, rank: int, number: int) -> Thread:
        """Take chunks until the request is over on this rank."""
        table, request, me = self.tables[rank], self.request, f"worker {number}"
        while request > table.cleared or self.queued[rank]:
            yield
            if not self.queued[rank]:
                continue
            chunk = self.queued[rank].pop(0)
            table.say("take", request, me, chunk=chunk)
            yield
            if request <= table.cleared or table.shown not in ("WaitingForInput", "Transferring"):
                table.say("drop", request, me, chunk=chunk)
                table.say("end", request, me)
                continue
            table.update("write", request, me, "Transferring")
            self.reading[rank] += 1
            table.say("post", request, me, chunk=chunk)
            yield
            if self.shape.fails == chunk and self.may_fail():
                table.say("fail", request, me, chunk=chunk)
                self.fail(me, first=rank)
            else:
                table.say("arrive", request, me, chunk=chunk)
                self.arrived[rank] += 1
                if self.arrived[rank] == self.shape.chunks:
                    table.update("write", request, me, "Success")
                    if request > table.cleared:
                        self.tell(rank, me)
            self.reading[rank] -= 1
            table.say("end", request, me)

    def gives_up(self) -> Thread:
        """The client or decode gives the request up, at some time."""
        while len(self.ready) < self.shape.ranks:
            yield
        for _ in range(self.tables[0].log.draw.randrange(20)):
            yield
        if self.may_fail():
            self.fail("scheduler" if self.shape.abort == "client" else "bootstrap")

    def receiver(self) -> Thread:
        """Decode's side."""
        table, request, me = self.decode, self.request, "scheduler"
        table.update("create", request, me, "Bootstrapping")
        table.say("hold", request, me)
        yield
        table.update("write", request, me, "WaitingForInput")
        while self.word is None:
            yield
            if table.log.draw.random() < 0.1:
                table.poll(request, me)
        while any(self.reading):
            yield
        table.update("write", request, me, self.word)
        yield
        table.poll(request, me)
        table.say("conclude", request, me, incoming=self.word)
        table.shown, table.cleared = "Absent", request
        table.say("clear", request, me, status="Absent")
        table.say("release", request, me)
        table.say("settle", request, me)


def _threads(job: Job) -> Iterator[Thread]:
    for rank in range(job.shape.ranks):
        yield job.scheduler(rank)
        yield job.bootstrap(rank)
        yield from (job.worker(rank, number) for number in range(job.shape.workers))
    yield job.receiver()
    if job.shape.abort:
        yield job.gives_up()


def _life(log: Log, room: int | str, uses: int) -> Thread:
    """One room: its requests, one after the other."""
    first = Shape.drawn(log.draw)
    tables = [Table(log, room, "prefill-0", rank) for rank in range(first.ranks)]
    decode = Table(log, room, "decode-0", 0)
    late: list[Thread] = []
    for request in range(1, uses + 1):
        shape = attrs.evolve(Shape.drawn(log.draw), ranks=first.ranks)
        job = Job(shape, request, tables, decode)
        threads = list(_threads(job))
        while threads:
            thread = log.draw.choice(threads + late)
            if next(thread, True) is True:
                (threads if thread in threads else late).remove(thread)
            yield
        late += [job.bootstrap(rank, late=True) for rank in range(shape.ranks) if shape.late]
    for thread in late:
        yield from thread


def healthy(seed: int, rooms: int = 3) -> list[Event]:
    """The events of some rooms, in the order in which the tables changed."""
    log = Log(random.Random(seed))  # noqa: S311  # no secret
    ids = [log.draw.choice(IDS)] + [log.draw.getrandbits(64) for _ in range(rooms - 1)]
    lives = [_life(log, room, log.draw.randint(1, 3)) for room in ids]
    while lives:
        life = log.draw.choice(lives)
        if next(life, True) is True:
            lives.remove(life)
    return log.events
