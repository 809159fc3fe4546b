"""Where the event logs of a run show what went wrong, and the commands that lead there."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from kvlatch.reference.live.records import HELD, BrokenRoom, Rank, Traces
from kvlatch.reference.logs.check import check
from kvlatch.reference.logs.finding import Finding

QUIET: Final = 2.0
"""Seconds after which a live request is taken for one that stays: a run has drained when its logs end."""
_EACH: Final = 3
"""Rooms that are named of each law."""
_STAYS: Final = {
    HELD: ("settlement/held", "is held by {part}, which has not answered it"),
    "request_status": ("no-ghost/left", "is over, and still in {part}'s status table"),
}


def traces(folder: Path, ranks: Sequence[Rank]) -> Traces:
    """What all logs in a folder show together, and the rooms that stay with an engine."""
    logs = sorted(folder.glob("*.ndjson"))
    command = shlex.join(["kvlatch", "check", str(folder), "--quiet", f"{QUIET:g}"])
    findings = check(*logs, quiet=QUIET).findings
    rooms = {finding.room for finding in findings}
    return Traces(command, len(rooms), (*_broken(findings, logs), *_staying(ranks, logs)))


def _broken(findings: Sequence[Finding], logs: Sequence[Path]) -> Iterator[BrokenRoom]:
    """The first rooms of each law; a law of both ends is shown at either."""
    seen: Counter[str] = Counter()
    for finding in findings:
        law = "/".join(filter(None, (finding.law, finding.scenario)))
        seen[law] += 1
        if seen[law] > _EACH:
            continue
        commands = tuple(_show(log, str(finding.room)) for log in _of(finding.node, finding.rank, logs))
        yield BrokenRoom(int(finding.room), law, finding.text("line"), commands)


def _staying(ranks: Sequence[Rank], logs: Sequence[Path]) -> Iterator[BrokenRoom]:
    """The first rooms that stay with a rank: a log tells what has happened to them, and not that it was the end."""
    for rank in ranks:
        engine, _, number = rank.part.partition(" rank ")
        here = _of(engine, number or "0", logs)
        for table, rooms in rank.stays.items():
            law, says = _STAYS.get(table, (f"leak in {table}", "is over, and still in {part}'s {table}"))
            for room in rooms[:_EACH]:
                text = f"room {room} {says.format(part=rank.part, table=table)}"
                yield BrokenRoom(int(room), law, text, tuple(_show(log, room) for log in here))


def _of(node: str | None, rank: str | None, logs: Sequence[Path]) -> Sequence[Path]:
    """The logs of a node and a rank, None for all of them: the recorder's are called prefill-0.PID.ndjson."""
    return [log for log in logs if _is_of(log, node, rank)]


def _is_of(log: Path, node: str | None, rank: str | None) -> bool:
    of, _, number = log.name.split(".", 1)[0].rpartition("-")
    return node in (None, of) and rank in (None, number)


def _show(log: Path, room: str) -> str:
    return shlex.join(["kvlatch", "show", str(log), "--room", room])
