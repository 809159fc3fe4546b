"""The laws of a room's status, judged by running what a published sglang version does.

A law is one of the spec's properties in one situation: `terminal-sticky` of plain writes, `terminal-sticky-split` of
two threads that write at once, `terminal-sticky-in-flight` of an abort during a transfer. Its scripts are played on
the real manager, each on a fresh one, shortest first; the law is broken if an observer of one of them sees what the
property forbids. A script that asks for something which the backend does not have says nothing; a law for which no
script is left is absent there.

The numbers D1 to D15 are those of the violations that were found in the wheels by hand; there is no D11.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, Literal

import attrs

from kvlatch.reference.faults import AdapterFault
from kvlatch.reference.published.sglang import scripts as sglang
from kvlatch.reference.published.sglang.scripts import ABSENT, STATUSES, LockHeld, Observation, Script, Step
from kvlatch.reference.published.wheels import PublishedError
from kvlatch.spec.merges import KEEP, Kept, Table
from kvlatch.spec.properties import BY_NAME
from kvlatch.spec.status import B, F, KVPoll, S, T, W

Verdict = Literal["kept", "broken", "absent"]

ACCESSES: Final = {"write": 6, "create": 8, "lose_prefill": 8, "work": 24}
"""More accesses of the table than the op makes: it is held before each of them."""

# --- Playing --------------------------------------------------------------------------------------


@attrs.frozen
class Play:
    """A script and what was seen after each of its steps."""

    script: Script
    seen: Sequence[Observation]

    @property
    def silent(self) -> str | None:
        """Why it says nothing of the law, if so: an op is missing, or has ended before it could be held."""
        for step, seen in zip(self.script, self.seen, strict=True):
            # A backend without a worker has posted every transfer when `send` returns: no work is left.
            if seen.missing and (step.op, step.part) != ("work", "whole"):
                return seen.missing
            if step.part in ("step", "post") and not seen.held:
                return f"there is nothing to hold a thread at in {step.op}"
        return None

    @property
    def status(self) -> str:
        """The last status."""
        return self.seen[-1].status

    @property
    def polled(self) -> str:
        """What the last step's poll returned, or else the last status."""
        return self.seen[-1].value or self.status

    @property
    def error(self) -> tuple[str, str] | None:
        """The first error that the real code raised, and whose thread it ends."""
        pairs = zip(self.script, self.seen, strict=True)
        return next(((step.thread, seen.error) for step, seen in pairs if seen.error), None)

    def told(self) -> str | None:
        """The first terminal status that the entry has had since it was created."""
        first = None
        for seen in self.seen:
            if seen.status == ABSENT:
                first = None
            elif first is None and seen.status in (F, S):
                first = seen.status
        return first

    def last(self, op: str) -> int:
        """The number of the last step of that op."""
        return max(number for number, step in enumerate(self.script) if step.op == op)


@attrs.frozen
class Row:
    """One line of a trace that a person reads."""

    thread: str
    op: str
    status: str
    remark: str

    @classmethod
    def of(cls, play: Play) -> tuple[Row, ...]:
        """The trace of a play: an op that was led on access by access is one line until something else happens."""
        rows: list[Row] = []
        accesses: dict[str, int] = {}
        for number, (step, seen) in enumerate(zip(play.script, play.seen, strict=True)):
            accesses[step.thread] = accesses.get(step.thread, 0) + 1 if step.part == "step" else 0
            continues = number > 0 and step.part == "step" and play.script[number - 1].thread == step.thread
            if continues and play.script[number - 1].part == "step":
                rows.pop()
            words = " ".join(filter(None, (step.op.replace("_", " "), step.status)))
            if seen.held:
                where = {"begin": "its store", "step": f"access {accesses[step.thread]}"}.get(step.part)
                words += f", held before {where}" if where else ", held in its transfer"
            elif step.part == "finish":
                words += " goes on to its end"
            remarks = (seen.error, f"polls {seen.value}" if seen.value else None)
            rows.append(cls(step.thread, words, seen.status, ", ".join(filter(None, remarks))))
        return tuple(rows)


@attrs.frozen
class Finding:
    """A law on one version and backend: kept, broken in this trace, or absent for the reason in the sentence."""

    law: str
    verdict: Verdict
    sentence: str
    trace: tuple[Row, ...] = ()

    @property
    def steps(self) -> int:
        """The length of the trace, not counting the room's creation at its start."""
        rows = self.trace
        return len(rows[1:] if rows and rows[0].op == "create" else rows)


Judge = Callable[[Play], str | None]
"""What an observer of a play sees that breaks the law, in one sentence; None if it is kept."""


@attrs.frozen
class Law:
    """A property in one situation. `prop` is the spec's, by name; `numbers` are those of the known violations."""

    name: str
    numbers: tuple[str, ...]
    says: str
    scripts: tuple[Script, ...]
    judge: Judge = attrs.field(repr=False)
    prop: str | None = None
    silent: Judge = attrs.field(default=lambda play: play.silent, repr=False)

    def __attrs_post_init__(self) -> None:
        if self.prop is not None and self.prop not in BY_NAME:
            raise ValueError(f"{self.name}: the spec has no property {self.prop}")

    def finding(self, plays: Sequence[Play]) -> Finding:
        """The verdict of the plays, which are fewer than the scripts where a lock forbids some.

        Of those that break the law, the shortest is shown.
        """
        reasons = [self.silent(play) for play in plays]
        if len(plays) == len(self.scripts) and all(reasons):
            return Finding(self.name, "absent", reasons[0] or "")
        telling = [play for play, reason in zip(plays, reasons, strict=True) if reason is None]
        broken = [(Row.of(play), sentence) for play in telling if (sentence := self.judge(play))]
        if not broken:
            return Finding(self.name, "kept", self.says)
        trace, sentence = min(broken, key=lambda found: len(found[0]))
        return Finding(self.name, "broken", sentence, trace)


# --- What an observer sees ------------------------------------------------------------------------


def overwritten(play: Play) -> str | None:
    """terminal-sticky: a terminal status was replaced by a live one, or Failed by Success."""
    told, status = play.told(), play.status
    if status != ABSENT and ((told == F and status != F) or (told == S and status not in (F, S))):
        return f"the room was {told} and ends {status}"
    return None


def demoted(play: Play) -> str | None:
    """success-not-overwritten."""
    return "the room was Success and ends Failed" if play.told() == S and play.status == F else None


def ghost(play: Play) -> str | None:
    """no-ghost: the entry of a room that was cleared is back."""
    cleared = play.seen[play.last("clear")].status == ABSENT
    return f"the room was cleared and its entry is {play.status} again" if cleared and play.status != ABSENT else None


def asleep(play: Play) -> str | None:
    """no-lost-wakeup."""
    lost = play.seen[-1].infos and play.status == B
    return "decode's metadata is stored, and the room stays Bootstrapping" if lost else None


def unaborted(play: Play) -> str | None:
    """terminal-sticky, of an abort: whoever polls after it must not be told Success."""
    if play.polled == S:
        return "the request was aborted and ends as Success"
    return overwritten(play)


def inherited(play: Play) -> str | None:
    """room-reusable: the second request, of which nothing has been heard, is not Bootstrapping."""
    adopted = "" if play.status == F else ", with decode's metadata" * play.seen[-1].infos
    if play.status in (F, W, T, S):
        return f"the second request on the room id has only been created, and reads {play.status} of the first{adopted}"
    return None


def condemned(play: Play) -> str | None:
    """room-reusable: what was recorded of the first request decides the second."""
    failed = "the second request's transfer went well, and it is Failed for what the first one left"
    return failed if play.polled == F else None


def died(play: Play) -> str | None:
    """A thread of the engine ends in an error."""
    return "{} dies: {}".format(*play.error) if play.error else None


def pinned(play: Play) -> str | None:
    """no-pin: the request is in the inflight queue, nothing is left to do, and polling does not move it."""
    stuck = f"the request stays in the inflight queue as {play.status}: it is pinned"
    return died(play) or (stuck if play.seen[-1].inflight else None)


def contradicted(play: Play) -> str | None:
    """one-outcome: the sender and decode are told different things."""
    told = {*play.seen[-1].told}
    if told == {F, S}:
        return "decode is told Failed and Success"
    if (S in told and play.polled == F) or (F in told and play.polled == S):
        return f"the sender reports {play.polled} and decode is told {''.join(told)}"
    return None


def no_message(play: Play) -> str | None:
    """Why a play says nothing of what decode is told."""
    untold = None if play.seen[-1].told else "decode learns of Success from the transfer itself, not from a message"
    return play.silent or untold


def outvoted(play: Play) -> str | None:
    """Over ranks the minimum counts: Failed wins, else the slowest rank."""
    mine, other = play.seen[-2].value or "", play.script[-1].status or ""
    right = min(mine, other, key=STATUSES.index)
    return None if play.polled == right else f"ranks with {mine} and {other} are reduced to {play.polled}, not {right}"


def meddled(play: Play) -> str | None:
    """A write has read or stored the entry of another room."""
    return "the write of one room has accessed the entry of another" if play.seen[-1].others else None


# --- Scripts --------------------------------------------------------------------------------------

CREATE: Final = Step("scheduler", "create")
METADATA: Final = Step("bootstrap", "metadata")
SEND: Final = Step("scheduler", "send")
SEND_LAST: Final = Step("scheduler", "send_last")
WORK: Final = Step("worker 0", "work")
POLL: Final = Step("scheduler", "poll")
CLEAR: Final = Step("scheduler", "clear")
SETTLE: Final = Step("scheduler", "settle")
POP: Final = Step("bootstrap", "pop_infos")
ABORT: Final = Step("scheduler", "abort")
ABORTS: Final = (ABORT, Step("bootstrap", "abort_notice"))
"""By the client, and by decode."""
SENT: Final = (CREATE, METADATA, SEND_LAST)


def write(status: str, thread: str = "bootstrap") -> Step:
    """A plain write."""
    return Step(thread, "write", status=status)


def during(step: Step, *between: Step) -> Iterator[Script]:
    """What happens during an op, between any two of its accesses."""
    first, finish = attrs.evolve(step, part="step"), attrs.evolve(step, part="finish", status=None)
    for times in range(1, ACCESSES[step.op]):
        yield (*[first] * times, *between, finish)


def in_flight(*between: Step) -> Script:
    """What happens while a worker's transfer is in flight."""
    return (attrs.evolve(WORK, part="post"), *between, attrs.evolve(WORK, part="finish"))


def after_terminal() -> Iterator[Script]:
    for before in ((), (CREATE,)):
        for late in (T, S, W, B):
            yield (*before, write(F), write(late, "worker 0"))
    for late in (T, W, B):
        yield (CREATE, write(S, "worker 0"), write(late))


def two_writers() -> Iterator[Script]:
    for before in ((CREATE,), (CREATE, write(W))):
        for status in (T, S):
            for script in during(write(status, "worker 0"), write(F)):
                yield (*before, *script)


def cleared_by_another() -> Iterator[Script]:
    for status in (T, S, F):
        for script in during(write(status, "worker 0"), CLEAR):
            yield (CREATE, *script)


def aborted_in_flight() -> Iterator[Script]:
    for abort in ABORTS:
        yield (*SENT, *in_flight(abort), POLL)
    yield (*SENT, ABORT, POLL)  # where there is no worker, it is the poll that asks for the transfer


def cleared_in_flight() -> Iterator[Script]:
    for before in ((), *((abort,) for abort in ABORTS)):
        for send in (SEND, SEND_LAST):
            yield (CREATE, METADATA, send, *in_flight(*before, CLEAR))


def cleared_under_worker() -> Iterator[Script]:
    for script in (*during(WORK, CLEAR), in_flight(CLEAR)):
        yield (*SENT, *script)


def told_twice() -> Iterator[Script]:
    for abort in ABORTS:
        for script in (*during(WORK, abort), in_flight(abort)):
            yield (*SENT, *script, POLL)


def heartbeat_lost() -> Iterator[Script]:
    receive, lose, success = Step("decode", "receive"), Step("heartbeat", "lose_prefill"), write(S, "decode")
    for script in ((success, lose), *during(lose, success)):
        yield (receive, *script)


def second_sender() -> Script:
    """Two requests with one room id at once: the first is sent, settles and clears; then the second is sent."""
    second = "scheduler (second)"
    first = (CREATE, Step(second, "create"), METADATA, SEND_LAST, WORK, SETTLE)
    return (*first, Step(second, "send_last"), WORK, SETTLE)


CELLS: Final = tuple((current, new) for current in (*STATUSES, ABSENT) for new in STATUSES)
"""The cells of a merge's table, row by row."""


def cell(current: str, new: str) -> Script:
    """Writes a status over another, however that came to be."""
    return (*([] if current == ABSENT else [Step("nobody", "put", status=current)]), write(new))


UNEVENTFUL: Final = (CREATE, METADATA, SEND, WORK, SEND_LAST, WORK, SETTLE)
"""Two chunks, no incident: the request must settle, or else what we stand in for is not good enough to judge by."""

# --- The catalogue --------------------------------------------------------------------------------

LAWS: Final = (
    Law("terminal-sticky", ("D1",), "Plain writes replace no terminal status by a live one, nor Failed by Success.",
        (*after_terminal(),), overwritten, "terminal-sticky"),
    Law("terminal-sticky-split", ("D2",), "Nor do two threads that write at once.",
        (*two_writers(),), overwritten, "terminal-sticky"),
    Law("no-lost-wakeup", ("D3",), "Metadata that arrives before the sender is constructed, or meanwhile, is not lost.",
        ((METADATA, CREATE), *during(CREATE, METADATA)), asleep, "no-lost-wakeup"),
    Law("no-ghost-split", ("D3b",), "A write during which the room is cleared does not bring its entry back.",
        (*cleared_by_another(),), ghost, "no-ghost"),
    Law("success-not-overwritten-decode", ("D4",),
        "On decode, a heartbeat that gives up does not overwrite a Success.",
        (*heartbeat_lost(),), demoted, "success-not-overwritten"),
    Law("terminal-sticky-in-flight", ("D5",), "A request that is aborted while its transfer is in flight stays Failed.",
        (*aborted_in_flight(),), unaborted, "terminal-sticky"),
    Law("no-ghost-in-flight", ("D6",), "A room that is cleared while a transfer is in flight does not come back.",
        (*cleared_in_flight(),), ghost, "no-ghost"),
    Law("room-reusable-uncleared", ("D7",), "A room id can be used again after an abort that has not cleared it.",
        tuple((CREATE, abort, CREATE) for abort in ABORTS), inherited, "room-reusable"),
    Law("worker-survives-clear", ("D8",), "A worker's thread survives that a room is cleared under it.",
        (*cleared_under_worker(),), died),
    Law("no-pin", ("D9",), "A request whose transfer infos are gone settles all the same (here they are taken away).",
        ((CREATE, METADATA, POP, SEND_LAST, WORK, SETTLE), (CREATE, METADATA, SEND_LAST, POP, WORK, SETTLE)),
        pinned, "no-pin"),
    Law("one-outcome", ("D10",), "The sender and decode are told the same, whenever an abort comes.",
        (*told_twice(),), contradicted, "one-outcome", no_message),
    Law("no-ghost-late-metadata", ("D12",), "Metadata that arrives after the room was cleared creates no entry.",
        ((CREATE, CLEAR, METADATA),), ghost, "no-ghost"),
    Law("room-reusable-stale-record", ("D13",), "A recorded failure does not outlive its request.",
        tuple((CREATE, abort, CLEAR, CREATE, METADATA, SEND_LAST, WORK, POLL) for abort in ABORTS),
        condemned, "room-reusable"),
    Law("room-reusable-stale-metadata", ("D14",), "A request does not adopt late metadata of the one before.",
        ((CREATE, CLEAR, METADATA, CREATE),), inherited, "room-reusable"),
    Law("no-pin-two-senders", ("D15",), "Of two requests with one room id, the second settles as well.",
        (second_sender(),), pinned, "no-pin"),
    Law("success-not-overwritten", (), "Plain writes do not replace Success by Failed (if the first terminal wins).",
        ((CREATE, write(S, "worker 0"), write(F)),), demoted, "success-not-overwritten"),
    Law("failed-wins-over-ranks", (), "Polls are reduced over ranks to their minimum: Failed wins, else the slowest.",
        tuple((CREATE, Step("nobody", "put", status=mine), POLL, Step("scheduler", "reduce", status=other))
              for mine in STATUSES for other in STATUSES), outvoted),
    Law("other-rooms-untouched", (), "A write touches the entry of its own room only.",
        tuple(cell(*names) for names in CELLS), meddled),
)  # fmt: skip

LAW: Final = {law.name: law for law in LAWS}


class UnknownLaw(PublishedError):
    """No law has that name."""

    exit_code = 2


@attrs.frozen
class Examination:
    """All there is to say of one version and backend: a finding for each law, and its merge."""

    findings: tuple[Finding, ...]
    merge: Table


def judge(version: str, backend: str, only: Sequence[str] = (), *, timeout: float = 60.0) -> list[Finding]:
    """A finding for each law, or for each in `only`, in the order of the catalogue; all played in one child process.

    Raises UnknownLaw, or what `sglang.outcomes` raises. An AdapterFault in any script is raised, except that a lock of
    the real code which keeps two threads apart is no fault: that script cannot happen there.
    """
    if unknown := [name for name in only if name not in LAW]:
        raise UnknownLaw(f"no law is called {', '.join(unknown)}; known: {', '.join(LAW)}")
    laws = [law for law in LAWS if not only or law.name in only]
    return _findings(version, backend, laws, [], timeout)[0]


def extract_table(version: str, backend: str, *, timeout: float = 60.0) -> Table:
    """The merge of a published version, by its real update_status: all cells, and whether a store happened at all.

    Raises as `judge` does; AdapterFault also where a write raises.
    """
    who = f"sglang {version} {backend}"
    return _table(who, _findings(version, backend, [], CELLS, timeout)[1])


def examine(version: str, backend: str, *, timeout: float = 60.0) -> Examination:
    """Both at once, in one child process. Raises as they do."""
    findings, cells = _findings(version, backend, LAWS, CELLS, timeout)
    return Examination(tuple(findings), _table(f"sglang {version} {backend}", cells))


def _findings(
    version: str, backend: str, laws: Sequence[Law], cells: Sequence[tuple[str, str]], timeout: float
) -> tuple[list[Finding], list[Play]]:
    """The findings of these laws, and the plays of these cells."""
    scripts = [UNEVENTFUL, *(script for law in laws for script in law.scripts), *(cell(*names) for names in cells)]
    outcomes = sglang.outcomes(version, backend, scripts, timeout=timeout)
    plays = iter([_play(script, outcome) for script, [outcome] in zip(scripts, outcomes, strict=True)])
    uneventful = next(plays)
    if uneventful is not None and uneventful.silent is None and (why := pinned(uneventful)):
        raise AdapterFault(f"sglang {version} {backend}: a request without incident does not settle: {why}")
    findings = [law.finding([play for _ in law.scripts if (play := next(plays))]) for law in laws]
    return findings, [play for play in plays if play]


def _play(script: Script, outcome: list[Observation] | AdapterFault) -> Play | None:
    """The play of a script; None if a lock keeps the threads apart."""
    if isinstance(outcome, LockHeld):
        return None
    if isinstance(outcome, AdapterFault):
        raise outcome
    return Play(script, outcome)


def _table(who: str, plays: Sequence[Play]) -> Table:
    """The merge that the plays of all cells show."""
    merged: list[KVPoll | Kept] = []
    for (current, new), play in zip(CELLS, plays, strict=True):
        if play.error is not None:
            raise AdapterFault(f"{who}: {current} <- {new}: {play.error[1]}")
        merged.append(KVPoll[play.status] if play.seen[-1].stores else KEEP)
    columns = len(STATUSES)
    return tuple(tuple(merged[row : row + columns]) for row in range(0, len(merged), columns))
