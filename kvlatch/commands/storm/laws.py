"""What a storm says about the laws, build by build: kept, broken, or not judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from kvlatch.commands.judgements import Report
from kvlatch.commands.storm.report import Group, groups
from kvlatch.reference.laws import NO_CRASH, Broken, Judgement, Kept, NotJudged
from kvlatch.reference.live.conclusion import ENOUGH
from kvlatch.reference.live.records import Run, Storm

PROPERTY_OF: Final = {
    "pinned": "no-pin",
    "lost_failures": "terminal-sticky",
    "ghosts": "no-ghost",
    "released_early": "pages-held",
    "wrong_digests": "success-complete",
}
"""Which property says that a count stays 0."""
SETTLEMENT: Final = "settlement"
QUESTION: Final = "no-pin"
"""The law that a storm is about: where it is not judged, a storm has shown nothing. Of published code, settlement."""
_SAYS: Final = {
    "pinned": "{} in the prefill inflight queue after the drain",
    "lost_failures": "{} in which a terminal status gave way to a live one, or Failed to Success",
    "ghosts": "{} in the status table after the request had been cleared",
    "released_early": "{} whose pages were released while a transfer read them",
    "wrong_digests": "{} that decode took for complete, with pages of another prompt",
}
_THINGS: Final = {"lost_failures": ("room", "rooms"), "ghosts": ("entry", "entries")}
_UNSEEN: Final = {
    "lost_failures": "its event log cannot be read",
    "ghosts": "its status table cannot be seen",
    "released_early": "its page pool cannot be seen",
    "wrong_digests": "what decode received cannot be seen",
}
"""Why a count is not known: the deployment is not ours, or the engine was killed."""


def reports(storm: Storm) -> list[Report]:
    """A report for each build; the last ones are those of the build in question: the treatment, or a single one."""
    return [_report(group) for group in groups(storm)]


def in_question(storm: Storm) -> list[Report]:
    """The reports that decide how the command exits: all but that of a control, which is there to break laws."""
    judged = storm.of("treatment") or storm.of("alone")
    return [_report(group) for group in groups(storm) if group.runs[0] in judged]


def _report(group: Group) -> Report:
    judgements = [*(_judgement(group, count, law) for count, law in PROPERTY_OF.items()), _settlement(group)]
    judgements += [_crash(group)] if group.build.published else []
    looked_at = {"storms": len(group.runs), "requests": group.total("sent") or 0, "aborts": group.total("aborted") or 0}
    hits = group.total("hits")
    if hits is not None:
        looked_at["aborts inside the window"] = hits
    return Report(group.label, tuple(judgements), (SETTLEMENT if group.build.published else QUESTION,), looked_at)


def _judgement(group: Group, count: str, law: str) -> Judgement:
    total = group.total(count)
    if count == "ghosts" and (leaks := group.total("leaks")):
        return Judgement(law, Broken(_leaks(total or 0, leaks, group.leaks)))
    if total is None:
        return Judgement(law, NotJudged(_UNSEEN[count]))
    if total:
        one, many = _THINGS.get(count, ("request", "requests"))
        sentence = _SAYS[count].format(f"{total:,} {one if total == 1 else many}")
        return Judgement(law, Broken(sentence, again=_again(group.runs, count)))
    return Judgement(law, _looks(group, count))


def _leaks(ghosts: int, leaks: int, tables: Mapping[str, int]) -> str:
    """What is left of requests that are over."""
    one = "entry" if leaks == 1 else "entries"
    also = f", and {ghosts:,} in the status table" if ghosts else ""
    where = ", ".join(f"{count:,} in {table}" for table, count in tables.items())
    return f"{leaks:,} {one} of requests that are over: {where}{also}"


def _crash(group: Group) -> Judgement:
    """The threads that died."""
    deaths = [death for run in group.runs for death in run.deaths]
    if not deaths:
        return Judgement(NO_CRASH, Kept(group.total("sent") or 0, "requests"))
    first = deaths[0]
    storms = f" in {len(group.runs)} storms" if len(group.runs) > 1 else ""
    more = f", and {len(deaths) - 1} more{storms}" if len(deaths) > 1 else ""
    sentence = f"{first.part}'s {first.thread} thread died of {first.error} at {first.where}{more}"
    return Judgement(NO_CRASH, Broken(sentence))


def _settlement(group: Group) -> Judgement:
    """What is pinned has not settled either, whatever its client was told."""
    lost, pinned, sent = (group.total(name) or 0 for name in ("unaccounted", "pinned", "sent"))
    if held := group.total("unsettled"):
        starved = group.total("starved")
        told = f", {starved:,} by decode, which nobody tells that prefill is through with them" if starved else ""
        sentence = f"{held:,} of {sent:,} requests are held by an engine for ever{told}; {lost:,} had a patient client"
        return Judgement(SETTLEMENT, Broken(sentence))
    if lost or pinned:
        sentence = f"{lost:,} of {sent:,} requests had no ending for a patient client, {pinned:,} stayed in the queue"
        return Judgement(SETTLEMENT, Broken(sentence))
    return Judgement(SETTLEMENT, Kept(sent, "requests") if sent else NotJudged("there were no requests"))


def _looks(group: Group, count: str) -> Kept | NotJudged:
    """How often a count that is 0 could have grown."""
    if count in ("pinned", "lost_failures") and group.total("hits") is not None:
        return _hits(group)
    if count == "pinned" and any("kill-prefill" in run.faults for run in group.runs):
        return NotJudged("the prefill engine was killed: it has no queue any more")
    unit, name = {
        "wrong_digests": ("completed requests", "completed"),
        "ghosts": ("requests", "sent"),
    }.get(count, ("aborted requests", "aborted"))
    looks = group.total(name)
    return Kept(looks, unit) if looks else NotJudged(f"there were no {unit}")


def _hits(group: Group) -> Kept | NotJudged:
    hits = group.total("hits") or 0
    if hits >= ENOUGH:
        return Kept(hits, "aborts inside the window")
    landed = {0: "no abort", 1: "a single abort"}.get(hits, f"only {hits} aborts")
    return NotJudged(f"{landed} landed inside the window, and fewer than {ENOUGH} clear no build")


def _again(runs: Sequence[Run], count: str) -> str:
    """The command that shows the first room to blame, if any."""
    rooms = (room for run in runs for room in run.pinned)
    if count == "pinned":
        return next((room.show for room in rooms), "")
    if count == "lost_failures":
        return next((room.show for room in rooms if room.law == "terminal-sticky"), "")
    return ""
