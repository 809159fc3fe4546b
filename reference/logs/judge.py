"""Hold the events of a log against the laws, one after the other, entry by entry.

Each entry (node, rank, room) is followed through the requests that use it. What it shows is held against the spec's own
formulas (``laws.py``) whenever it changes. A law is *looked at* in an entry once something has been seen there that
could have broken it, and is kept if it was looked at and nothing broke it.

**Order.** Events come in the order of the log, those of one thread in the order of their times (``order.py``). Where
two observations of an entry contradict each other only if the log's order is believed, and not if their times are,
nobody is accused: the contradiction is named.

**Requests.** Where the log does not say whose request an event is about, it is about the newest one. WaitingForInput
in an entry that has been cleared may then be early metadata of the next request as well as a ghost of the last one, and
is not judged.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Iterable
from typing import Final

import attrs

from kvlatch.reference.laws import NO_CRASH, TOLD_ONCE
from kvlatch.reference.logs.entry import Entry, Life
from kvlatch.reference.logs.events import LIVE, STATUSES, TABLE_OPS, Event, Room, name_of
from kvlatch.reference.logs.finding import Finding
from kvlatch.reference.logs.laws import Seen, broken_in, of_profile
from kvlatch.reference.logs.order import LATE
from kvlatch.reference.logs.parts import Glimpse
from kvlatch.spec.properties import BY_NAME
from kvlatch.spec.schema import Profile
from kvlatch.spec.status import ABSENT, B, F, S, T, W

QUIET: Final = 300.0
"""Seconds without progress after which a live request is called pinned: SGLang's own time-outs are as long."""
NAMED: Final = 100
"""Contradictions that are named."""
NO_GHOST, REUSABLE, NO_PIN, SETTLEMENT, ONE_OUTCOME = (
    "no-ghost", "room-reusable", "no-pin", "settlement", "one-outcome",
)  # fmt: skip
COMPLETE, HELD, ONCE, WAKEUP = "success-complete", "pages-held", "released-once", "no-lost-wakeup"
_OF_TABLE: Final = ("terminal-sticky", "no-resurrection", "success-not-overwritten")
_OF_REQUEST: Final = (COMPLETE, HELD, ONCE, ONE_OUTCOME, WAKEUP, NO_GHOST)
LAWS: Final = (*BY_NAME, NO_CRASH, TOLD_ONCE)
BIT: Final = {law: 1 << number for number, law in enumerate(LAWS)}
SENDS: Final = ("enqueue", "post", "tell")
"""What prefill does and decode does not."""
NEEDS: Final = {COMPLETE: {"arrive"}, HELD: {"arrive"}, WAKEUP: {"end"}}
"""Operations without which a log that breaks a law may only be one that does not say enough."""


Place = tuple[str | None, str | None, str | None]
"""Node, rank and process of a table."""


class Table:
    """The entries of one rank of one node; ``end`` is its latest time, ``ops`` what has been logged.

    ``last`` is the time of its last event, on line ``at`` (of a log): before ``end`` if the clock has been set back.

    ``process`` is whose it is: that of another process of the same name begins empty. ``sends``: chunks were queued or
    posted there, or decode was told something from there. ``succeeds``: a Success was shown, written or concluded
    there, so one that is missing would have been seen.
    """

    __slots__ = ("at", "end", "entries", "last", "node", "ops", "process", "rank", "sends", "succeeds")

    def __init__(self, place: Place, declared: Iterable[str] = ()) -> None:
        self.node, self.rank, self.process = place
        self.entries: dict[Room, Entry] = {}
        self.end: float | None = None
        self.last: float | None = None
        self.at = (0, 0)
        self.ops = set(declared)
        self.sends = self.succeeds = False


@attrs.define(eq=False)
class Judge:
    """The laws of one profile, held against the events fed so far.

    ``quiet`` is in seconds. ``looks`` counts entries by law, ``contradictions`` are those that were named first.
    """

    profile: Profile = "first terminal wins"
    quiet: float = QUIET
    tables: dict[Place, Table] = attrs.field(factory=dict)
    findings: list[Finding] = attrs.field(factory=list)
    looks: Counter[str] = attrs.field(factory=Counter)
    contradictions: list[tuple[int, int, str]] = attrs.field(factory=list)
    """With the log and the line of each; the first hundred, in that order."""
    declared: frozenset[str] = frozenset()
    """Operations that the log says it has, whether or not one of them occurs."""
    process: str | None = None
    """The process that writes the log that the events are from, if it says so."""
    source: str = ""
    """Put before the line of a finding."""
    log: int = 0
    """The number of the log that the events are from."""
    events: int = 0
    silent: int = 0

    def feed(self, events: Iterable[Event]) -> None:
        """Take events in; new findings are appended to ``findings``."""
        for event in events:
            table = self.pass_by(event)
            entry = table.entries.get(event.room)
            if entry is None:
                entry = table.entries[event.room] = Entry()
            self.events += 1
            if event.op in TABLE_OPS:
                self._of_table(table, entry, event)
            else:
                self._of_request(table, entry, event)

    def pass_by(self, event: Event | Glimpse) -> Table:
        """Take in only what an event says of its table: what is logged there, and how long the log goes on."""
        place = event.node, event.rank, self.process
        table = self.tables.get(place)
        if table is None:
            table = self.tables[place] = Table(place, self.declared)
        op = event.op
        table.ops.add(op)
        if event.status in (W, T) and op in ("write", "create"):
            table.ops.add("waiting")
        if op in SENDS:
            table.sends = True
        if S in (event.status, event.incoming):
            table.succeeds = True
        if event.time is not None and (table.end is None or event.time > table.end):
            table.end = event.time
        time = event.at if isinstance(event, Glimpse) else event.time
        if time is not None and (self.log, event.line) >= table.at:
            table.at, table.last = (self.log, event.line), time
        return table

    # ----------------------------------------------------------------------------------------------------------------
    # The status table

    def _of_table(self, table: Table, entry: Entry, event: Event) -> None:
        status = event.after
        if event.op == "poll" and status == entry.status:  # a poll that repeats what is known breaks nothing
            self._seen_again(entry, event)
            if status == B and entry.infos:
                self._evaluate(table, entry, event, entry.life_of(event))
            return
        if event.op != "poll":
            entry.moved = _later(entry.moved, event.time)
        life = self._create(table, entry, event) if event.op == "create" else entry.life_of(event)
        if entry.hearing:
            entry.hear(event, life)
        ends = status in (F, S) or (status is None and event.incoming in (None, F, S))
        own = life.request is not None and event.op == "write" and ends
        if life is entry.life and (own or event.op == "abort"):
            life.given_up = True
        if event.op == "abort":
            life.aborted = True
        if status is None:
            self.silent += event.op != "create"
            if event.op == "create":
                entry.status, entry.first = None, "none"
            entry.unsure = event.op in ("write", "abort") or (entry.unsure and event.op != "create")
        elif event.op == "clear":
            self._clear(table, entry, event, life)
        else:
            self._observe(table, entry, event, life, status)
        more = life.work or life.latch != "none" or entry.hearing is not None
        if (more and event.op != "poll" and status is not None) or (event.op == "poll" and status == B and entry.infos):
            self._evaluate(table, entry, event, life)

    def _seen_again(self, entry: Entry, event: Event) -> None:
        self.silent += event.status is None
        if entry.status in (F, S):
            self._look_terminal(entry)
        if event.time is not None:
            entry.time, entry.thread = event.time, event.thread
            if entry.moved is None:
                entry.moved = event.time

    def _create(self, table: Table, entry: Entry, event: Event) -> Life:
        """The request that is created; two that live at the same time on one id break room-reusable."""
        before = entry.life
        life = entry.life_of(event)
        if life is before and life.created and event.request is None:
            life = entry.begin(None)
        elif life is before and life.over:
            life = entry.begin(event.request)
        before = before if life is not before else next(iter(entry.past), before)
        if life is not before and before.created and not before.over and entry.status in LIVE and not entry.unsure:
            live = before.latch == "none"
            by = f" by {event.thread!r}" if event.thread is not None else ""
            who = f"request {event.request}" if event.request is not None else "a second request"
            if live:
                self._break(
                    table, entry, event, REUSABLE, "overlap",
                    f"two requests live on one id: {before.name} has not been cleared, is {entry.status}, and {who} is "
                    f"created{by}",
                )  # fmt: skip
        if life.created == 0:
            life.created, life.thread, life.phase = event.line, event.thread, "boot"
        if life.again:
            self._look(entry, REUSABLE)
        return life

    def _clear(self, table: Table, entry: Entry, event: Event, life: Life) -> None:
        status = event.after
        if life is not entry.life:  # a late clear: of the entry it says what it saw
            life.over = True
            if status is not None and status != entry.status:
                self._observe(table, entry, event, life, status)
            return
        life.over = True
        self._look(entry, NO_GHOST)
        if entry.status in (F, S):
            self._look_terminal(entry)
        if status != ABSENT:
            self._observe(table, entry, event, life, status or ABSENT)
        entry.show(event, status or ABSENT)
        entry.first = "none"
        if life.phase in ("boot", "new"):
            life.phase = "clearing"

    def _observe(self, table: Table, entry: Entry, event: Event, life: Life, status: str) -> None:
        """The table shows a status: hold it against what it showed last, and remember it."""
        before = entry.status
        if before in (F, S):
            self._look_terminal(entry)
        over = f" over {before}" if before else ""
        for law in self._laws_of(table, entry, event, life, status):
            sentence = f"{status}{over} ({_did(event)}) breaks {law}: {BY_NAME[law].says}"
            if _before(event, entry):
                self._contradict(table, event, entry, before, status)
                return
            self._break(table, entry, event, law, "", sentence, before or "", status)
        if status != before:
            entry.moved = _later(entry.moved, event.time)
        entry.show(event, status)
        if status == ABSENT and entry.life.created and life is entry.life:
            entry.life.over = True

    def _laws_of(self, table: Table, entry: Entry, event: Event, life: Life, status: str) -> list[str]:
        """The laws about the table that an observation breaks."""
        laws: list[str] = []
        newest = entry.life
        if status != ABSENT and newest.over and event.op != "create":
            if status == W and event.request is None:
                entry.begin(None).doubtful = True
                return []
            return [law for law in broken_in(Seen(status, phase="done")) if law == NO_GHOST]
        if entry.status is not None and entry.first != "none" and status != entry.status:
            broken = broken_in(Seen(status, entry.first))
            laws += [law for law in _OF_TABLE if law in broken and of_profile(law, self.profile)]
        if status == B and entry.status in (W, T):
            self._look(entry, WAKEUP)
            laws += [law for law in broken_in(Seen(status, infos="first")) if law == WAKEUP]
        decides = life is not newest and event.op != "poll" and status != entry.status and not entry.unsure
        if newest.again and not newest.doubtful and (event.op == "create" or decides):
            seen = entry.seen(newest)._replace(status=status, phase="boot" if event.op == "create" else newest.phase)
            if REUSABLE in broken_in(seen):
                laws.append(REUSABLE)
        waits = entry.status == B and entry.left_by in ("create", "write") and not entry.unsure
        if status == S and waits and event.op == "write":
            self._break(
                table, entry, event, COMPLETE, "",
                f"Success over Bootstrapping ({_did(event)}): nothing was transferred. {BY_NAME[COMPLETE].says}",
                B, S, {"waiting"},
            )  # fmt: skip
        return laws

    # ----------------------------------------------------------------------------------------------------------------
    # The life of a request

    def _of_request(self, table: Table, entry: Entry, event: Event) -> None:
        life = entry.life_of(event)
        if event.op == "infos" and event.request is None and life.over:
            life = entry.begin(None)
        if event.op in ("infos", "forget", "end"):
            entry.hear(event, life)
        if event.op == "tell":
            self._told(table, entry, event, life)
        life.take_in(event)
        entry.moved = _later(entry.moved, event.time)
        if event.op == "end":
            self._look(entry, NO_CRASH)
            if event.error is not None:
                who = f"thread {event.thread}" if event.thread else "a thread"
                self._break(table, entry, event, NO_CRASH, "", f"{who} died: {event.error}")
        if event.op == "settle":
            self._settled(table, entry, event, life)
        self._evaluate(table, entry, event, life)

    def _told(self, table: Table, entry: Entry, event: Event, life: Life) -> None:
        """Hold what decode is told against what it was told before; ``life`` has not taken the event in yet.

        Without the request a second Failed may be about another one: only a second Success is judged then.
        """
        if not (known := event.request is not None) and event.incoming != S:
            return
        self._look(entry, TOLD_ONCE)
        says = ""
        if (event.peer, event.incoming) in life.told and not life.may_tell_too(event):
            says = f"decode was told {event.incoming} a second time"
        elif known and life.over and life is not entry.life and entry.life.created:
            says = (
                ""
                if _before(event, entry)
                else f"decode is told {event.incoming} about {life.name}, and {entry.life.name} has the id"
            )
        if says:
            self._break(table, entry, event, TOLD_ONCE, "", says)

    def _settled(self, table: Table, entry: Entry, event: Event, life: Life) -> None:
        if life.pages == "held":
            says = f"the request is over and its pages are still held: {BY_NAME[SETTLEMENT].says}"
            self._break(table, entry, event, SETTLEMENT, "", says)
        if life.created and life.latch == S and "tell" in table.ops and life.wire == "none":
            says = "the request has ended as Success, nothing more will be done for it, and decode was not told"
            self._break(table, entry, event, TOLD_ONCE, "", says)

    def _evaluate(self, table: Table, entry: Entry, event: Event, life: Life) -> None:
        """Hold what is known of the request against the laws that are about more than the table."""
        seen = entry.seen(life)
        if life.pages.startswith("released"):
            self._look(entry, ONCE)
            if life.work and life.work.posted:
                self._look(entry, HELD)
        if seen.status == S and seen.phase == "inflight":
            self._look(entry, COMPLETE)
        if entry.infos and life.created:
            self._look(entry, WAKEUP)
        if life.wire != "none" and life.latch != "none":
            self._look(entry, ONE_OUTCOME)
        broken = broken_in(seen)
        if event.op == "create":  # its constructor may go on and look whether metadata has come: a poll tells
            broken = broken - {WAKEUP}
        if broken and entry.unsure and life is entry.life:  # broken, whatever the table shows now
            broken = broken.intersection(*(broken_in(seen._replace(status=status)) for status in STATUSES))
        for law in _OF_REQUEST:
            if law in broken and not entry.broken & BIT[law]:
                chunks = f"1 {seen.chunk}" if law == COMPLETE else ""
                says = BY_NAME[law].broken.format(**seen._asdict(), chunks=chunks)
                self._break(table, entry, event, law, "", f"{says}: {BY_NAME[law].says}", needs=NEEDS.get(law, ()))

    # ----------------------------------------------------------------------------------------------------------------
    # Looks and findings

    def _look_terminal(self, entry: Entry) -> None:
        self._look(entry, "terminal-sticky")
        self._look(entry, "no-resurrection" if entry.status == F else "success-not-overwritten")

    def _look(self, entry: Entry, law: str) -> None:
        bit = BIT[law]
        if not entry.looked & bit:
            entry.looked |= bit
            self.looks[law] += 1

    def _break(
        self, table: Table, entry: Entry, event: Event, law: str, scenario: str, sentence: str,
        before: str = "", after: str = "", needs: Iterable[str] = (),
    ) -> None:  # fmt: skip
        if entry.broken & BIT[law]:
            return
        entry.broken |= BIT[law]
        self.findings.append(
            Finding(law, event.room, table.node, table.rank, event.line, sentence, scenario, event.op, event.incoming,
                    before, after, frozenset(needs), self.source, self.log, table.process)
        )  # fmt: skip

    def _contradict(self, table: Table, event: Event, entry: Entry, before: str | None, status: str) -> None:
        room = name_of(event.room, table.node, table.rank)
        said = (
            f"{room}, {self.source}{{unit}} {event.line}: {status} stands after {before}, and its time, "
            f"{event.time:g} s, is before {entry.time:g} s: the order is not known, and nobody is accused"
        )
        insort(self.contradictions, (self.log, event.line, said))
        del self.contradictions[NAMED:]


def _later(one: float | None, other: float | None) -> float | None:
    return one if other is None else other if one is None or other > one else one


def _before(event: Event, entry: Entry) -> bool:
    """Whether an event may have been before what the entry shows, by their times.

    Not if one thread did both and its time goes back further than a line can be late: then its clock was set.
    """
    if entry.time is None or event.time is None or event.time >= entry.time:
        return False
    same = event.thread is not None and event.thread == entry.thread
    return not (same and event.time < entry.time - LATE)


def _did(event: Event) -> str:
    return f"{event.op} {event.incoming}" if event.op == "write" and event.incoming else event.op
