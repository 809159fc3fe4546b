"""Both ends of a request: two nodes that have the same room, and must say the same of how its request ended.

Where both nodes have the same ranks, each rank is held against its fellow; otherwise all ranks of one node against all
of the other: the request has failed on a node if it has failed on one of its ranks, and succeeded if it has on all.

An abort may end a request on one side only: decode gives up, or is told too late, and ends as Failed whatever prefill
says. It never explains that prefill has failed on every rank and decode has the KV cache. Prefill is the node that
queues or posts chunks, or tells the other one how a request ended.

Logs in which nothing ever succeeds, as text logs are that have failures only, could not have shown a disagreement.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from kvlatch.reference.logs.entry import Entry, Life
from kvlatch.reference.logs.events import Room
from kvlatch.reference.logs.finding import Finding
from kvlatch.reference.logs.judge import ONE_OUTCOME, Judge
from kvlatch.spec.properties import BY_NAME
from kvlatch.spec.status import F, S

SCENARIO: Final = "both-ends"

Node = str | None
Side = Mapping[str | None, tuple[Entry, Life]]
"""What each rank of a node has of one request."""


def both_ends(judge: Judge) -> tuple[list[Finding], int]:
    """What two nodes do not agree about, and for how many requests (on ranks of their own) they could disagree."""
    if len({table.node for table in judge.tables.values()}) < 2:
        return [], 0
    restarted: set[Room] = set()
    rooms: dict[Room, dict[Node, dict[str | None, Entry]]] = {}
    senders = {table.node for table in judge.tables.values() if table.sends}
    succeeds = any(table.succeeds for table in judge.tables.values())
    for table in judge.tables.values():
        for room, entry in table.entries.items():
            ranks = rooms.setdefault(room, {}).setdefault(table.node, {})
            if table.rank in ranks:  # of two processes of that name: which one had the request is not known
                restarted.add(room)
            ranks[table.rank] = entry
    found, pairs = [], 0
    for room, nodes in rooms.items():
        if len(nodes) != 2 or room in restarted:
            continue
        one, other = sorted(nodes, key=lambda node: node not in senders)
        known = one in senders and other not in senders
        for first, second in _requests(nodes[one], nodes[other]):
            aborted = any(life.aborted for side in (first, second) for _, life in side.values())
            for rank, mine, theirs in _paired(first, second):
                outcomes, sure = (_outcome(mine), _outcome(theirs)), len(_outcomes(mine)) == 1
                alone = outcomes[0] != outcomes[1] and aborted and not (known and sure and outcomes == (F, S))
                if "none" in outcomes or alone or not succeeds:
                    continue
                pairs += 1
                if outcomes[0] != outcomes[1]:
                    said = f"it ended as {outcomes[0]} on {one} and as {outcomes[1]} on {other}"
                    says = f"{said}: {BY_NAME[ONE_OUTCOME].says}"
                    found.append(Finding(ONE_OUTCOME, room, None, rank, 0, says, SCENARIO))
    return found, pairs


def _requests(one: Mapping[str | None, Entry], other: Mapping[str | None, Entry]) -> Iterator[tuple[Side, Side]]:
    """The requests that both nodes have of a room: its only one, or those that they call the same.

    Of a room that was used twice, both must know the same requests: numbers of their own may mean different ones.
    """
    entries = (*one.values(), *other.values())
    if not any(entry.past for entry in entries):
        yield {rank: (e, e.life) for rank, e in one.items()}, {rank: (e, e.life) for rank, e in other.items()}
        return
    lives = [{rank: {life.request: life for life in (e.life, *e.past)} for rank, e in side.items()}
             for side in (one, other)]  # fmt: skip
    names = [set().union(*side.values()) for side in lives]
    if None in names[0] or names[0] != names[1]:
        return
    for name in sorted(names[0], key=str):
        first, second = (
            {rank: (entries[rank], known[rank][name]) for rank in entries if name in known[rank]}
            for entries, known in zip((one, other), lives, strict=True)
        )
        yield first, second


def _paired(one: Side, other: Side) -> Iterator[tuple[str | None, Side, Side]]:
    """Rank by rank, where both have the same; else the whole of both."""
    if one.keys() != other.keys():
        yield None, one, other
        return
    for rank in one:
        yield rank, {rank: one[rank]}, {rank: other[rank]}


def _outcomes(side: Side) -> set[str]:
    """How a request has ended on each rank, as far as the log says: concluded, or shown if the room has no other."""
    return {
        life.latch if life.latch != "none" else "none" if entry.past else entry.outcome for entry, life in side.values()
    }


def _outcome(side: Side) -> str:
    outcomes = _outcomes(side)
    return F if F in outcomes else S if outcomes == {S} else "none"
