"""What an abort storm has shown: figures, and what to think of them.

``terminal.py`` puts it on a terminal, ``page.py`` on a page. Names and details may come from a foreign server: all text
goes through :func:`kvlatch.commands.pages.printable`.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

import attrs

from kvlatch.commands.pages import printable
from kvlatch.reference.live.load import ROUNDS
from kvlatch.reference.live.records import Build, Death, Role, Run, Storm

_ROLES: Final[tuple[Role, ...]] = ("control", "treatment", "alone")
ROOMS_SHOWN: Final = 3
"""Pinned rooms of a run that are shown at once; the others are folded on the page, and left out on a terminal."""
UNKNOWN: Final = "not known"


@attrs.frozen
class Count:
    """A figure of ``records.Counts``: its heading, and what it counts."""

    name: str
    heading: str
    says: str


COUNTS: Final = (
    Count("sent", "sent", "Requests that clients have sent."),
    Count("completed", "completed", "Requests that were answered in full."),
    Count("failed", "failed", "Requests that the server answered with an error."),
    Count("aborted", "aborted", "Requests whose client hung up, as the storm wants it."),
    Count("unaccounted", "unaccounted", "Requests of which the client never heard again."),
    Count("hits", "hits", "Aborts that were written while a transfer worker was past its checks and had not written."),
    Count(
        "pinned", "pinned", "Requests left in the prefill inflight queue after the drain, beyond what was in it before."
    ),
    Count(
        "lost_failures", "lost failures", "Rooms where a terminal status gave way to a live one, or Failed to Success."
    ),
    Count("ghosts", "ghosts", "Entries of the status table that belong to no request."),
    Count("released_early", "pages released under a transfer", "Requests whose pages were released while being read."),
    Count("wrong_digests", "wrong digests", "Requests that decode took for complete, with pages of another prompt."),
)
OF_UPSTREAM: Final = (
    Count("unsettled", "held for ever", "Requests that an engine has not answered after the drain, in any queue."),
    Count("starved", "starved at decode", "... which prefill is through with, and nobody has told decode so."),
    Count("pages_left", "pages taken", "Pages of either engine that have not come back after the drain."),
    Count("reused", "ids used again", "Requests with a room id that an earlier one has had (--reuse)."),
    Count("old_chunks", "old chunks", "Transfers of a chunk in the life of a later request on its room id."),
    Count("leaks", "leaks", "Rooms that are over, with an entry in another table: infos, failure records, transfers."),
)


@attrs.frozen
class Group:
    """The runs of one build in one role."""

    label: str
    build: Build
    runs: tuple[Run, ...]

    def total(self, count: str) -> int | None:
        """A count over all repetitions; None if it is not known of one of them."""
        figures = [getattr(run.counts, count) for run in self.runs]
        return None if None in figures else sum(figures)

    @property
    def harmed_in(self) -> str:
        """How many repetitions pinned; of published code, in how many anything went wrong."""
        return f"{sum(run.harm > 0 for run in self.runs)} of {len(self.runs)}"

    @property
    def deaths(self) -> tuple[Death, ...]:
        """The threads that died."""
        return tuple(death for run in self.runs for death in run.deaths)

    @property
    def parts(self) -> tuple[str, ...]:
        """The ranks of both engines, by name; empty where they have not been asked."""
        return tuple(dict.fromkeys(rank.part for run in self.runs for rank in run.ranks))

    def of_rank(self, part: str, count: str) -> int | None:
        """What a rank has of a count in all repetitions; None if it has none of that."""
        figures = [rank.figures.get(count) for run in self.runs for rank in run.ranks if rank.part == part]
        known = [figure for figure in figures if figure is not None]
        return sum(known) if known else None

    @property
    def leaks(self) -> dict[str, int]:
        """Entries of requests that are over, by engine and table."""
        found: Counter[str] = Counter()
        for run in self.runs:
            for rank in run.ranks:
                found.update({f"{rank.part}'s {table}": count for table, count in rank.leaks.items()})
        return dict(found)


@attrs.frozen
class Held:
    """A live count held against the verdict of the proofs."""

    label: str
    count: Count
    live: int | None
    verdict: str

    @property
    def contradicts(self) -> bool:
        """It was seen, and is proved never to happen."""
        return bool(self.live) and self.verdict.startswith("proved")

    @property
    def says(self) -> str:
        """What the two say together."""
        if self.live is None:
            return "cannot be compared"
        if self.contradicts:
            return "CONTRADICTS THE PROOF"
        if self.verdict.startswith("proved"):
            return "as proved"
        return "seen, as it can be" if self.live else "not seen in this storm"


@attrs.frozen
class Answer:
    """What is known about a doubt; ``suspicious`` if it does not dispel it."""

    text: str
    suspicious: bool = False


@attrs.frozen
class Doubt:
    """What a careful reader asks before they believe a result, with an answer for each build."""

    question: str
    answers: tuple[Answer, ...]


def remarks(group: Group) -> Iterator[str]:
    """What the figures of a build do not say: which threads died, how often, where entries leak, and who waits."""
    every = Counter(f"{one.part}'s {one.thread} thread died of {one.error} at {one.where}" for one in group.deaths)
    alike: dict[str, list[str]] = {}
    for death in every:
        alike.setdefault(re.sub(r"[0-9]{6,}(-[0-9]+)?", "…", death), []).append(death)
    for deaths in alike.values():
        number = sum(every[death] for death in deaths)
        yield deaths[0] if number == 1 else f"{deaths[0]}, and {number - 1} more like it"
    if starved := group.total("starved"):
        held = group.total("unsettled")
        what = f"{starved:,} of {held:,} requests held for ever are held by decode alone: prefill is through with them"
        yield f"{what}, and nobody has told it; {group.total('pages_left'):,} pages have not come back"
    if leaks := group.leaks:
        yield f"leaks are {', '.join(f'{count:,} in {table}' for table, count in leaks.items())}"


def check_command(run: Run) -> str | None:
    """The command that checks the logs of a run."""
    if run.traces is not None:
        return run.traces.check
    return None if run.log is None else shlex.join(["kvlatch", "check", str(run.log)])


def groups(storm: Storm) -> tuple[Group, ...]:
    """The builds of a storm, control first, each with its runs."""
    found: dict[str, list[Run]] = {}
    for run in sorted(storm.runs, key=lambda run: _ROLES.index(run.role)):
        found.setdefault(_label(run), []).append(run)
    return tuple(Group(label, runs[0].build, tuple(runs)) for label, runs in found.items())


def _label(run: Run) -> str:
    return printable(run.build.name if run.role == "alone" else f"{run.role}: {run.build.name}")


# --------------------------------------------------------------------------------------------------------------------
# What to think of it


def chance(p: float | None) -> str:
    """The p value in plain words."""
    if p is None:
        return "Nothing was compared, so there is no p value."
    percent = f"{float(f'{100 * p:.2g}'):g}%" if p >= 0.0001 else "less than 0.01%"
    return (
        f"p = {p:.2g}: of experiments with two builds that do not differ, {percent} would show such a difference, or a "
        "greater one, by chance alone (Fisher's exact test on the repetitions that pinned; one-sided: differences the "
        "other way round are not counted)."
    )


def window(storm: Storm) -> str:
    """How the race was made more frequent, and how long it was waited for; empty for a deployment that is not ours."""
    noise, longest, hits = (storm.settings.get(name) for name in ("noise", "noise_seconds", "hits"))
    if not isinstance(noise, float | int) or not isinstance(longest, float | int):
        return ""
    widened = (
        f"The window of the race was widened: with a chance of {noise:g}, a transfer worker waited up to {longest:g} s "
        "before it stored a status or took a lock (--noise). That makes a rare order of steps frequent, and makes none "
        "possible that was not."
        if noise
        else "The window of the race was not widened (--noise 0)."
    )
    if not hits:
        return widened
    return (
        f"{widened} Each storm went on, for {ROUNDS} rounds at most, until {hits} aborts had landed inside the window, "
        "whatever had been pinned (--hits)."
    )


def held(storm: Storm) -> tuple[Held, ...]:
    """Every count that the proofs say something about, build by build."""
    return tuple(
        Held(group.label, count, group.total(count.name), printable(verdicts[count.name]))
        for group in groups(storm)
        for verdicts in [storm.proofs.get(group.build.name, {})]
        for count in COUNTS
        if count.name in verdicts
    )


def cautions(storm: Storm) -> tuple[str, ...]:
    """What a reader must know before they believe the conclusion."""
    found = []
    if any(run.interrupted for run in storm.runs):
        found.append("The storm was interrupted: this is about what had been run until then.")
    found += [
        f"{row.label}: {row.live} {row.count.heading}, which contradicts the proof ({row.verdict})."
        for row in held(storm)
        if row.contradicts
    ]
    found += [answer.text for doubt in doubts(storm) for answer in doubt.answers if answer.suspicious]
    if faults := {fault for run in storm.runs for fault in run.faults}:
        found.append(f"Faults were provoked on the way: {', '.join(sorted(faults))}.")
    if number := sum(len(run.left_behind) for run in storm.runs):
        found.append(f"{many(number, 'process or port', 'processes or ports')} stayed behind.")
    return tuple(found)


def doubts(storm: Storm) -> tuple[Doubt, ...]:
    """The questions that a careful reader asks, answered from the record."""
    builds = groups(storm)
    return (
        Doubt("Is the gauge exact?", tuple(_is_exact(group) for group in builds)),
        Doubt("Which build ran?", (*(_which(group) for group in builds), *_twins(builds))),
        Doubt("Did the race happen?", tuple(_raced(group) for group in builds)),
        Doubt("Stuck, or still on their way?", tuple(_stuck(group) for group in builds)),
        Doubt("Is it chance?", (Answer(chance(storm.p)), *(_repeated(group) for group in builds))),
    )


def _is_exact(group: Group) -> Answer:
    metrics = [run.metric for run in group.runs if run.metric is not None]
    if not metrics:
        return Answer(f"{group.label}: {UNKNOWN}; there is no ledger of this build to compare the gauge with.")
    samples, compared, differed = (
        sum(getattr(metric, name) for metric in metrics) for name in ("samples", "compared", "differed")
    )
    found = "it was what the ledger says in each" if not differed else f"IT DIFFERED from the ledger in {differed:,}"
    text = f"{group.label}: the ledger stood still in {compared:,} of {samples:,} samples of the gauge, and {found}."
    return Answer(text, suspicious=bool(differed) or not compared)


def _which(group: Group) -> Answer:
    """The fingerprint, which must be the same in each phase of each repetition."""
    seen: dict[str, list[str]] = {}
    for run in group.runs:
        seen.setdefault(run.build.fingerprint, [])
        for phase in run.phases:
            seen.setdefault(phase.fingerprint, []).append(f"{phase.name} {run.repetition}")
    if len(seen) == 1:
        return Answer(f"{group.label}: {printable(next(iter(seen)))} in every phase of every repetition.")
    where = "; ".join(f"{printable(one)} ({', '.join(phases) or 'announced'})" for one, phases in seen.items())
    return Answer(f"{group.label}: THE BUILD CHANGED: {where}.", suspicious=True)


def _twins(builds: Sequence[Group]) -> Iterator[Answer]:
    """Builds that cannot be told apart."""
    for number, one in enumerate(builds):
        for other in builds[:number]:
            if one.build.fingerprint == other.build.fingerprint:
                yield Answer(f"{other.label} and {one.label} HAVE THE SAME FINGERPRINT: they may be one build.", True)


def _raced(group: Group) -> Answer:
    hits = [run.counts.hits for run in group.runs]
    known = [number for number in hits if number is not None]
    if len(known) < len(hits):
        return Answer(f"{group.label}: {UNKNOWN}; what its transfer workers did meanwhile cannot be seen.")
    if not any(known):
        return Answer(f"{group.label}: NOT ONCE, so that nothing pinned would mean nothing.", suspicious=True)
    each = f" ({' + '.join(map(str, known))} in the repetitions)" if len(known) > 1 else ""
    met = f"{many(sum(known), 'abort')}{each} met a worker that was past its checks and had not written yet"
    return Answer(f"{group.label}: {met}.", suspicious=not all(known))


def _stuck(group: Group) -> Answer:
    """How long the drain waited, and how that compares with a request that was not stuck."""
    drains = [(run, phase) for run in group.runs for phase in run.phases if phase.name == "drain"]
    if not drains:
        return Answer(f"{group.label}: {UNKNOWN}; no repetition came to its drain.")
    deadlines = [f"{run.deadline:.3g}" for run, _ in drains]
    ratios = [run.deadline / run.longest for run, _ in drains if run.longest]
    compared = f"at least {min(ratios):.2g} times the longest request" if ratios else "and no request was completed"
    before = max(run.idle for run, _ in drains)
    empty = f"down to the {before:g} that were in it before" if before else "empty"
    took = [run.drained - phase.start for run, phase in drains if run.drained is not None]
    if len(took) < len(drains):
        end = f"it was not {empty} then in {len(drains) - len(took)} of {many(len(drains), 'repetition')}"
    else:
        end = f"it was {empty} {max(took):.3g} s after the storm at the latest"
    waited = f"the queue was given {', '.join(deadlines)} s to drain, {compared}"
    return Answer(f"{group.label}: {waited}; {end}.", suspicious=min(ratios, default=0) < 1)


def _repeated(group: Group) -> Answer:
    what = "something went wrong" if group.build.published else "requests were pinned"
    return Answer(f"{group.label}: {what} in {group.harmed_in} repetitions.")


def counted(builds: Sequence[Group]) -> tuple[Count, ...]:
    """What is counted of these builds: more where published code is among them, whose tables are upstream's."""
    return (*COUNTS, *OF_UPSTREAM) if any(group.build.published for group in builds) else COUNTS


def harmed(builds: Sequence[Group]) -> str:
    """What is counted of the repetitions of these builds."""
    upstream = any(group.build.published for group in builds)
    return "repetitions with a fault" if upstream else "repetitions that pinned"


def many(number: int, one: str, many: str = "") -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"
