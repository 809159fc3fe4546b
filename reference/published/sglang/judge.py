"""Judges a published sglang manager: plays the scenarios, and answers for each.

A script that asks for something which the backend does not have is no look. A scenario in which no play was a look is
not judged, with the reason.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import attrs

from kvlatch.reference.faults import AdapterFault
from kvlatch.reference.laws import TOLD_ONCE, Broken, Judgement, Kept, NotJudged, select
from kvlatch.reference.published.sglang import scripts as sglang
from kvlatch.reference.published.sglang.observers import Found, Observer
from kvlatch.reference.published.sglang.plays import Play, Row
from kvlatch.reference.published.sglang.scenarios import CELLS, NAMES, SCENARIOS, UNEVENTFUL, Scenario, cell
from kvlatch.reference.published.sglang.scripts import STATUSES, Observation, Script
from kvlatch.reference.published.sglang.subjects import Subject, resolve
from kvlatch.reference.story import Line, Story, text
from kvlatch.spec.merges import KEEP, Table
from kvlatch.spec.merges import Kept as KeptCell
from kvlatch.spec.status import KVPoll, S

_ABOUT_TELLING: Final = ("one-outcome/aborted", *(name for name in NAMES if name.startswith(f"{TOLD_ONCE}/")))
_ABOUT_PAGES: Final = ("pages-held", "released-once")


@attrs.frozen
class Examination:
    """What was played on one backend of a subject, and the answers; ``merge`` is None if its table was not asked for.

    ``plays`` counts the scripts that were played, ``silent`` those of them that say nothing, since the backend lacks
    something, and ``waited`` those in which a thread had to wait for another one's lock. ``steps`` has the length of
    the shortest run of each broken scenario.
    """

    judgements: tuple[Judgement, ...]
    plays: int
    silent: int
    waited: int
    steps: dict[str, int]
    merge: Table | None = None


def examine(
    code: str | Subject, backend: str, only: Collection[str] = (), *, merge: bool = False, timeout: float = 120.0
) -> Examination:
    """Play each scenario that ``only`` selects, or all; in one child process.

    Raises UnknownLaw for a name that selects nothing, or what ``scripts.outcomes`` raises; AdapterFault also if a
    request without incident does not settle, for then nothing can be judged by what we stand in for.
    """
    subject = resolve(code)
    names = select(NAMES, only)
    chosen = [scenario for scenario in SCENARIOS if scenario.full_name in names]
    cells = [cell(*statuses) for statuses in CELLS] if merge else []
    scripts = [UNEVENTFUL, *(script for scenario in chosen for script in scenario.scripts), *cells]
    who = f"{subject.name} {backend}"
    uneventful, *others = plays = play_all(subject, backend, scripts, timeout=timeout)
    if subject.original is not None:  # what an overlay has spoilt is not what we stand in for
        uneventful, *_ = play_all(subject.original, backend, [UNEVENTFUL], timeout=timeout)
    _check(who, uneventful)
    left = iter(others)
    judgements: list[Judgement] = []
    steps: dict[str, int] = {}
    for scenario in chosen:
        mine = [next(left) for _ in scenario.scripts]
        answer = _unjudgeable(scenario, uneventful) or answer_of(
            f"{who}; {scenario.full_name}", scenario.observer, mine
        )
        if isinstance(answer, Shown):
            steps[scenario.full_name] = answer.steps
        judgements.append(
            Judgement(scenario.law, answer.broken if isinstance(answer, Shown) else answer, scenario.name)
        )
    table = _table(who, [*left]) if merge else None
    silent, waited = (sum(map(which, plays)) for which in (lambda play: bool(play.silent), has_waited))
    return Examination(tuple(judgements), len(plays), silent, waited, steps, table)


def has_waited(play: Play) -> bool:
    """Whether a thread had to wait for another one's lock."""
    return any(seen.waited for seen in play.seen)


def extract_table(code: str | Subject, backend: str, *, timeout: float = 60.0) -> Table:
    """The merge of a published version, by its real update_status: all cells, and whether a store happened at all.

    Raises as :func:`examine` does; AdapterFault also where a write raises, or reads another room's entry.
    """
    subject = resolve(code)
    plays = play_all(subject, backend, [cell(*names) for names in CELLS], timeout=timeout)
    return _table(f"{subject.name} {backend}", plays)


def play_all(subject: Subject, backend: str, scripts: Sequence[Script], *, timeout: float) -> list[Play]:
    """The play of each script. Raises as ``scripts.outcomes`` does, and the AdapterFault of a single one, too."""
    outcomes = sglang.outcomes(subject, backend, scripts, timeout=timeout)
    return [_play(script, outcome) for script, (outcome,) in zip(scripts, outcomes, strict=True)]


@attrs.frozen
class Shown:
    """A broken law, and the length of the run that shows it."""

    broken: Broken
    steps: int


def answer_of(heading: str, observer: Observer, plays: Sequence[Play]) -> Kept | NotJudged | Shown:
    """What plays say of a law; of those that break it the shortest is shown, with its length."""
    reasons = [play.silent for play in plays]
    telling = [play for play, reason in zip(plays, reasons, strict=True) if reason is None]
    broken = [(play.until(found[0]), found) for play in telling if (found := observer.broken(play))]
    if broken:
        play, found = min(broken, key=lambda pair: len(Row.of(pair[0])))
        return Shown(Broken(found[1], story(heading, play, found)), steps_of(play))
    looks = sum(map(observer.looks, telling))
    if looks:
        return Kept(looks, "plays")
    return NotJudged(next(filter(None, reasons), "no play was one that could have broken it"))


def steps_of(play: Play) -> int:
    """The length of its trace, not counting the room's creation at its start."""
    rows = Row.of(play)
    return len(rows[1:] if rows and rows[0].op == "create" else rows)


def story(heading: str, play: Play, found: Found) -> str:
    """The real run as a table."""
    lines = tuple(
        Line(number, row.thread, row.op, row.status, row.remark, "else") for number, row in enumerate(Row.of(play), 1)
    )
    return text(Story(heading, lines, len(lines) or None, f"{found[1]}."))


def _play(script: Script, outcome: list[Observation] | AdapterFault) -> Play:
    if isinstance(outcome, AdapterFault):
        raise outcome
    return Play(script, outcome)


def _check(who: str, uneventful: Play) -> None:
    """Raises AdapterFault if a request without incident does not settle."""
    if uneventful.silent is not None:
        return
    if uneventful.error is None and uneventful.last.inflight:
        stays = f"the request stays in the inflight queue as {uneventful.last.status}"
        raise AdapterFault(f"{who}: a request without incident does not settle: {stays}")


def _unjudgeable(scenario: Scenario, uneventful: Play) -> NotJudged | None:
    """Why the scenario cannot be judged here, by what a request without incident shows."""
    if uneventful.silent is not None:
        return None  # then the scenario's own plays say why
    if scenario.full_name in _ABOUT_TELLING and S not in {status for _, status in uneventful.last.told}:
        return NotJudged("decode learns of Success from the transfer itself, not from a message")
    if scenario.law in _ABOUT_PAGES and not uneventful.last.released and uneventful.last.ended:
        return NotJudged("where the scheduler releases pages is not seen")
    return None


def _table(who: str, plays: Sequence[Play]) -> Table:
    """The merge that the plays of all cells show."""
    merged: list[KVPoll | KeptCell] = []
    for (current, new), play in zip(CELLS, plays, strict=True):
        if play.error is not None:
            raise AdapterFault(f"{who}: {current} <- {new}: {play.error[2]}")
        if play.last.others:
            raise AdapterFault(f"{who}: {current} <- {new} looks at another room's entry, so it is no table")
        merged.append(KVPoll[play.last.status] if play.last.stores else KEEP)
    columns = len(STATUSES)
    return tuple(tuple(merged[row : row + columns]) for row in range(0, len(merged), columns))
