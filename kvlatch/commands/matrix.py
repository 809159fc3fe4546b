"""The verdict matrix: as a table to read, as JSON lines, as JUnit, and as annotations in CI.

A cell says ``holds``, or the length of the shortest counterexample with the suffix of the world that it needs
(``worlds.py``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Final

import attrs
from rich.table import Table
from rich.text import Text

from kvlatch.commands import show
from kvlatch.commands.annotations import Annotation, block
from kvlatch.commands.junit import Case
from kvlatch.proofs import pins
from kvlatch.proofs.prove import Cell, Row, design_of, trace_of
from kvlatch.proofs.verdicts import Proved, Refuted, Unknown
from kvlatch.reference.story import Story, text
from kvlatch.reference.user_design import place
from kvlatch.spec.protocols import all_designs
from kvlatch.spec.schema import Protocol

_LEAST: Final = 9
"""Columns of a property's cells, so that tables below each other line up."""
_GAP: Final = 2

Failures = Mapping[tuple[Row, str], str]
"""Why each cell that fails does so, in a few words: it is not as expected, or it does not hold."""


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
        **({"bounds": dict(verdict.bounds)} if isinstance(verdict, Proved) else {}),
        **({"obligations": _rounded(verdict.obligations)} if isinstance(verdict, Proved) else {}),
        **({"reason": verdict.reason, "searched": list(verdict.searched)} if isinstance(verdict, Unknown) else {}),
        **({"gap": attrs.asdict(verdict.gap)} if isinstance(verdict, Unknown) and verdict.gap else {}),
    }


def _slashes(cells: Sequence[Cell]) -> str:
    """What the two numbers of a cell are about, for each protocol whose cells can have two."""
    protocols = {cell.row.protocol.name: cell.row.protocol for cell in cells}
    counts = [
        " / ".join(f"{count} {one.crowd}{'s' if count > 1 else ''}" for count in one.counts)
        for one in protocols.values()
        if len(one.counts) > 1
    ]
    return "".join(f"; 21/16: with {with_these}" for with_these in counts)


def _rounded(times: Mapping[str, float]) -> dict[str, float]:
    return {name: round(ms, 1) for name, ms in times.items()}


# --------------------------------------------------------------------------------------------------------------------
# For a person


def tables(cells: Sequence[Cell], width: int) -> Iterable[Table]:
    """The matrix, as many properties side by side as fit, one at least; two numbers are for one worker and for two."""
    for protocol, group in groupby(cells, key=lambda cell: cell.row.protocol):
        yield from _tables(protocol, list(group), width)


def _tables(protocol: Protocol, cells: Sequence[Cell], width: int) -> Iterable[Table]:
    names = [prop.name for prop in protocol.properties if any(cell.prop == prop.name for cell in cells)]
    by_place = {(cell.row, cell.prop): pins.text(cell.verdict) for cell in cells}
    rows = list(dict.fromkeys(cell.row for cell in cells))
    groups = [list(group) for _, group in groupby(rows, key=lambda row: (row.design, row.atomicity))]
    words = {name: [_joined([by_place[row, name] for row in group]) for group in groups] for name in names}
    labels = [f"{group[0].design} {group[0].atomicity}" for group in groups]
    for shown in _fitting({name: _width(name, words[name]) for name in names}, width - max(map(len, labels))):
        table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
        table.add_column("design", no_wrap=True)
        for name in shown:
            table.add_column(_heading(name), justify="right", no_wrap=True, min_width=_width(name, words[name]))
        for number, label in enumerate(labels):
            table.add_row(Text(label), *(_cell(words[name][number]) for name in shown))
        yield table


def _fitting(widths: Mapping[str, int], width: int) -> Iterable[list[str]]:
    """Names in groups that fit side by side; a group has one name at least."""
    shown: list[str] = []
    for name in widths:
        if shown and sum(_GAP + widths[other] for other in [*shown, name]) > width:
            yield shown
            shown = []
        shown.append(name)
    yield shown


def _heading(name: str) -> str:
    return name.replace("-", "-\n", 1)


def _width(name: str, words: Iterable[str]) -> int:
    return max(_LEAST, *map(len, _heading(name).split("\n")), *map(len, words))


def _joined(words: list[str]) -> str:
    return words[0] if len(set(words)) == 1 else "/".join(words)


def _cell(word: str) -> Text:
    return Text(word, style="green" if word.startswith(pins.HOLDS) else "yellow" if "unknown" in word else "")


def legend(cells: Sequence[Cell]) -> str:
    """What the words of the matrix mean, as far as it uses them."""
    slashes = _slashes(cells)
    return "\n".join(
        f"{word:<8} {says}{slashes if word.isdigit() else ''}".replace("\n", "\n" + " " * 9)
        for word, says in meanings(cells).items()
    )


def meanings(cells: Sequence[Cell]) -> dict[str, str]:
    """What each word of these cells means; proofs of several scopes have a line for each."""
    proofs = [cell.verdict for cell in cells if isinstance(cell.verdict, Proved)]
    found = {}
    for word, what in (
        (pins.HOLDS, "in any run, however long, by induction that Z3 and cvc5 have checked:"),
        (pins.NARROW, "the same, but for less:"),
    ):
        if scopes := sorted({proof.scope for proof in proofs if pins.text(proof) == word}):
            found[word] = "\n".join([what, *scopes])
    assumed = {(cell.prop, cell.verdict.bounds.get("fairness")) for cell in cells if isinstance(cell.verdict, Proved)}
    if fair := [f"{prop} assumes {fairness}" for prop, fairness in sorted(assumed, key=str) if fairness]:
        last = list(found)[-1]
        found[last] = "\n".join([found[last], *fair])
    refuted = [cell.verdict for cell in cells if isinstance(cell.verdict, Refuted)]
    if refuted:
        found["12"] = "steps of the shortest counterexample"
    for world in sorted({verdict.world for verdict in refuted if verdict.world.suffix}, key=lambda world: world.suffix):
        least = min(verdict.length for verdict in refuted if verdict.world.suffix == world.suffix)
        found[f"{least}{world.suffix}"] = f"the same, and it needs this: {world.name}"
    return found


def summary(cells: Sequence[Cell], failures: Failures, seconds: float, *, selection: bool) -> str:
    """The last line."""
    return f"{counted(cells)}; {concluded(failures, selection=selection)}. {seconds:.1f} s"


def counted(cells: Sequence[Cell]) -> str:
    """How many cells there are, and how many have which verdict."""
    counts = Counter(type(cell.verdict).__name__.lower() for cell in cells)
    said = ", ".join(f"{counts[kind]} {kind}" for kind in ("proved", "refuted", "unknown") if counts[kind])
    return f"{len(cells)} cells: {said}"


def concluded(failures: Failures, *, selection: bool) -> str:
    """What that means, where a selection has to hold, and the whole matrix to be as it is pinned."""
    if selection:
        return "everything selected holds" if not failures else "not everything selected holds"
    return "every verdict is the expected one" if not failures else f"{len(failures)} are not as expected"


# --------------------------------------------------------------------------------------------------------------------
# For a CI


def cases(cells: Sequence[Cell], failures: Failures) -> list[Case]:
    """The cells as JUnit cases. One that fails says what broke, with the steps of its counterexample."""
    return [_case(cell, failures.get((cell.row, cell.prop)), _seconds(cell, cells)) for cell in cells]


def _case(cell: Cell, why: str | None, seconds: float | None) -> Case:
    row = cell.row
    name = f"{cell.prop} [{row.workers} worker{'s' * (row.workers > 1)}]"
    failure = None if why is None else _failure(cell, why)
    file, line = _place(row.design)
    return Case(f"{row.design}.{row.atomicity}", name, failure, seconds, file=file, line=line)


def _failure(cell: Cell, why: str) -> str:
    match cell.verdict:
        case Refuted():
            story = _story(cell)
            expected = f" ({why})" if "expected" in why else ""
            return f"{story.sentence}{expected}\n{text(story)}"
        case Unknown(reason):
            return f"unknown, which is no pass: {reason}"
        case Proved(scope):
            return f"{why}\nproved: {scope}"


def _seconds(cell: Cell, cells: Iterable[Cell]) -> float | None:
    """How long an engine worked, if that was measured; a proof for more workers is also one for fewer."""
    alike = (one.ms for one in cells if _key(one) == _key(cell) and type(one.verdict) is type(cell.verdict))
    return (cell.ms or max(alike)) / 1000 or None


def _key(cell: Cell) -> tuple[str, str, str]:
    return cell.row.design, cell.row.atomicity, cell.prop


def annotated(cells: Sequence[Cell], failures: Failures) -> list[Annotation]:
    """One for each design that fails; at the user's own merge, if the design is theirs."""
    found = []
    for design in dict.fromkeys(row.design for row, _ in failures):
        mine = [cell for cell in cells if cell.row.design == design and (cell.row, cell.prop) in failures]
        shortest = _shortest(mine)
        sentence = _story(shortest).sentence if shortest else _failure(mine[0], _why(mine[0], failures))
        names = list(dict.fromkeys(cell.prop for cell in mine))
        of = f"{len(names)} properties: {', '.join(names)}. " if len(names) > 1 else ""
        found.append(Annotation(f"kvlatch prove: {design}", of + sentence.partition("\n")[0], *_place(design)))
    return found


def page(cells: Sequence[Cell], failures: Failures, last_line: str) -> str:
    """Markdown for the page of a step: what failed, design by design, and the shortest counterexample."""
    if not failures:
        return ""
    by_place = {(cell.row, cell.prop): cell for cell in cells}
    sentences = [f"- **{row} {prop}**: {_how(by_place[row, prop], why)}" for (row, prop), why in failures.items()]
    shortest = _shortest([cell for cell in cells if (cell.row, cell.prop) in failures])
    run = ["", block(text(_story(shortest)))] if shortest else []
    return "\n".join(["### kvlatch prove", "", last_line, "", *sentences, *run])


def _how(cell: Cell, why: str) -> str:
    """Why a cell fails, where no legend explains the words of the matrix."""
    if isinstance(cell.verdict, Refuted) and "expected" not in why:
        return f"broken in {cell.verdict.length} steps, {cell.verdict.world.name}"
    return why


def _shortest(cells: Iterable[Cell]) -> Cell | None:
    lengths = {cell.verdict.length: cell for cell in cells if isinstance(cell.verdict, Refuted)}
    return lengths[min(lengths)] if lengths else None


def _why(cell: Cell, failures: Failures) -> str:
    return failures[cell.row, cell.prop]


def _story(cell: Cell) -> Story:
    return show.table(trace_of(cell), design_of(cell.row.design))


def _place(design: str) -> tuple[str | None, int | None]:
    """File and line of the merge of a user's own design; nothing for one that ships, which is not theirs to mend."""
    return (None, None) if design in all_designs() else place(design)
