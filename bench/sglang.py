"""Run every scenario on every pinned sglang manager again, and renew what is pinned and the table for people.

``make sglang`` runs this; it takes about a minute of two cores, and the download of 25 wheels (0.5 GB) the first time.
"""

from __future__ import annotations

import sys
from pathlib import Path

from rich.progress import Progress

from kvlatch.reference.published.sglang.verdicts import PINNED, Verdicts, pairs, pinned, render, text, verdict_table

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "docs" / "published.md", ROOT / "README.md")
BEGIN, END = "<!-- sglang: begin -->\n", "<!-- sglang: end -->\n"


def with_table(page: str, table: str) -> str | None:
    """The page with this table between its marks; None if it has none."""
    head, _, rest = page.partition(BEGIN)
    _, mark, tail = rest.partition(END)
    return f"{head}{BEGIN}{table}\n{END}{tail}" if mark else None


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
    written = [PINNED.name]
    for page in filter(Path.exists, PAGES):
        if (renewed := with_table(page.read_text(encoding="utf-8"), render(lines))) is not None:
            page.write_text(renewed, encoding="utf-8")
            written.append(page.name)
    print(f"{len(lines)} managers, {len(changed)} changed: {', '.join(written)}")
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
