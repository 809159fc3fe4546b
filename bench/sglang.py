"""Run every scenario on every pinned sglang manager again, and renew what is pinned and the table in the docs.

``make sglang`` runs this. It takes some minutes of two cores, and the download of 62 wheels (0.8 GB) the first time.
``--resume FILE`` keeps each line that is done, and goes on from there as long as the judge is the same; ``--seconds S``
starts nothing after S seconds. What was pinned before comes first, and nothing is renewed until all of that is done.
What was not run is printed.

Exit code 0 if nothing has changed, 1 if a verdict has, 3 if the time was up.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from pathlib import Path

import attrs
from rich.progress import Progress

from kvlatch.reference.published.sglang.verdicts import PINNED, Verdicts, pairs, pinned, render, text, verdict_table

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "published.md"
BEGIN, END = "<!-- sglang: begin -->\n", "<!-- sglang: end -->\n"


def with_table(page: str, table: str) -> str:
    """The page with this table between its marks."""
    head, _, rest = page.partition(BEGIN)
    _, mark, tail = rest.partition(END)
    if not mark:
        raise ValueError(f"{PAGE.name} has no place for the table: it is between {BEGIN.strip()} and {END.strip()}")
    return f"{head}{BEGIN}{table}\n{END}{tail}"


def judge() -> str:
    """Names the code that judges: lines of another one are computed again."""
    files = sorted((ROOT / "reference" / "published" / "sglang").rglob("*.py"))
    code = b"".join(file.read_bytes() for file in files if file.parent.name != "overlays")
    return hashlib.sha256(code).hexdigest()[:16]


def kept(file: Path | None) -> dict[tuple[str, str], Verdicts]:
    """The lines of a file that this judge has written, by version and backend."""
    if file is None or not file.exists():
        return {}
    found = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    lines = [one["line"] for one in found if one["judge"] == judge()]
    mine = [Verdicts(**{**line, "cells": tuple(line["cells"])}) for line in lines]
    return {(line.version, line.backend): line for line in mine}


def main() -> int:
    """Compute, compare, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--resume", type=Path)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    arguments = parser.parse_args()
    deadline = time.monotonic() + arguments.seconds
    wanted, done = pairs(), kept(arguments.resume)
    before = {(line.version, line.backend): line for line in pinned()}
    left = sorted((pair for pair in wanted if pair not in done), key=lambda pair: pair not in before)
    with Progress(disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("managers", total=len(wanted), completed=len(done))

        def said(line: Verdicts) -> None:
            progress.update(task, advance=1)
            done[line.version, line.backend] = line
            if arguments.resume:
                with arguments.resume.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"judge": judge(), "line": attrs.asdict(line)}) + "\n")

        for first in range(0, len(left), 4):
            if time.monotonic() < deadline:
                verdict_table(left[first : first + 4], progress=said)
    if len(done) < len(wanted):
        missing = dict.fromkeys(version for version, backend in wanted if (version, backend) not in done)
        print(f"{len(done)} of {len(wanted)} managers: the time was up before {', '.join(missing)}")
    if before.keys() - done.keys():
        return 3
    lines = [done[pair] for pair in wanted if pair in done]
    changed = [line for line in lines if before.get((line.version, line.backend)) != line]
    for line in changed:
        print(f"changed: sglang {line.version} {line.backend}: {' '.join(line.cells)}")
    PINNED.write_text(text(lines), encoding="utf-8")
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), render(lines)), encoding="utf-8")
    print(f"{len(lines)} managers, {len(changed)} changed: {PINNED.name}, {PAGE.name}")
    return 3 if len(lines) < len(wanted) else 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
