"""What a storm has left behind, as figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import attrs

from kvlatch.reference.live.records import Counts, Death, Rank, Request
from kvlatch.reference.live.settings import EngineRole
from kvlatch.reference.logs.report import Report as LogReport

Ledger = dict[str, Any]
_LOST: Final = "terminal-sticky"


@attrs.frozen
class Left:
    """What a storm has left behind; None where the deployment does not say it, or is dead.

    ``second`` are the ledgers of the second ranks, ``logs`` the reports on the event logs of prefill's ranks.
    """

    gauge: float | None
    ledger: Ledger | None
    decode: Ledger | None
    second: tuple[tuple[EngineRole, Ledger], ...] = ()
    logs: tuple[LogReport, ...] = ()

    @property
    def engines(self) -> Iterator[tuple[EngineRole, int, Ledger]]:
        """All ledgers that there are, with their engine and their rank in it."""
        first: tuple[tuple[EngineRole, Ledger | None], ...] = (("prefill", self.ledger), ("decode", self.decode))
        yield from ((role, 0, ledger) for role, ledger in first if ledger is not None)
        yield from ((role, 1, ledger) for role, ledger in self.second)

    @property
    def deaths(self) -> Iterator[Death]:
        """The threads of either engine that died."""
        for role, rank, ledger in self.engines:
            for death in ledger.get("deaths", ()):
                yield Death(part(role, rank), death["thread"], death["error"], death["where"])

    @property
    def ranks(self) -> Iterator[Rank]:
        """What published code has left behind, rank by rank."""
        for role, rank, ledger in self.engines:
            if "left" in ledger:
                figures: dict[str, int] = {
                    "unsettled": ledger["waiting"],
                    "ghosts": len(ledger["ghosts"]),
                    "leaks": leaks(ledger),
                    "pages_left": ledger["pages_out"],
                    "wrong_digests": len(ledger["wrong"]),
                    "old_chunks": ledger["old_chunks"],
                    **{name: ledger[name] for name in ("hits", "released_early") if name in ledger},
                }
                if role == "prefill" and rank < len(self.logs):
                    figures["lost_failures"] = self.logs[rank].laws.get(_LOST, 0)
                tables = {name: count for name, count in ledger["left"].items() if count and name != "request_status"}
                stays = {name: tuple(rooms) for name, rooms in ledger["stays"].items() if rooms}
                yield Rank(part(role, rank), figures, tables, stays)

    def counts(self, done: Sequence[Request], idle: float) -> Counts:
        """All figures; what was in the queue before the storm is not counted."""
        outcomes = [request.outcome for request in done]
        ledger, decode = self.ledger, self.decode
        prefills = [one for role, _, one in self.engines if role == "prefill"]
        counted = Counts(
            sent=len(done),
            completed=outcomes.count("completed"),
            failed=outcomes.count("failed"),
            aborted=outcomes.count("aborted"),
            unaccounted=outcomes.count("unaccounted"),
            pinned=max(0, int((self.gauge or 0) - idle)),  # a dead engine has no queue
            hits=None if ledger is None else sum(one["hits"] for one in prefills),
            lost_failures=sum(log.laws.get(_LOST, 0) for log in self.logs) if self.logs else None,
            ghosts=None if ledger is None else sum(len(one["ghosts"]) for one in prefills),
            released_early=None if ledger is None else sum(one["released_early"] for one in prefills),
            wrong_digests=None if decode is None else decode["ended"]["wrong digest"],
        )
        if ledger is None or decode is None or "left" not in ledger:
            return counted
        every = [one for _, _, one in self.engines]
        wrong = {rid for one in every for rid in one["wrong"]}
        return attrs.evolve(
            counted,
            wrong_digests=len(wrong),
            unsettled=ledger["waiting"] + decode["waiting"],
            starved=len(set(decode["open"]) - set(ledger["open"])),
            leaks=sum(map(leaks, every)),
            pages_left=sum(one["pages_out"] for one in every),
            reused=ledger["reused"],
            old_chunks=sum(one["old_chunks"] for one in every),
        )


def part(role: EngineRole, rank: int) -> str:
    """What a rank of an engine is called; the first one as the engine is."""
    return f"{role} rank {rank}" if rank else role


def leaks(ledger: Ledger) -> int:
    """Entries of rooms that are over, in tables other than that of the statuses."""
    return sum(count for table, count in ledger["left"].items() if table != "request_status")
