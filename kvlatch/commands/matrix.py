"""The verdict matrix: as a table to read, as JSON lines and as JUnit.

A cell says ``holds``, or the length of the shortest counterexample with the suffix of the world that it needs
(``worlds.py``).
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Final

from rich.table import Table
from rich.text import Text

from kvlatch.proofs import pins
from kvlatch.proofs.prove import Cell, Row
from kvlatch.proofs.verdicts import Proved, Refuted, Unknown
from kvlatch.spec.properties import PROPERTIES

_NAMES: Final = tuple(prop.name for prop in PROPERTIES)


def as_json(cell: Cell) -> dict[str, object]:
    """One cell, for machines. ``length`` is in steps, ``ms`` in milliseconds of one engine's work for the row."""
    verdict = cell.verdict
    return {
        "design": cell.row.design,
        "atomicity": cell.row.atomicity,
        "workers": cell.row.workers,
        "property": cell.prop,
        "verdict": type(verdict).__name__.lower(),
        "length": verdict.length if isinstance(verdict, Refuted) else None,
        "scope": verdict.scope
        if isinstance(verdict, Proved)
        else verdict.world.name
        if isinstance(verdict, Refuted)
        else None,
        "ms": round(cell.ms, 1),
        **({"obligations": _rounded(verdict.obligations)} if isinstance(verdict, Proved) else {}),
        **({"reason": verdict.reason} if isinstance(verdict, Unknown) else {}),
    }


def _rounded(times: Mapping[str, float]) -> dict[str, float]:
    return {name: round(ms, 1) for name, ms in times.items()}


def tables(cells: Sequence[Cell], width: int) -> Iterable[Table]:
    """The matrix, as many properties side by side as fit; two numbers are for one worker and for two."""
    names = [name for name in _NAMES if any(cell.prop == name for cell in cells)]
    by_place = {(cell.row, cell.prop): pins.text(cell.verdict) for cell in cells}
    rows = list(dict.fromkeys(cell.row for cell in cells))
    first = max(len(f"{row.design} {row.atomicity}") for row in rows)
    columns = max(1, (width - first - 2) // 11)
    for start in range(0, len(names), columns):
        table = Table(box=None, pad_edge=False, header_style="bold", collapse_padding=True)
        table.add_column("design", no_wrap=True)
        shown = names[start : start + columns]
        for name in shown:
            table.add_column(name.replace("-", "-\n", 1), justify="right", no_wrap=True, min_width=9)
        for (design, atomicity), several in groupby(rows, key=lambda row: (row.design, row.atomicity)):
            group = list(several)
            said = [[by_place[row, name] for row in group] for name in shown]
            table.add_row(Text(f"{design} {atomicity}"), *(_cell(words) for words in said))
        yield table


def _cell(words: list[str]) -> Text:
    joined = words[0] if len(set(words)) == 1 else "/".join(words)
    return Text(joined, style="green" if joined == "holds" else "yellow" if "unknown" in joined else "")


def legend(cells: Sequence[Cell]) -> str:
    """What the words of the matrix mean, as far as it uses them."""
    said = {pins.text(cell.verdict) for cell in cells}
    lines = []
    scopes = sorted({cell.verdict.scope for cell in cells if isinstance(cell.verdict, Proved)})
    if scopes:
        lines.append("holds    in any run, however long, by induction that Z3 and cvc5 have checked:")
        lines += [f"         {scope}" for scope in scopes]
    if any(word[0].isdigit() for word in said):
        lines.append("12       steps of the shortest counterexample; 21/16: with one worker / with two workers")
    if any("d" in word for word in said if word[0].isdigit()):
        lines.append("5d       needs a disorderly network: a message is lost, doubled, early or late")
    if any("r" in word for word in said if word[0].isdigit()):
        lines.append("9r       needs a second request that uses the same room id")
    return "\n".join(lines)


def summary(cells: Sequence[Cell], failures: Mapping[tuple[Row, str], str], seconds: float, *, selection: bool) -> str:
    """The last line."""
    counts = Counter(type(cell.verdict).__name__.lower() for cell in cells)
    told = ", ".join(f"{counts[kind]} {kind}" for kind in ("proved", "refuted", "unknown") if counts[kind])
    if selection:
        verdict = "everything selected holds" if not failures else "not everything selected holds"
    else:
        verdict = "every verdict is the expected one" if not failures else f"{len(failures)} are not as expected"
    return f"{len(cells)} cells: {told}; {verdict}. {seconds:.1f} s"


def junit(cells: Iterable[Cell], failures: Mapping[tuple[Row, str], str], path: Path) -> None:
    """Write the cells as JUnit test cases; ``failures`` says which fail and why."""
    cells = list(cells)
    suite = ET.Element("testsuite", name="kvlatch prove", tests=str(len(cells)), failures=str(len(failures)))
    for cell in cells:
        row = cell.row
        name = f"{cell.prop} [{row.workers} workers]"
        case = ET.SubElement(
            suite, "testcase", classname=f"{row.design}.{row.atomicity}", name=name, time=f"{cell.ms / 1000:.3f}"
        )
        if (why := failures.get((row, cell.prop))) is not None:
            ET.SubElement(case, "failure", message=why)
    ET.ElementTree(suite).write(path, encoding="utf-8", xml_declaration=True)
