"""The expected verdicts: every law on every backend of every published version.

They are one text file, a line a manager, so that a changed verdict is a changed line in a review.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from pathlib import Path
from typing import Final

import attrs

from kvlatch.reference.published.sglang import scripts as sglang
from kvlatch.reference.published.sglang.laws import LAWS, Examination, Finding, examine
from kvlatch.spec.merges import MERGES, Table, table

PINNED: Final = Path(__file__).with_name("verdicts.txt")
KEPT: Final = "kept"
ABSENT: Final = "-"
_SAYS: Final = (
    "The verdict of every law (laws.py) on every published manager; written by verdicts.text().",
    "kept; or the length of the shortest trace that breaks it; or - where the backend has no such code.",
    "merge: the rule of spec/merges.py whose table is that of the real update_status, in all 30 cells.",
)


@attrs.frozen
class Verdicts:
    """One line: the merge, and what became of each law, in the order of the catalogue."""

    version: str
    backend: str
    merge: str
    cells: tuple[str, ...]

    @classmethod
    def of(cls, version: str, backend: str, examination: Examination) -> Verdicts:
        """The line of an examination."""
        return cls(version, backend, rule(examination.merge), tuple(map(cell, examination.findings)))


def rule(merge: Table) -> str:
    """The rule in `spec.merges` that has this table, the last one if several have; `?` if none has."""
    return next((name for name in reversed(MERGES) if table(MERGES[name]) == merge), "?")


def cell(finding: Finding) -> str:
    """A finding in a word."""
    return {"kept": KEPT, "broken": str(finding.steps), "absent": ABSENT}[finding.verdict]


def heading(number: int) -> str:
    """What a law is called at the head of a column: the number of its violation, or its name."""
    law = LAWS[number]
    return law.numbers[0] if law.numbers else law.name


def pairs(versions: Iterable[str] | None = None) -> list[tuple[str, str]]:
    """Every version, or each of these, with every backend that it has. Raises as `sglang.backends` does."""
    chosen = sglang.versions() if versions is None else versions
    return [(version, backend) for version in chosen for backend in sglang.backends(version)]


def verdict_table(
    wanted: Sequence[tuple[str, str]] | None = None,
    *,
    workers: int = 2,
    timeout: float = 60.0,
    progress: Callable[[Verdicts], None] = lambda _: None,
) -> list[Verdicts]:
    """The verdicts of these versions and backends, or of all, computed by so many child processes side by side.

    Raises as `examine` does. `progress` is called with each line as it is there, in order.
    """
    wanted = pairs() if wanted is None else wanted

    def line(pair: tuple[str, str]) -> Verdicts:
        return Verdicts.of(*pair, examine(*pair, timeout=timeout))

    lines = []
    with ThreadPoolExecutor(workers) as pool:
        for verdicts in pool.map(line, wanted):
            progress(verdicts)
            lines.append(verdicts)
    return lines


def pinned() -> list[Verdicts]:
    """The expected verdicts."""
    lines = [line for line in PINNED.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    rows = [line.split() for line in lines[1:]]
    return [Verdicts(version, backend, merge, tuple(cells)) for version, backend, merge, *cells in rows]


def text(lines: Sequence[Verdicts]) -> str:
    """The file of the expected verdicts."""
    head = ("version", "backend", "merge", *(heading(number) for number in range(len(LAWS))))
    rows = [head, *((line.version, line.backend, line.merge, *line.cells) for line in lines)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    laws = [f"{heading(number):4} {law.name}" for number, law in enumerate(LAWS) if law.numbers]
    body = (" ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    return "\n".join([*(f"# {line}" for line in (*_SAYS, *laws)), *body, ""])


def render(lines: Sequence[Verdicts]) -> str:
    """A Markdown table: a row for each run of versions of one backend with equal verdicts, a column for each law."""
    numbers = [number for number, law in enumerate(LAWS) if law.numbers]
    head = ["backend", "versions", *(heading(number) for number in numbers)]
    rows = [head, ["---"] * len(head)]
    for backend, first, last, cells in _runs(lines, numbers):
        versions = first if first == last else f"{first} to {last}"
        rows.append([backend, versions, *("" if word == ABSENT else "·" if word == KEPT else "✗" for word in cells)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _runs(lines: Sequence[Verdicts], numbers: Sequence[int]) -> Iterator[tuple[str, str, str, list[str]]]:
    """Backend, first and last version, and the verdicts that these share: whether broken, not in how many steps."""

    def broken(line: Verdicts) -> list[str]:
        words = [line.cells[number] for number in numbers]
        return [word if word in (KEPT, ABSENT) else "broken" for word in words]

    for backend in sglang.BACKENDS:
        own = [line for line in lines if line.backend == backend]
        for cells, run in groupby(own, key=broken):
            versions = [line.version for line in run]
            yield backend, versions[0], versions[-1], cells
