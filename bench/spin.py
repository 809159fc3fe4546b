"""Explicit search beside SPIN, on the same machines in one run: states, depths, lengths, and the ratio of times.

``python bench/spin.py``; exit code 1 where the two disagree, 4 where SPIN or gcc is missing.
"""

from __future__ import annotations

import sys
import time
from typing import Final

from kvlatch.proofs.promela import Found, missing, promela, spin, version
from kvlatch.proofs.search import explore
from kvlatch.spec.designs import DESIGNS
from kvlatch.spec.model import Instance, Machine
from kvlatch.spec.properties import BY_NAME
from kvlatch.spec.schema import Atomicity, Network

SMALL: Final = Instance(workers=1, chunks=2, requests=1)
RUNS: Final[tuple[tuple[str, Atomicity, Network, Instance, str], ...]] = (
    ("seed-control", "locked", "orderly", SMALL, "success-not-overwritten"),
    ("fix-a", "split", "orderly", SMALL, "success-not-overwritten"),
    ("latch", "cas", "orderly", SMALL, "pages-held"),
    ("sglang-0.5.23", "split", "orderly", SMALL, "one-outcome"),
    ("latch", "locked", "orderly", Instance(workers=2, chunks=2, requests=1), "one-outcome"),
    ("fix-ab", "split", "disorderly", SMALL, "success-complete"),
    ("sglang-0.5.23", "split", "late", Instance(workers=1, chunks=1, requests=2), "success-complete"),
)
"""Design, atomicity, network, instance, and the property whose shortest counterexamples are compared."""


def explicit(machine: Machine, prop: str) -> Found:
    """What the explicit search finds, in SPIN's terms."""
    start = time.perf_counter()
    found = explore(machine, [BY_NAME[prop]])
    seconds = time.perf_counter() - start
    depth = len(found.levels) - 2  # the last level is the empty one
    return Found(found.states, depth, found.length(prop), 0.0, seconds)


def main() -> int:
    """Print the table; the exit code."""
    if reason := missing():
        print(f"not compared with SPIN: {reason}")
        return 4
    print(f"Explicit search beside {version()}; w, c, r: workers, chunks, requests; times in seconds.")
    print("SPIN compiles a checker first. Its ratios: with that, and without, to the time of the explicit search.\n")
    print(f"{'':45} states depth length  SPIN    search compile  check  ratios")
    equal = True
    for design, level, network, instance, prop in RUNS:
        machine = Machine.of(DESIGNS[design], level, network, instance)
        ours = explicit(machine, prop)
        theirs = spin(promela(machine, BY_NAME[prop]))
        same = (ours.states, ours.depth, ours.length) == (theirs.states, theirs.depth, theirs.length)
        equal &= same
        size = f"{instance.workers}w {instance.chunks}c {instance.requests}r"
        check = theirs.search_seconds / ours.search_seconds
        whole = theirs.build_seconds / ours.search_seconds + check
        print(
            f"{design:13} {level:6} {network:10} {size:12} {ours.states:7} {ours.depth:5} {ours.length or 'holds':>6}"
            f"  {'equal' if same else 'NOT  '} {ours.search_seconds:8.2f} {theirs.build_seconds:7.2f}"
            f" {theirs.search_seconds:6.2f}  {whole:.1f} {check:.2f}"
        )
        if not same:
            print(f"  SPIN: {theirs.states} states, depth {theirs.depth}, {prop} {theirs.length or 'holds'}")
    print(f"\n{'All equal' if equal else 'NOT all equal'}.")
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
