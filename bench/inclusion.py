"""Holds published managers of SGLang to the rows of their designs: every play with one preemption, of one chunk.

    python bench/inclusion.py sglang-0.5.23 sglang-0.5.19 sglang-0.5.15.post1 mooncake-0.5.15.post1
    python bench/inclusion.py sglang-0.5.23 --backend mooncake

Prints plays, steps, differences by kind with the shortest play of each, and the states met of those that the rows can
reach. Exit 1 if a play differs in a way that ``proofs/lacks.py`` does not list.
"""

from __future__ import annotations

import argparse
import sys
import time

from kvlatch.proofs.inclusion import include
from kvlatch.proofs.lacks import of
from kvlatch.reference.published.sglang.lives import Plays
from kvlatch.reference.published.sglang.subjects import resolve
from kvlatch.spec.designs import DESIGNS


def main() -> int:
    """Print what the plays of each design's version show; 1 if one of them differs in a new way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("designs", nargs="+", choices=[name for name in DESIGNS if name[-1].isdigit()])
    parser.add_argument("--backend", choices=["nixl", "mooncake", "mori"])
    arguments = parser.parse_args()
    new = 0
    for name in arguments.designs:
        start = time.perf_counter()
        kind, _, version = name.partition("-")
        backend = arguments.backend or ("mooncake" if kind == "mooncake" else "nixl")
        design, plays = DESIGNS[name], Plays(resolve(version), backend)
        by_word = backend != "nixl" or version == "0.5.23"  # else the transfer itself tells decode of Success
        found = include(design, plays, hears_success=by_word)
        print(found, f"({time.perf_counter() - start:.0f} s)")
        print("left out:", ", ".join(f"{count} {why}" for why, count in plays.left_out.items()))
        for kind in of(design.name):
            if kind.name in found.shortest:
                print(f"\n{kind.name} ({found.kinds[kind.name]} plays): {kind.why}\n{found.shortest[kind.name]}")
        for difference in found.new[:5]:
            print(f"\nnew, at the last of these steps:\n{difference}")
        new += len(found.new)
    return 1 if new else 0


if __name__ == "__main__":
    sys.exit(main())
