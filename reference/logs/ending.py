"""What the end of a log shows: requests that are stuck, and entries and pages that were left behind.

A log ends somewhere, and a request that is live there may be on its way. It is called *pinned* if it is live although
its entry had been terminal (whoever settles terminal requests is done with it), if nothing has happened to it for
``quiet`` seconds while the log went on, or if its last chunk was sent, every thread is through with it, and it is live:
the spec's own formula. Polls that are answered alike are no progress. Stuck in Bootstrapping it breaks settlement;
later it breaks no-pin and so settlement too.

A *leak* is what nobody will come back for: an entry that has been terminal for ``quiet`` seconds and not been cleared,
or pages of a request that was cleared that long ago. Both count only on a node that logs clears, or releases.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import attrs

from kvlatch.reference.laws import NO_CRASH, NO_DEADLOCK, TOLD_ONCE
from kvlatch.reference.logs.ends import SCENARIO as BOTH_ENDS
from kvlatch.reference.logs.ends import both_ends
from kvlatch.reference.logs.entry import Entry, Life
from kvlatch.reference.logs.events import LIVE, STATUSES, Room, name_of
from kvlatch.reference.logs.finding import Finding
from kvlatch.reference.logs.judge import BIT, HELD, NO_GHOST, NO_PIN, ONE_OUTCOME, REUSABLE, SETTLEMENT, Judge, Table
from kvlatch.reference.logs.laws import broken_in
from kvlatch.spec.properties import BY_NAME
from kvlatch.spec.status import ABSENT, B, F, S

LEAK: Final = "leak"
UNSEEN: Final = "unobserved"
"""The last status of an entry that was observed in none, or not since its last create."""
WHY: Final[Mapping[str, str]] = {
    "terminal-sticky": "no room was looked at again after it had been terminal",
    "no-resurrection": "no room was looked at again after it had failed",
    "success-not-overwritten": "no room was looked at again after it had succeeded",
    "success-complete": "no transfers are logged (enqueue, arrive) for a room that was shown as Success",
    NO_PIN: "no times, and no ends of threads, are logged for a room that waited for its transfer",
    SETTLEMENT: "no room was settled, and none was silent for long enough",
    NO_GHOST: "no room was cleared",
    HELD: "no request has both transfers (post, arrive) and a release of its pages logged",
    "released-once": "no release of pages is logged",
    ONE_OUTCOME: "what the sender concluded and what decode was told, or both ends of one request, are not logged",
    "no-lost-wakeup": "no metadata (infos) of a request that was created is logged",
    REUSABLE: "no room id was used twice",
    NO_CRASH: "no ends of threads are logged",
    NO_DEADLOCK: "a log does not show who waits for whom",
    TOLD_ONCE: "no tell is logged that is of Success or says its request",
}
"""Why a law was not judged: what was missing."""
_ENDED: Final = {"take", "end"}
_TRANSFERS: Final = {"post", "arrive"}


class Unsaid(NamedTuple):
    """Why a finding does not count, and where it is: what the log would have to say."""

    log: int
    line: int
    says: str


@attrs.frozen
class Ending:
    """All findings of a log, with the counts that go with them, and why the other laws could not be judged."""

    findings: tuple[Finding, ...]
    looks: Mapping[str, int]
    unsaid: Mapping[str, Unsaid]
    final: Mapping[str, int]
    left: int
    """Entries that are in a table at the end."""
    running: int
    """Those of them that are live and have not been silent for long: on their way."""

    def merge(self, other: Ending) -> Ending:
        """The ending of two parts of the rooms, each judged by itself."""
        return Ending(
            findings=tuple(sorted((*self.findings, *other.findings), key=_place)),
            looks=Counter(self.looks) + Counter(other.looks),
            unsaid={
                law: min(one.unsaid[law] for one in (self, other) if law in one.unsaid)
                for law in {**self.unsaid, **other.unsaid}
            },
            final={status: self.final.get(status, 0) + other.final.get(status, 0) for status in (*STATUSES, UNSEEN)},
            left=self.left + other.left,
            running=self.running + other.running,
        )


def _place(finding: Finding) -> tuple[int, int, int, str, str, str]:
    """Findings in their order: at a line, at the end, of both ends. Those of one room that are alike keep theirs."""
    room = f"{type(finding.room).__name__} {finding.room}"
    if finding.line:
        return 0, finding.log, finding.line, "", "", ""
    if finding.scenario == BOTH_ENDS:
        return 2, 0, 0, room, str(finding.rank), ""
    return 1, 0, 0, str(finding.node), str(finding.rank), room


def ending(judge: Judge) -> Ending:
    """What the log shows as a whole, if it ends here. The judge may be fed further afterwards."""
    kept, unsaid = _that_count(judge)
    pinned, running, left = [], 0, 0
    looks = dict(judge.looks)
    final = dict.fromkeys((*STATUSES, UNSEEN), 0)
    for table in judge.tables.values():
        for room, entry in table.entries.items():
            final[entry.status or UNSEEN] += 1
            left += entry.status not in (None, ABSENT)
            found = list(_left_behind(judge, table, room, entry))
            pinned += found
            laws = {finding.law for finding in found}
            running += not laws and entry.status in LIVE and not entry.life.over
            for law in _settled(entry, laws):
                looks[law] = looks.get(law, 0) + 1
    both, pairs = both_ends(judge)
    looks[ONE_OUTCOME] = looks.get(ONE_OUTCOME, 0) + pairs
    findings = tuple(sorted((*kept, *pinned, *both), key=_place))
    return Ending(findings, Counter(looks), unsaid, final, left, running)


def reasons(ended: Ending) -> dict[str, str]:
    """Why each law that nothing was looked at for was not judged."""
    return {
        law: ended.unsaid[law].says if law in ended.unsaid else why
        for law, why in WHY.items()
        if not ended.looks.get(law)
    }


def _that_count(judge: Judge) -> tuple[list[Finding], dict[str, Unsaid]]:
    """The findings for which the log says enough; of the others, what it would have to say."""
    kept: list[Finding] = []
    unsaid: dict[str, Unsaid] = {}
    sending = {place: bool(table.ops & _TRANSFERS) for place, table in judge.tables.items()}
    for finding in judge.findings:
        place = finding.node, finding.rank, finding.process
        missing = finding.needs - judge.tables[place].ops
        elsewhere = "waiting" in finding.needs and any(sending.values()) and not sending[place]
        room = name_of(finding.room, finding.node, finding.rank)
        if elsewhere:
            says = (
                f"{room} went from Bootstrapping to Success, and transfers are logged in other tables, not in this one"
            )
        elif not missing:
            kept.append(finding)
            continue
        elif "waiting" in missing:
            says = (
                f"{room} went from Bootstrapping to Success, and the log has no write of WaitingForInput or "
                "Transferring and no transfer at all"
            )
        else:
            says = f"no {' or '.join(sorted(missing))} is logged, which tells when a thread is through"
        found = Unsaid(finding.log, finding.line, says)
        unsaid[finding.law] = min(unsaid.get(finding.law, found), found)
    return kept, unsaid


def _silence(table: Table, entry: Entry) -> float | None:
    """For how long nothing has happened to an entry; None if its times are not known.

    Where a clock was set back, the log did not go on for as long as its latest time says.
    """
    if table.end is None or table.last is None or entry.moved is None:
        return None
    return min(table.end, table.last) - entry.moved


def _left_behind(judge: Judge, table: Table, room: Room, entry: Entry) -> Iterator[Finding]:
    """Pins and leaks of one entry."""
    life, silence = entry.life, _silence(table, entry)
    silent = silence is not None and silence >= judge.quiet
    where = table.node, table.rank
    ghost = life.over  # of a request that has settled
    if entry.status in LIVE and not entry.unsure and not ghost:
        why = _why_pinned(table, entry, life)
        if not why and silent:
            why = f"although nothing has happened to it for {silence:,.0f} s (the limit is {judge.quiet:,.0f} s)"
        if why:
            sentence = f"ends {entry.status} {why}"
            if entry.status != B or entry.first != "none":
                yield Finding(NO_PIN, room, *where, 0, f"pinned: it {sentence}: {BY_NAME[NO_PIN].says}")
            yield Finding(SETTLEMENT, room, *where, 0, f"it {sentence}: {BY_NAME[SETTLEMENT].says}")
    elif entry.status in (F, S) and not life.over and silent and "clear" in table.ops:
        said = f"it has been {entry.status} for {silence:,.0f} s and was not cleared: its entry is left behind"
        yield Finding(SETTLEMENT, room, *where, 0, said, LEAK)
    elif life.over and life.pages == "held" and silent and "release" in table.ops and life.phase != "done":
        said = f"it was cleared {silence:,.0f} s ago and its pages are still held: {BY_NAME[SETTLEMENT].says}"
        yield Finding(SETTLEMENT, room, *where, 0, said, LEAK)


def _why_pinned(table: Table, entry: Entry, life: Life) -> str:
    if entry.first != "none":
        return "although it had been terminal"
    if table.ops >= _ENDED and life.work and life.work.ended and NO_PIN in broken_in(entry.seen(life)):
        return "although its last chunk was sent and no thread has anything left to do for it"
    return ""


def _settled(entry: Entry, broken: set[str]) -> Iterator[str]:
    """The laws about the end of a request that could have been broken by this entry."""
    life = entry.life
    over = entry.looked & BIT[NO_GHOST] and entry.status == ABSENT and life.pages != "held"
    if over or SETTLEMENT in broken or (life.phase == "done" and life.pages != "none"):
        yield SETTLEMENT
    timed = entry.moved is not None or (life.work is not None and life.work.ended)
    if NO_PIN in broken or (entry.waited and timed and (over or entry.status in (F, S))):
        yield NO_PIN
