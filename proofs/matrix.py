"""The verdict matrix: as a table to read, as the pinned file, as JSON lines and as JUnit.

A cell says ``holds``, or the length of the shortest counterexample with the suffix of the world that it needs
(``worlds.py``). The pinned file has one line per row, so that a change of a verdict is a changed line in a review.
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

from kvlatch.proofs.prove import Cell, Row, UnknownName
from kvlatch.proofs.verdicts import Proved, Refuted, Unknown, Verdict
from kvlatch.spec.properties import PROPERTIES

PINS: Final = Path(__file__).with_name("verdicts.txt")
_NAMES: Final = tuple(prop.name for prop in PROPERTIES)
_HEAD: Final = """\
# The expected verdict of every cell; `kvlatch prove` fails when one changes, `kvlatch prove --pin` writes this file.
# holds, or the length of the shortest counterexample; d: in a disorderly network, r: with a room id used again.
"""


def text(verdict: Verdict) -> str:
    """A verdict in one word."""
    match verdict:
        case Proved():
            return "holds"
        case Refuted():
            return f"{verdict.length}{verdict.world.suffix}"
        case Unknown():
            return "unknown"


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
    by_place = {(cell.row, cell.prop): text(cell.verdict) for cell in cells}
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


def pinned() -> dict[tuple[str, str, int, str], str]:
    """The expected word of every cell."""
    found: dict[tuple[str, str, int, str], str] = {}
    names: list[str] = []
    for line in PINS.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            design, atomicity, workers, *words = line.split()
            if design == "design":
                names = words
                continue
            for name, word in zip(names, words, strict=True):
                found[design, atomicity, int(workers), name] = word
    return found


def pin(cells: Sequence[Cell]) -> None:
    """Write the pinned file from the cells of the whole matrix."""
    rows: dict[Row, dict[str, str]] = {}
    for cell in cells:
        rows.setdefault(cell.row, {})[cell.prop] = text(cell.verdict)
    if any(set(words) != set(_NAMES) for words in rows.values()):
        raise UnknownName("only the whole matrix can be pinned: leave out --property")
    widths = [max(len(name), 7) for name in _NAMES]
    lines = [f"{'design':<22} {'atomicity':<9} workers " + " ".join(map(str.ljust, _NAMES, widths))]
    for row, words in rows.items():
        cells_ = " ".join(words[name].ljust(width) for name, width in zip(_NAMES, widths, strict=True))
        lines.append(f"{row.design:<22} {row.atomicity:<9} {row.workers:<7} {cells_}")
    PINS.write_text(_HEAD + "\n".join(line.rstrip() for line in lines) + "\n", encoding="utf-8")


def differences(cells: Iterable[Cell]) -> dict[tuple[Row, str], str]:
    """Why each cell is not as expected that is not: what it says, and what is pinned."""
    expected = pinned()
    found = {}
    for cell in cells:
        row = cell.row
        wanted = expected.get((row.design, row.atomicity, row.workers, cell.prop), "not pinned")
        if (got := text(cell.verdict)) != wanted:
            found[row, cell.prop] = f"{got}, expected {wanted}"
    return found


def counterexamples(cells: Iterable[Cell]) -> list[Cell]:
    """The refuted cells, without those that say for more workers what has been said for fewer."""
    said: dict[tuple[str, str, str], set[str]] = {}
    found = []
    for cell in sorted(cells, key=lambda cell: cell.row.workers):
        known = said.setdefault((cell.row.design, cell.row.atomicity, cell.prop), set())
        if isinstance(cell.verdict, Refuted) and text(cell.verdict) not in known:
            found.append(cell)
        known.add(text(cell.verdict))
    return found


def legend(cells: Sequence[Cell]) -> str:
    """What the words of the matrix mean, as far as it uses them."""
    said = {text(cell.verdict) for cell in cells}
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
