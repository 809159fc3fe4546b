"""The score of the log's judge: healthy runs that it must not accuse, and retold reports that it must find.

``python bench/logs_score.py [--requests N] [--first SEED]``: random runs of ``latch`` (two workers, two chunks, two
requests, in every network, cut anywhere or run to their end), each as a log of two ranks and of decode's end, with and
without requests, and as version 1; then every retold report of ``tests/bugs`` as the log of that very run. Exit code 1
if a healthy run is accused or fewer than 95 % of the reports are found under their law.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).parents[1]))

from kvlatch.reference.logs.ending import ending
from kvlatch.reference.logs.events import OPS, TABLE_OPS, Event
from kvlatch.reference.logs.judge import Judge
from kvlatch.reference.logs.runs import Recording
from kvlatch.spec.designs import DESIGNS
from kvlatch.spec.model import Instance, Machine
from tests.test_bugs import IN_A_ROOM, play

AIM: Final = 0.95
ROOM: Final = 7
MACHINES: Final = tuple(
    Machine.of(DESIGNS["latch"], level, network, Instance(workers=2, chunks=2, requests=2))
    for level in ("locked", "cas")
    for network in ("orderly", "late", "disorderly")
)


def run_of(chance: random.Random) -> tuple[Machine, list[Any], bool]:
    """A random run, and whether it is over."""
    machine = chance.choice(MACHINES)
    run: list[Any] = [(None, machine.initial())]
    lean = chance.choice((0.3, 0.6, 0.9, 0.95))
    for _ in range(chance.choice((20, 60, 150, 400))):
        enabled = machine.enabled(run[-1][1])
        fair, free = ([action for action in enabled if action.fair is kind] for kind in (True, False))
        if not enabled:
            break
        action = chance.choice(fair if fair and (not free or chance.random() < lean) else free)
        run.append((action, machine.step(run[-1][1], action)))
    return machine, run, not any(action.fair for action in machine.enabled(run[-1][1]))


def decode_end(events: list[Event]) -> Iterator[Event]:
    """What decode logs of the first request of a room: it ends as it was told."""
    told = next((event for event in events if event.op == "tell" and event.request == "1"), None)
    start = next((event for event in events if event.op == "create"), None)
    if start is None:
        return
    at = Event(0, ROOM, "create", "Bootstrapping", None, "decode", start.rank, "1", None, "scheduler", start.time)
    yield at
    if told is not None:
        yield at._replace(op="write", incoming=told.incoming, status=told.incoming, time=told.time)
        yield at._replace(op="clear", status="Absent", time=told.time)


def healthy(chance: random.Random) -> dict[str, list[Event]]:
    """One request as logs of several kinds, all of them healthy."""
    ranks = []
    for rank in ("0", "1"):
        machine, run, over = run_of(chance)
        ranks.append(list(Recording(machine, ROOM, "prefill", rank).events(run, polled=over)))
    both = [event for rank in ranks for event in rank]
    anonymous = [event._replace(request=None) for event in both]
    first = [event._replace(node=None, rank=None, request=None) for event in ranks[0] if event.op in TABLE_OPS]
    return {
        "both ends, two ranks": both + [event for rank in ranks for event in decode_end(rank)],
        "without requests": anonymous,
        "version 1": first,
    }


def accused(events: list[Event], ops: frozenset[str]) -> tuple[set[str], set[str]]:
    """The laws that are found broken, and those that were looked at."""
    judge = Judge(declared=ops)
    judge.feed(events)
    ended = ending(judge)
    return {finding.law for finding in ended.findings}, {law for law, count in ended.looks.items() if count}


def main() -> int:
    """Print the score; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1_000, help="healthy ones")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="of the first of them")
    told = parser.parse_args()
    seeds = range(told.first, told.first + told.requests)
    alarms: Counter[tuple[str, str]] = Counter()
    looked: Counter[str] = Counter()
    for seed in seeds:
        for kind, events in healthy(random.Random(seed)).items():  # noqa: S311  # for no secret
            laws, looks = accused(events, frozenset() if kind == "version 1" else frozenset(OPS))
            looked.update(looks)
            for law in laws:
                alarms[kind, law] += 1
                print(f"alarm: seed {seed}, {kind}: {law}")
    print(f"{len(seeds):,} healthy requests, each as three logs: {sum(alarms.values())} alarms; looked at:")
    print(", ".join(f"{law} {count:,}" for law, count in sorted(looked.items())))
    missed = []
    for report in IN_A_ROOM:
        laws, _ = accused(list(Recording(report.machine, ROOM).events(play(report), polled=True)), frozenset(OPS))
        if report.prop not in laws:
            missed.append(f"{report.ref}: {report.prop}, found {', '.join(sorted(laws)) or 'nothing'}")
    found = len(IN_A_ROOM) - len(missed)
    print(f"{found} of {len(IN_A_ROOM)} retold reports are found under their law", *missed, sep="\n")
    return 1 if alarms or found < AIM * len(IN_A_ROOM) else 0


if __name__ == "__main__":
    sys.exit(main())
