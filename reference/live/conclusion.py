"""The conclusion on a storm. Pure functions of its records, so that each rule can be tested by itself."""

from __future__ import annotations

from collections.abc import Sequence
from math import comb
from typing import Final

import attrs

from kvlatch.reference.live.records import HARM, Conclusion, Run

LEVEL: Final = 0.05
"""A difference that chance would make more often than this proves nothing."""
ENOUGH: Final = 20
"""A build that has pinned nothing is not cleared by fewer hits. The incident's build pins one request in four hits or
so: none in twenty would be chance once in 300 times (0.75 to the 20th)."""

DEATHS: Final = "deaths"
_KINDS: Final = {
    "pinned": ("request in the inflight queue", "requests in the inflight queue"),
    "unsettled": ("request that an engine still holds", "requests that an engine still holds"),
    "unaccounted": ("request without an ending", "requests without an ending"),
    "lost_failures": ("lost failure", "lost failures"),
    "ghosts": ("ghost", "ghosts"),
    "leaks": ("leak", "leaks"),
    "released_early": ("release of pages under a transfer", "releases of pages under a transfer"),
    "wrong_digests": ("request with wrong bytes", "requests with wrong bytes"),
    "starved": ("request that decode waits for in vain", "requests that decode waits for in vain"),
    "pages_left": ("page that has not come back", "pages that have not come back"),
    "old_chunks": ("old chunk in a later request", "old chunks in later requests"),
    DEATHS: ("dead thread", "dead threads"),
}


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
    if missed := [_missed(runs) for runs in (control, treatment) if _missed(runs)]:
        return "inconclusive", f"Inconclusive: {' and '.join(missed)}.", None
    if any(run.build.published for run in (*control, *treatment)):
        return _compare_kinds(control, treatment)
    pinned = [sum(run.counts.pinned > 0 for run in runs) for runs in (control, treatment)]
    rooms = [sum(run.counts.pinned for run in runs) for runs in (control, treatment)]
    facts = (
        f"{first} pinned {_requests(rooms[0])} in {pinned[0]} of {len(control)} runs, "
        f"{second} {_requests(rooms[1])} in {pinned[1]} of {len(treatment)}"
    )
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


@attrs.frozen
class _Kind:
    """One thing that can go wrong: in how many runs of control and treatment it did, and how often in all."""

    name: str
    runs: tuple[int, int]
    of: tuple[int, int]
    total: tuple[int, int]

    @property
    def better(self) -> float:
        """How likely chance alone makes the treatment look so much better, or more."""
        return fisher(self.runs[0], self.of[0], self.runs[1], self.of[1])

    @property
    def worse(self) -> float:
        """How likely chance alone makes the treatment look so much worse, or more."""
        return fisher(self.runs[1], self.of[1], self.runs[0], self.of[0])

    def __str__(self) -> str:
        said = [
            f"{total} in {runs} of {of} runs" for total, runs, of in zip(self.total, self.runs, self.of, strict=True)
        ]
        return f"{_KINDS[self.name][1]} {said[0]} against {said[1]}"


def _compare_kinds(control: Sequence[Run], treatment: Sequence[Run]) -> tuple[Conclusion, str, float | None]:
    """Published code fails in several ways: each is tested by itself, and what a treatment leaves is named."""
    both = (control, treatment)
    kinds = [kind for name in (*HARM, DEATHS) if any((kind := _Kind(name, *_numbers(both, name))).total)]
    better = [kind for kind in kinds if kind.better <= LEVEL]
    worse = [kind for kind in kinds if kind.worse <= LEVEL]
    open_ = [kind for kind in kinds if kind not in better and kind not in worse]
    parts = [
        f"{word}: {', '.join(f'{kind} (p = {p(kind):.3f})' for kind in some)}"
        for word, some, p in (
            ("fewer", better, _better),
            ("more", worse, _worse),
            ("not told apart", open_, _either),
        )
        if some
    ]
    names = f"{treatment[0].build.name} against {control[0].build.name}"
    facts = f"{names}. {'; '.join(parts) or 'nothing went wrong on either'}."
    if worse:
        return "treatment is worse", f"Treatment is worse: {facts}", min(kind.worse for kind in worse)
    if better:
        conclusion: Conclusion = "treatment helps" if any(run.harm for run in treatment) else "treatment fixes it"
        return conclusion, f"{conclusion[0].upper()}{conclusion[1:]}: {facts}", min(kind.better for kind in better)
    p = min(map(_either, kinds), default=1.0)
    return "no difference", f"No difference: {facts}", p


def _better(kind: _Kind) -> float:
    return kind.better


def _worse(kind: _Kind) -> float:
    return kind.worse


def _either(kind: _Kind) -> float:
    return min(kind.better, kind.worse)


def _numbers(both: Sequence[Sequence[Run]], name: str) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
    """Runs in which it happened, runs in all, and how often, each of control and treatment."""
    counts = [[_count(run, name) for run in runs] for runs in both]
    first, second = ((sum(count > 0 for count in some), len(some), sum(some)) for some in counts)
    return (first[0], second[0]), (first[1], second[1]), (first[2], second[2])


def _count(run: Run, name: str) -> int:
    return len(run.deaths) if name == DEATHS else int(getattr(run.counts, name) or 0)


def alone(runs: Sequence[Run]) -> tuple[Conclusion, str]:
    """What can be said of one build by itself."""
    same_build(runs)
    name, published = runs[0].build.name, runs[0].build.published
    if sum(run.harm for run in runs):
        if published:
            return "leaves", f"{name} {_did(runs)}{_died(runs)}."
        rooms = sum(run.counts.pinned for run in runs)
        return "pins", f"{name} pins: {_requests(rooms)} left in the inflight queue after the drain."
    if missed := _missed(runs):
        return "inconclusive", f"Inconclusive: {missed}."
    hits = _hits(runs)
    if published:
        aborted = sum(run.counts.aborted for run in runs)
        return "drains", f"{name} drains: nothing was left of any request, although {aborted} clients hung up."
    race = "" if hits is None else f", although {hits} aborts landed inside its window"
    return "drains", f"{name} drains: no request was left in the inflight queue{race}."


def _missed(runs: Sequence[Run]) -> str:
    """Why runs that pinned nothing show nothing; empty if they pinned, or if the race fired often enough.

    Of published code a race that was met is one of several things that can go wrong: there have to be aborts enough.
    """
    hits = _hits(runs)
    if any(run.harm for run in runs):
        return ""
    if runs[0].build.published:
        aborted = sum(run.counts.aborted for run in runs)
        return "" if aborted >= ENOUGH else f"only {aborted} clients of {runs[0].build.name} hung up"
    if hits is None or hits >= ENOUGH:
        return ""
    how_many = {0: "no abort", 1: "a single abort"}.get(hits, f"only {hits} aborts")
    return f"{how_many} landed inside the window on {runs[0].build.name}"


def _hits(runs: Sequence[Run]) -> int | None:
    """How often the race fired; None where that cannot be known."""
    counted = [run.counts.hits for run in runs if run.counts.hits is not None]
    return sum(counted) if len(counted) == len(runs) else None


def _did(runs: Sequence[Run]) -> str:
    """What published code has left behind in all runs together."""
    totals = {name: sum(_count(run, name) for run in runs) for name in (*HARM, DEATHS)}
    return f"left {', '.join(f'{total} {_KINDS[name][total > 1]}' for name, total in totals.items() if total)}"


def _died(runs: Sequence[Run]) -> str:
    """Which threads died, and of what."""
    every = (death for run in runs for death in run.deaths)
    deaths = {f"{one.part}'s {one.thread} thread died of {one.error} ({one.where})" for one in every}
    return "".join(f"; {death}" for death in sorted(deaths))


def _requests(count: int) -> str:
    return "no request" if count == 0 else f"{count} request{'s' if count > 1 else ''}"
