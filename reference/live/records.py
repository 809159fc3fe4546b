"""What an abort storm records: plain data, written by ``storm.py`` and read by every report.

Times are seconds since the start of their run, on one clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

import attrs

Role = Literal["control", "treatment", "alone"]
PhaseName = Literal["baseline", "storm", "drain"]
Outcome = Literal["completed", "failed", "aborted", "unaccounted"]
Conclusion = Literal[
    "treatment fixes it", "treatment helps", "no difference", "treatment is worse", "pins", "leaves", "drains",
    "inconclusive", "refused",
]  # fmt: skip
"""The first four compare two builds, the next three are about one; ``refused``: a build was exchanged, or is both."""
HARM: Final = (
    "pinned",
    "unsettled",
    "unaccounted",
    "lost_failures",
    "ghosts",
    "leaks",
    "released_early",
    "wrong_digests",
    "starved",
    "pages_left",
    "old_chunks",
)
"""The counts that should be 0."""
_TWICE: Final = ("starved", "pages_left")
"""... and what says something else about requests that are counted by another of them already."""
HELD: Final = "held"
FORMAT: Final = 5
"""The version of ``report.json``, under the key ``kvlatch-storm``."""


@attrs.frozen
class Build:
    """Which build was stormed.

    ``fingerprint`` is what the engine says of itself: a hash over its code and the rules of its manager, or over what
    a foreign server reports. ``design`` and ``atomicity`` are None where it is not ours; ``published`` says that it is
    upstream's code in an engine of ours.
    """

    name: str
    design: str | None
    atomicity: str | None
    fingerprint: str
    published: bool = False


@attrs.frozen
class Death:
    """A thread of an engine that ended with an exception: which engine and thread, what error, raised where."""

    part: str
    thread: str
    error: str
    where: str


@attrs.frozen
class Phase:
    """A part of a run: baseline, storm or drain, with the fingerprint that the engine gave in it."""

    name: PhaseName
    start: float
    end: float
    fingerprint: str


@attrs.frozen
class Request:
    """What became of one request, as its client saw it. ``code`` is the HTTP status, None if there was none.

    ``wrong`` says that it was answered with a digest of other pages than those of its prompt.
    """

    number: int
    chunks: int
    start: float
    end: float
    outcome: Outcome
    wrong: bool
    code: int | None
    detail: str


@attrs.frozen
class PinnedRoom:
    """A room that was left behind, and the way to its cause.

    ``law`` is the first law that the event log shows broken in the room, None if it shows none; ``line`` is the line.
    """

    room: int
    status: str
    law: str | None
    line: int | None
    says: str
    show: str
    """The command that draws its thread table."""


@attrs.frozen
class BrokenRoom:
    """A room in which an event log shows a law broken, or that has leaked: what it says, and how to see it.

    ``show`` are commands, one for each log that tells a part of it.
    """

    room: int
    law: str
    says: str
    show: tuple[str, ...]


@attrs.frozen
class Traces:
    """What the event logs of a run show together: the command that names all, how many rooms, and some of them.

    Among those are rooms that stay with an engine after the drain: held, or in a table although they are over.
    """

    check: str
    rooms: int
    shown: tuple[BrokenRoom, ...]


@attrs.frozen(kw_only=True)
class Counts:
    """The figures of a run. None is what cannot be known of a build that is not ours.

    ``hits`` are aborts that were written while a worker was past its checks and had not written yet: the race.
    ``pinned`` is how far the gauge is above ``Run.idle`` after the drain. ``lost_failures`` are rooms where a terminal
    status was replaced by a live one, or Failed by Success, as the event log shows. ``ghosts`` are entries in the
    status table without a request; ``leaks`` are rooms that are over and still have an entry in another table of either
    engine (transfer infos, failure records, transfer statuses); ``unsettled`` are requests that an engine has not
    answered after the drain, wherever they are; ``starved`` are those of them that decode alone still holds: prefill is
    through with them, and has not told it. ``pages_left`` are the pages that have not come back then. ``reused`` are
    requests with a room id that an earlier one has had, ``old_chunks`` transfers of a chunk in the life of a later
    request on its id. Of two ranks, what a rank has by itself is added up; ``released_early`` are requests
    whose pages were released while a worker was transferring them. ``wrong_digests`` are requests that decode took for
    complete, with pages that are not those of their prompt.
    """

    sent: int
    completed: int
    failed: int
    aborted: int
    unaccounted: int
    pinned: int
    hits: int | None
    lost_failures: int | None
    ghosts: int | None
    released_early: int | None
    wrong_digests: int | None
    leaks: int | None = None
    unsettled: int | None = None
    starved: int | None = None
    pages_left: int | None = None
    reused: int | None = None
    old_chunks: int | None = None


@attrs.frozen
class Rank:
    """One rank of an engine after the drain: ``part`` is prefill, or prefill rank 1, and so on.

    ``figures`` are those of :class:`Counts` that a rank has by itself; ``leaks`` the entries of rooms that are over, by
    the table that they are in. ``stays`` has the first rooms of each table of the engine that are over and still in it,
    and under :data:`HELD` those that it has not answered.
    """

    part: str
    figures: Mapping[str, int]
    leaks: Mapping[str, int]
    stays: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict)


@attrs.frozen
class Metric:
    """Is the gauge exact? Samples taken, samples where the ledger stood still meanwhile, and how many differed."""

    samples: int
    compared: int
    differed: int


@attrs.frozen(kw_only=True)
class Run:
    """One storm on one build.

    ``gauge`` has pairs (time, requests in the prefill inflight queue); ``idle`` is what it showed before the storm, and
    what is pinned is what it shows beyond that. ``requests`` are those of the storm and, with numbers below 0, of the
    baseline. ``deadline`` is how long the drain may take, and ``longest`` what it was derived from: the longest request
    that completed; ``drained`` is when the gauge came back to ``idle``, None if it did not. ``faults`` are those that
    the storm provoked; ``left_behind`` names processes that did not end and ports that stayed open. ``traces`` are of
    published code, whose logs both engines write.
    """

    role: Role
    repetition: int
    build: Build
    phases: tuple[Phase, ...]
    gauge: tuple[tuple[float, float], ...]
    requests: tuple[Request, ...]
    counts: Counts
    metric: Metric | None
    idle: float
    longest: float
    deadline: float
    drained: float | None
    pinned: tuple[PinnedRoom, ...]
    log: Path | None
    faults: tuple[str, ...] = ()
    left_behind: tuple[str, ...] = ()
    interrupted: bool = False
    deaths: tuple[Death, ...] = ()
    ranks: tuple[Rank, ...] = ()
    traces: Traces | None = None

    @property
    def harm(self) -> int:
        """What a storm compares builds by: pinned requests. Of published code also all else that went wrong.

        A design of ours breaks one law at a time; published code answers a storm in several ways, of which a pinned
        request is one.
        """
        if not self.build.published:
            return self.counts.pinned
        known = (getattr(self.counts, name) or 0 for name in HARM if name not in _TWICE)
        return sum(known) + len(self.deaths)


@attrs.frozen(kw_only=True)
class Storm:
    """A whole experiment: its runs, and the conclusion from them.

    ``p`` is the chance that builds which do not differ would show such a difference or a greater one (Fisher's exact
    test, one-sided, on repetitions that pinned); None where nothing is compared. ``proofs`` has, for each build by its
    name, the verdicts of the proof matrix that the live counts can be held against, by the name of the count.
    """

    command: str
    seed: int
    version: str
    settings: Mapping[str, object]
    runs: tuple[Run, ...]
    conclusion: Conclusion
    sentence: str
    p: float | None
    proofs: Mapping[str, Mapping[str, str]] = attrs.field(factory=dict)

    def of(self, role: Role) -> tuple[Run, ...]:
        """The runs of one role, in their order."""
        return tuple(run for run in self.runs if run.role == role)
