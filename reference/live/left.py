"""What a storm has left behind, as figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import attrs

from kvlatch.reference.live.records import Counts, Death, Request
from kvlatch.reference.logs.report import Report as LogReport


@attrs.frozen
class Left:
    """What a storm has left behind; None where the deployment does not say it, or is dead."""

    gauge: float | None
    ledger: dict[str, Any] | None
    decode: dict[str, Any] | None
    log: LogReport | None = None

    @property
    def deaths(self) -> Iterator[Death]:
        """The threads of either engine that died."""
        for part, ledger in (("prefill", self.ledger), ("decode", self.decode)):
            for death in (ledger or {}).get("deaths", ()):
                yield Death(part, death["thread"], death["error"], death["where"])

    def counts(self, done: Sequence[Request], idle: float) -> Counts:
        """All figures; what was in the queue before the storm is not counted."""
        outcomes = [request.outcome for request in done]
        ledger, decode = self.ledger, self.decode
        return Counts(
            sent=len(done),
            completed=outcomes.count("completed"),
            failed=outcomes.count("failed"),
            aborted=outcomes.count("aborted"),
            unaccounted=outcomes.count("unaccounted"),
            pinned=max(0, int((self.gauge or 0) - idle)),  # a dead engine has no queue
            hits=None if ledger is None else ledger["hits"],
            lost_failures=None if self.log is None else self.log.laws.get("terminal-sticky", 0),
            ghosts=None if ledger is None else len(ledger["ghosts"]),
            unsettled=None
            if ledger is None or decode is None or "left" not in ledger
            else ledger["waiting"] + decode["waiting"],
            leaks=None if ledger is None or decode is None or "left" not in ledger else leaks(ledger) + leaks(decode),
            released_early=None if ledger is None else ledger["released_early"],
            wrong_digests=None if decode is None else decode["ended"]["wrong digest"],
        )


def leaks(ledger: dict[str, Any]) -> int:
    """Entries of rooms that are over, in tables other than that of the statuses."""
    return sum(count for table, count in ledger["left"].items() if table != "request_status")
