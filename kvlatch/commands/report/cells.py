"""The page of ``prove``: the matrix, every counterexample as lanes, and what stayed unknown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Final

from kvlatch.commands import matrix, pages, show
from kvlatch.commands.explore import page as explore
from kvlatch.commands.report import Cell, Finding, Report, Section, Table, Tone, anchors, html
from kvlatch.proofs import pins
from kvlatch.proofs import prove as proofs
from kvlatch.proofs.verdicts import Proved, Refuted, Unknown
from kvlatch.reference.story import text
from kvlatch.spec.protocols import all_designs

if TYPE_CHECKING:
    from kvlatch.proofs.ptx import kernels

_NAMED: Final = 3
"""Designs that the heading names."""
_CELLS: Mapping[str, Tone] = {pins.HOLDS: "good", pins.NARROW: "good", "unknown": "open"}


def of_matrix(cells: Sequence[proofs.Cell], failures: matrix.Failures, seconds: float, *, selection: bool) -> str:
    """The page. Of a selection everything has to hold; of the whole matrix, every verdict to be the expected one."""
    refuted = sorted(
        (cell for cell in cells if isinstance(cell.verdict, Refuted)),
        key=lambda cell: (cell.row, cell.prop) not in failures,
    )
    names = [f"{_name(cell.row)}: {cell.prop}" for cell in refuted]
    links = dict(zip(names, anchors(names), strict=True))
    unjudged: dict[str, list[str]] = {}
    for cell in cells:
        if isinstance(cell.verdict, Unknown):
            unjudged.setdefault(cell.verdict.reason, []).append(f"{_name(cell.row)}: {cell.prop}")
    unexpected = [] if selection else [f"{_name(row)}: {prop}: {why}" for (row, prop), why in failures.items()]
    bad = any(isinstance(cell.verdict, Refuted) for cell in cells if (cell.row, cell.prop) in failures) or unexpected
    designs = list(dict.fromkeys(cell.row.design for cell in cells))
    of = f"{', '.join(designs)}: " if len(designs) <= _NAMED else ""
    return html(
        Report(
            "kvlatch prove",
            of + matrix.concluded(failures, selection=selection),
            ("bad" if bad else "open") if failures else "good",
            f"{matrix.counted(cells)}; {seconds:.1f} s",
            tuple(_tables(cells, links)),
            (Section("Counterexamples", tuple(_findings(refuted, names, links)), "None: nothing was refuted."),),
            unjudged,
            _figures(cells),
            pages.as_called(),
            tuple(f"Not as expected: {line}" for line in unexpected),
            matrix.meanings(cells),
        )
    )


def _name(row: proofs.Row) -> str:
    """``latch locked, 2 workers``."""
    return str(row).rstrip(",")


def _tables(cells: Sequence[proofs.Cell], links: Mapping[str, str]) -> Iterator[Table]:
    """The matrix of each protocol: a row for each row of it, a column for each property."""
    for protocol, group in groupby(cells, key=lambda cell: cell.row.protocol):
        mine = list(group)
        by_place = {(cell.row, cell.prop): cell for cell in mine}
        props = [prop.name for prop in protocol.properties if any(cell.prop == prop.name for cell in mine)]
        rows = [
            (Cell(_name(row)), *(_cell(by_place.get((row, prop)), links) for prop in props))
            for row in dict.fromkeys(cell.row for cell in mine)
        ]
        yield Table(f"The protocol {protocol.name}: {protocol.says}", ("design", *props), tuple(rows), words=False)


def _cell(cell: proofs.Cell | None, links: Mapping[str, str]) -> Cell:
    if cell is None:
        return Cell("")
    word = pins.text(cell.verdict)
    return Cell(word, _CELLS.get(word, ""), links.get(f"{_name(cell.row)}: {cell.prop}", ""))


def _findings(cells: Sequence[proofs.Cell], names: Sequence[str], links: Mapping[str, str]) -> Iterator[Finding]:
    for cell, name in zip(cells, names, strict=True):
        trace, design = proofs.trace_of(cell), proofs.design_of(cell.row.design)
        story = show.table(trace, design)
        (says,) = (prop.says for prop in cell.row.protocol.properties if prop.name == cell.prop)
        again = f"kvlatch explore {cell.row.design} --property {cell.prop} --atomicity {cell.row.atomicity}"
        count = f" --workers {cell.row.workers}" if len(cell.row.protocol.counts) > 1 else ""
        command = f"{again}{count} --output page.html" if cell.row.design in all_designs() else ""
        run, still = explore.of_trace(trace, design), explore.still(trace, design)
        yield Finding(links[name], name, says, story.sentence, text(story), command, run=run, still=still)


def _figures(cells: Sequence[proofs.Cell]) -> dict[str, object]:
    """How much was decided, and what the proofs rest on."""
    counts = Counter(type(cell.verdict).__name__.lower() for cell in cells)
    obligations = sum(len(cell.verdict.obligations) for cell in cells if isinstance(cell.verdict, Proved))
    lengths = [cell.verdict.length for cell in cells if isinstance(cell.verdict, Refuted)]
    figures: dict[str, object] = {"cells": len(cells), **counts}
    if obligations:
        figures["obligations that two solvers have shown"] = obligations
    if lengths:
        figures["steps of the shortest counterexamples"] = f"{min(lengths)} to {max(lengths)}"
    figures["seconds of the engines"] = round(sum(cell.ms for cell in cells) / 1000, 1)
    return figures


def of_kernels(findings: Sequence[kernels.Finding], exit_code: int) -> str:
    """The page of the CUDA kernels: a row for each obligation, or planted bug, on each architecture."""
    right = {one: "refuted" if one.planted else "proved" for one in findings}
    wrong = [one for one in findings if one.verdict not in (right[one], "not checked")]
    rows = tuple(
        (
            Cell(one.kernel),
            Cell(f"sm_{one.architecture}"),
            Cell(one.obligation),
            Cell(one.planted or "none"),
            Cell(one.verdict, "bad" if one in wrong else "good" if one.verdict == right[one] else ""),
        )
        for one in findings
    )
    table = Table(
        "A planted bug has to be refuted, all else to be proved.",
        ("kernel", "GPU", "obligation", "planted bug", "verdict"),
        rows,
    )
    names = [str(one) for one in wrong]
    found = (
        Finding(anchor, f"{one.kernel}: {one.obligation}", "", str(one))
        for one, anchor in zip(wrong, anchors(names), strict=True)
    )
    unjudged: dict[str, list[str]] = {}
    for one in findings:
        if one.verdict == "not checked":
            unjudged.setdefault(one.reason, []).append(f"{one.kernel} sm_{one.architecture}: {one.obligation}")
    title = f"{len(wrong)} of {len(findings)} are not as they should be" if wrong else "Everything is as it should be"
    tones: dict[int, Tone] = {0: "good", 1: "bad"}
    return html(
        Report(
            "kvlatch prove --only ptx", title, tones.get(exit_code, "open"), f"{len(findings)} obligations", (table,),
            (Section("What broke", tuple(found)),), unjudged,
            dict(Counter(one.verdict for one in findings)), pages.as_called(),
        )
    )  # fmt: skip
