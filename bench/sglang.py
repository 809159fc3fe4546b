"""Run every scenario on every pinned sglang manager again, and renew what is pinned and the table in the docs.

``make sglang`` runs this; it takes about a minute of two cores, and the download of 25 wheels (0.5 GB) the first time.
"""

from __future__ import annotations

import sys
from pathlib import Path

from rich.progress import Progress

from kvlatch.reference.published.sglang.verdicts import PINNED, Verdicts, pairs, pinned, render, text, verdict_table

PAGE = Path(__file__).parents[1] / "docs" / "published.md"
BEGIN, END = "<!-- sglang: begin -->\n", "<!-- sglang: end -->\n"


def with_table(page: str, table: str) -> str:
    """The page with this table between its marks."""
    head, _, rest = page.partition(BEGIN)
    _, mark, tail = rest.partition(END)
    if not mark:
        raise ValueError(f"{PAGE.name} has no place for the table: it is between {BEGIN.strip()} and {END.strip()}")
    return f"{head}{BEGIN}{table}\n{END}{tail}"


def main() -> int:
    """Compute, compare, write; exit code 1 if a verdict has changed."""
    wanted = pairs()
    with Progress(disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("managers", total=len(wanted))

        def said(_: Verdicts) -> None:
            progress.update(task, advance=1)

        lines = verdict_table(wanted, progress=said)
    before = {(line.version, line.backend): line for line in pinned()}
    changed = [line for line in lines if before.get((line.version, line.backend)) != line]
    for line in changed:
        print(f"changed: sglang {line.version} {line.backend}: {' '.join(line.cells)}")
    PINNED.write_text(text(lines), encoding="utf-8")
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), render(lines)), encoding="utf-8")
    print(f"{len(lines)} managers, {len(changed)} changed: {PINNED.name}, {PAGE.name}")
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
