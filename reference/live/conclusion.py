"""The conclusion on a storm. Pure functions of its records, so that each rule can be tested by itself."""

from __future__ import annotations

from collections.abc import Sequence
from math import comb
from typing import Final

from kvlatch.reference.live.records import Conclusion, Run

LEVEL: Final = 0.05
"""A difference that chance would make more often than this proves nothing."""
ENOUGH: Final = 20
"""A build that has pinned nothing is not cleared by fewer hits. The incident's build pins one request in four hits or
so: none in twenty would be chance once in 300 times (0.75 to the 20th)."""


class Refused(ValueError):
    """The runs cannot be compared; the message says why, and what to do."""


def fisher(more: int, of: int, fewer: int, among: int) -> float:
    """Fisher's exact test, one-sided: how likely ``more`` of ``of``, or yet more, are if both groups are alike."""
    total = more + fewer
    ways = [comb(of, k) * comb(among, total - k) for k in range(more, min(of, total) + 1)]
    return sum(ways) / comb(of + among, total)


def same_build(runs: Sequence[Run]) -> str:
    """The fingerprint of the one build that all runs were on, in every phase; Refused if there was more than one."""
    seen = {phase.fingerprint for run in runs for phase in run.phases} | {run.build.fingerprint for run in runs}
    if len(seen) > 1:
        name = runs[0].build.name
        raise Refused(f"{name} changed while it was stormed ({' and '.join(sorted(seen))}): storm one build at a time")
    return seen.pop()


def compare(control: Sequence[Run], treatment: Sequence[Run]) -> tuple[Conclusion, str, float | None]:
    """Does the treatment fix it? The conclusion, a sentence, and p; Refused if both are the same build."""
    first, second = control[0].build.name, treatment[0].build.name
    if (mark := same_build(control)) == same_build(treatment):
        raise Refused(f"{first} and {second} are the same build ({mark}): there is nothing to compare")
    pinned = [sum(run.counts.pinned > 0 for run in runs) for runs in (control, treatment)]
    rooms = [sum(run.counts.pinned for run in runs) for runs in (control, treatment)]
    facts = (
        f"{first} pinned {_requests(rooms[0])} in {pinned[0]} of {len(control)} runs, "
        f"{second} {_requests(rooms[1])} in {pinned[1]} of {len(treatment)}"
    )
    if missed := [_missed(runs) for runs in (control, treatment) if _missed(runs)]:
        return "inconclusive", f"Inconclusive: {' and '.join(missed)}.", None
    if pinned[0] == pinned[1]:
        return "no difference", f"No difference: {facts}.", fisher(pinned[0], len(control), pinned[1], len(treatment))
    if pinned[0] < pinned[1]:
        p = fisher(pinned[1], len(treatment), pinned[0], len(control))
        conclusion: Conclusion = "treatment is worse"
    else:
        p = fisher(pinned[0], len(control), pinned[1], len(treatment))
        conclusion = "treatment helps" if rooms[1] else "treatment fixes it"
    if p > LEVEL:
        return "inconclusive", f"Inconclusive: {facts}; chance alone would do that with p = {p:.3f}: repeat it.", p
    hits = "" if _hits(treatment) is None else f", although {_hits(treatment)} aborts landed inside its window"
    return conclusion, f"{conclusion[0].upper()}{conclusion[1:]}: {facts}{hits} (p = {p:.3f}).", p


def alone(runs: Sequence[Run]) -> tuple[Conclusion, str]:
    """What can be said of one build by itself."""
    same_build(runs)
    name, rooms = runs[0].build.name, sum(run.counts.pinned for run in runs)
    if rooms:
        return "pins", f"{name} pins: {_requests(rooms)} left in the inflight queue after the drain."
    if missed := _missed(runs):
        return "inconclusive", f"Inconclusive: {missed}."
    hits = _hits(runs)
    race = "" if hits is None else f", although {hits} aborts landed inside its window"
    return "drains", f"{name} drains: no request was left in the inflight queue{race}."


def _missed(runs: Sequence[Run]) -> str:
    """Why runs that pinned nothing show nothing; empty if they pinned, or if the race fired often enough."""
    hits = _hits(runs)
    if hits is None or hits >= ENOUGH or any(run.counts.pinned for run in runs):
        return ""
    how_many = {0: "no abort", 1: "a single abort"}.get(hits, f"only {hits} aborts")
    return f"{how_many} landed inside the window on {runs[0].build.name}"


def _hits(runs: Sequence[Run]) -> int | None:
    """How often the race fired; None where that cannot be known."""
    counted = [run.counts.hits for run in runs if run.counts.hits is not None]
    return sum(counted) if len(counted) == len(runs) else None


def _requests(count: int) -> str:
    return "no request" if count == 0 else f"{count} request{'s' if count > 1 else ''}"
