"""The expected verdicts: every scenario on every backend of every pinned version.

They are one text file, a line a manager, so that a changed verdict is a changed line in a review.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from pathlib import Path
from typing import Final

import attrs

from kvlatch.reference.laws import LAWS, Judgement
from kvlatch.reference.published.sglang import scripts as sglang
from kvlatch.reference.published.sglang.judge import Examination, examine
from kvlatch.reference.published.sglang.scenarios import SCENARIOS
from kvlatch.spec.merges import MERGES, Table, table

PINNED: Final = Path(__file__).with_name("verdicts.txt")
KEPT: Final = "."
NOT_JUDGED: Final = "-"
_SAYS: Final = (
    "The verdict of every scenario (scenarios.py) on every published manager; written by verdicts.text().",
    "The length of the shortest run that breaks the law; or . if it is kept; or - if it is not judged there.",
    "merge: the rule of spec/merges.py whose table is that of the real update_status, in all 30 cells.",
)


@attrs.frozen
class Verdicts:
    """One line: the merge, and what became of each scenario, in the order of the catalogue."""

    version: str
    backend: str
    merge: str
    cells: tuple[str, ...]

    @classmethod
    def of(cls, version: str, backend: str, examination: Examination) -> Verdicts:
        """The line of an examination of all scenarios and the merge."""
        if examination.merge is None:
            raise ValueError("its merge was not asked for")
        cells = tuple(cell(one, examination.steps) for one in examination.judgements)
        return cls(version, backend, rule(examination.merge), cells)

    def law(self, name: str) -> str:
        """``broken`` if a scenario of the law is, else ``kept`` if one is, else ``not judged``."""
        mine = {self.cells[number] for number, scenario in enumerate(SCENARIOS) if scenario.law == name}
        return "broken" if mine - {KEPT, NOT_JUDGED} else "kept" if KEPT in mine else "not judged"


def rule(merge: Table) -> str:
    """The rule in `spec.merges` that has this table, the last one if several have; `?` if none has."""
    return next((name for name in reversed(MERGES) if table(MERGES[name]) == merge), "?")


def cell(judgement: Judgement, steps: dict[str, int]) -> str:
    """A judgement in a word."""
    return {"kept": KEPT, "not judged": NOT_JUDGED}.get(judgement.verdict) or str(steps[judgement.name])


def pairs(versions: Iterable[str] | None = None) -> list[tuple[str, str]]:
    """Every pinned version, or each of these, with every backend that it has. Raises as `sglang.backends` does."""
    chosen = sglang.versions() if versions is None else versions
    return [(version, backend) for version in chosen for backend in sglang.backends(version)]


def verdict_table(
    wanted: Sequence[tuple[str, str]] | None = None,
    *,
    workers: int = 2,
    timeout: float = 600.0,
    progress: Callable[[Verdicts], None] = lambda _: None,
) -> list[Verdicts]:
    """The verdicts of these versions and backends, or of all, computed by ``workers`` child processes side by side.

    Raises as `examine` does. `progress` is called with each line as it is there, in order.
    """
    wanted = pairs() if wanted is None else wanted

    def line(pair: tuple[str, str]) -> Verdicts:
        return Verdicts.of(*pair, examine(*pair, merge=True, timeout=timeout))

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
    numbers = [str(number) for number, _ in enumerate(SCENARIOS, 1)]
    rows = [
        ("version", "backend", "merge", *numbers),
        *((line.version, line.backend, line.merge, *line.cells) for line in lines),
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    names = [
        " ".join((f"{number:2}", scenario.full_name, *scenario.numbers)) for number, scenario in enumerate(SCENARIOS, 1)
    ]
    body = (" ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    return "\n".join([*(f"# {line}" for line in (*_SAYS, *names)), *body, ""])


def render(lines: Sequence[Verdicts]) -> str:
    """A Markdown table: a row for each run of versions of one backend with equal verdicts, a column for each law."""
    head = ["backend", "versions", *LAWS]
    rows = [head, ["---"] * len(head)]
    marks = {"broken": "✗", "kept": "·", "not judged": ""}
    for backend, first, last, verdicts in _runs(lines):
        versions = first if first == last else f"{first} to {last}"
        rows.append([backend, versions, *(marks[verdict] for verdict in verdicts)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _runs(lines: Sequence[Verdicts]) -> Iterator[tuple[str, str, str, list[str]]]:
    """Backend, first and last version that were run, and the verdicts that these share, by law."""
    for backend in sglang.BACKENDS:
        own = [line for line in lines if line.backend == backend]
        for verdicts, run in groupby(own, key=lambda line: [line.law(law) for law in LAWS]):
            versions = [line.version for line in run]
            yield backend, versions[0], versions[-1], verdicts
