"""Judges a published sglang manager: plays the scenarios, and answers for each.

A script that asks for something which the backend does not have is no look. A scenario in which no play was a look is
not judged, with the reason.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import attrs

from kvlatch.reference.faults import AdapterFault
from kvlatch.reference.laws import LAWS, TOLD_ONCE, Judgement, Kept, NotJudged, select
from kvlatch.reference.published.sglang import scripts as sglang
from kvlatch.reference.published.sglang.findings import Finding
from kvlatch.reference.published.sglang.observers import OBSERVERS, Observer
from kvlatch.reference.published.sglang.plays import Play, Row
from kvlatch.reference.published.sglang.scenarios import CELLS, NAMES, SCENARIOS, UNEVENTFUL, Scenario, cell
from kvlatch.reference.published.sglang.scripts import STATUSES, Observation, Script
from kvlatch.reference.published.sglang.subjects import Subject, resolve
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
    code: str | Subject, backend: str, only: Collection[str] = (), *, merge: bool = False, timeout: float = 600.0
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
            subject, backend, scenario.law, scenario.name, scenario.observer, mine
        )
        if isinstance(answer, Finding):
            steps[scenario.full_name] = answer.steps
        judgements.append(judgement(scenario.law, scenario.name, answer))
    table = _table(who, [*left]) if merge else None
    silent, waited = (sum(map(which, plays)) for which in (lambda play: bool(play.silent), has_waited))
    return Examination(tuple(judgements), len(plays), silent, waited, steps, table)


def has_waited(play: Play) -> bool:
    """Whether a thread had to wait for another one's lock."""
    return any(seen.waited for seen in play.seen)


def extract_table(code: str | Subject, backend: str, *, timeout: float = 600.0) -> Table:
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


def answer_of(
    subject: Subject, backend: str, law: str, scenario: str, observer: Observer, plays: Sequence[Play]
) -> Kept | NotJudged | Finding:
    """What plays say of a law; of those that break it the shortest is shown."""
    reasons = [play.silent for play in plays]
    telling = [play for play, reason in zip(plays, reasons, strict=True) if reason is None]
    found = [one for play in telling if (one := Finding.of(subject, backend, law, scenario, observer, play))]
    if found:
        return min(found, key=lambda one: len(Row.of(one.play)))
    looks = sum(map(observer.looks, telling))
    if looks:
        return Kept(looks, "plays")
    return NotJudged(next(filter(None, reasons), "no play was one that could have broken it"))


def judgement(law: str, scenario: str, answer: Kept | NotJudged | Finding) -> Judgement:
    """The answer, with the finding's run told."""
    return Judgement(law, answer.answer if isinstance(answer, Finding) else answer, scenario)


def judge_play(
    code: str | Subject, backend: str, script: Script, only: Collection[str] = (), *, timeout: float = 600.0
) -> Examination:
    """What one play says of each law, or of what ``only`` selects; a scenario named there judges in its own sense.

    Raises as :func:`examine` does.
    """
    subject = resolve(code)
    special = {scenario.full_name: scenario for scenario in SCENARIOS if scenario.full_name in only}
    chosen = select([*LAWS, *special], only)
    (play,) = play_all(subject, backend, [script], timeout=timeout)
    judgements, steps = [], {}
    for name in chosen:
        scenario = special.get(name)
        law, label = (scenario.law, scenario.name) if scenario else (name, "")
        answer = answer_of(subject, backend, law, label, scenario.observer if scenario else OBSERVERS[law], [play])
        if isinstance(answer, Finding):
            steps[name] = answer.steps
        judgements.append(judgement(law, label, answer))
    return Examination(tuple(judgements), 1, int(bool(play.silent)), int(has_waited(play)), steps)


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
