"""The expected verdicts: ``verdicts.txt`` has a line a row, so that a changed verdict is a changed line in a review."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Final

from kvlatch.proofs.prove import Cell, Row, UnknownName
from kvlatch.proofs.verdicts import Proved, Refuted, Unknown, Verdict

HOLDS: Final = "holds"
NARROW: Final = "holds*"
"""For less than proofs of the protocol are about: its line says for how much."""

PINS: Final = Path(__file__).with_name("verdicts.txt")
_HEAD: Final = """\
# The expected verdict of every cell; `kvlatch prove` fails when one changes, `kvlatch prove --pin` writes this file.
# holds (holds*: for less than any number), or the length of the shortest counterexample; x, e, o, t: with a message
# that is lost, early, overdue or comes twice, d: with several such; r: with a room id used again, l: with a late
# message of the first request.
"""


def text(verdict: Verdict) -> str:
    """A verdict in one word."""
    match verdict:
        case Proved():
            return NARROW if verdict.narrow else HOLDS
        case Refuted():
            return f"{verdict.length}{verdict.world.suffix}"
        case Unknown():
            return "unknown"


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
    """Write the pinned file from the cells of the whole matrix: a block for each protocol."""
    rows: dict[Row, dict[str, str]] = {}
    for cell in cells:
        rows.setdefault(cell.row, {})[cell.prop] = text(cell.verdict)
    blocks = []
    for protocol, several in groupby(rows, key=lambda row: row.protocol):
        group, names = list(several), [prop.name for prop in protocol.properties]
        if any(set(rows[row]) != set(names) for row in group):
            raise UnknownName("only the whole matrix can be pinned: leave out --property")
        widths = [max(len(name), 7) for name in names]
        count = f"{protocol.crowd}s" if protocol.crowd else "-"
        lines = [f"{'design':<22} {'atomicity':<9} {count:<7} " + " ".join(map(str.ljust, names, widths))]
        for row in group:
            said = " ".join(rows[row][name].ljust(width) for name, width in zip(names, widths, strict=True))
            lines.append(f"{row.design:<22} {row.atomicity:<9} {row.workers:<7} {said}")
        blocks.append("\n".join(line.rstrip() for line in lines))
    PINS.write_text(_HEAD + "\n\n".join(blocks) + "\n", encoding="utf-8")


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
