"""``kvlatch prove``: decide properties of designs, and say whether each verdict is the expected one."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import click
from rich.progress import Progress

from kvlatch.commands import matrix, show
from kvlatch.commands.common import console
from kvlatch.commands.exits import INTERNAL, OK, UNKNOWN, USAGE, VIOLATED, Failure
from kvlatch.proofs import pins
from kvlatch.proofs.certificates import Refused, certify, check_target
from kvlatch.proofs.prove import Cell, Disagreement, Row, UnknownName, design_of, select, trace_name, trace_of
from kvlatch.proofs.prove import prove as decide
from kvlatch.proofs.verdicts import Unknown
from kvlatch.spec.properties import BY_NAME
from kvlatch.spec.traces import SUFFIX, write


@click.command()
@click.option("--design", "designs", multiple=True, metavar="NAME", help="A design that ships, or your module:NAME.")
@click.option("--atomicity", "atomicities", multiple=True, type=click.Choice(["locked", "split", "cas"]))
@click.option("--property", "properties", multiple=True, metavar="NAME", help="One of the twelve properties.")
@click.option("--workers", multiple=True, type=click.IntRange(1, 4), help="Transfer workers; by default 1 and 2.")
@click.option("--only", type=click.Choice(["ptx"]), help="Instead, the CUDA kernels: the PTX that NVRTC emits.")
@click.option("--thorough", is_flag=True, help="Every cell by every engine that can decide it (minutes).")
@click.option(
    "--traces",
    type=click.Path(path_type=Path, file_okay=False),
    default="traces",
    show_default=True,
    help="Where counterexamples of a selection are written.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@click.option(
    "--certificates",
    type=click.Path(path_type=Path),
    help="Also write files that another solver can check: into a directory, or an archive NAME.tar.gz.",
)
@click.option("--junit", type=click.Path(path_type=Path, dir_okay=False), help="Also write a JUnit report.")
@click.option("--pin", is_flag=True, help="Make these verdicts, and their traces, the expected ones.")  # fmt: skip
def prove(
    designs: tuple[str, ...],
    atomicities: tuple[str, ...],
    properties: tuple[str, ...],
    workers: tuple[int, ...],
    only: str | None,
    thorough: bool,
    traces: Path,
    as_json: bool,
    junit: Path | None,
    certificates: Path | None,
    pin: bool,
) -> int:
    """Decide properties of designs, for any run of an instance.

    Without a selection: every design and every property, and exit 0 if each verdict is the expected one, be it a proof
    or a counterexample. With one: exit 0 if everything selected holds, 1 if something is violated (its trace is
    written), 3 if something is unknown.
    """
    if only is not None:
        return _prove_kernels(as_json=as_json)
    if certificates:
        _certificates_may_go(certificates)
    selection = bool(designs or atomicities or properties or workers)
    start = time.perf_counter()
    try:
        names = _properties(properties)
        rows = select(designs, atomicities, workers)
        cells = _decide(rows, names, thorough=thorough, as_json=as_json)
        seconds = time.perf_counter() - start
        if pin:
            pins.pin(cells)
    except UnknownName as error:
        raise Failure(str(error), USAGE) from error
    except Disagreement as error:
        raise Failure(f"the engines disagree, so nothing here can be believed: {error}", INTERNAL) from error
    if not as_json:
        _print_matrix(cells)
    if pin:
        _pin_traces(cells)
    failures = _failures(cells, against_pins=not selection)
    if junit:
        matrix.junit(cells, failures, junit)
    _report(cells, failures, seconds, traces=traces if selection else None, quiet=as_json)
    if certificates:
        _certify(cells, certificates, quiet=as_json)
    verdicts = {type(cell.verdict).__name__ for cell in cells}
    if not failures:
        return OK
    return VIOLATED if not selection or "Refuted" in verdicts else UNKNOWN


def _prove_kernels(*, as_json: bool) -> int:
    """Every kernel on every architecture, and every planted bug refuted."""
    from kvlatch.proofs.ptx import kernels  # its solver objects are not needed for the matrix

    findings = [*kernels.prove_kernels(), *kernels.refute_planted()]
    for line in [json.dumps(kernels.as_json(f)) for f in findings] if as_json else kernels.lines(findings):
        click.echo(line)
    return kernels.exit_code(findings)


def _properties(wanted: Sequence[str]) -> list[str]:
    for name in wanted:
        if name not in BY_NAME:
            raise UnknownName(f"no property is called {name!r}: they are {', '.join(BY_NAME)}")
    return [name for name in BY_NAME if name in wanted or not wanted]


def _decide(rows: Sequence[Row], names: Sequence[str], *, thorough: bool, as_json: bool) -> list[Cell]:
    """All cells, in the order of the rows; JSON lines as they come, progress on a terminal."""
    decided: dict[Row, list[Cell]] = {}
    with Progress(console=console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("deciding", total=len(rows))
        for cells in decide(rows, names, thorough=thorough):
            row = cells[0].row
            decided[row] = cells
            progress.update(task, advance=1, description=f"{row.design} {row.atomicity}, {row.workers} workers")
            if as_json:
                for cell in cells:
                    click.echo(json.dumps(matrix.as_json(cell)))
    return [cell for row in rows for cell in decided[row]]


def _failures(cells: Sequence[Cell], *, against_pins: bool) -> dict[tuple[Row, str], str]:
    """Why each cell fails that does: it is not as expected; or, in a selection, it does not hold."""
    if against_pins:
        return pins.differences(cells)
    return {(cell.row, cell.prop): said for cell in cells if (said := pins.text(cell.verdict)) != "holds"}


def _print_matrix(cells: Sequence[Cell]) -> None:
    out = console()
    for table in matrix.tables(cells, out.width):
        out.print(table)
        out.print()
    out.print(matrix.legend(cells), highlight=False)


def _report(
    cells: Sequence[Cell],
    failures: dict[tuple[Row, str], str],
    seconds: float,
    *,
    traces: Path | None,
    quiet: bool,
) -> None:
    """What the numbers mean for the one who asked: counts, and each failure with the way to see it."""
    out = console(stderr=quiet)
    if traces is None:
        for (row, prop), why in failures.items():
            out.print(f"not as expected: {row} {prop}: {why}", highlight=False)
    else:
        for number, cell in enumerate(pins.counterexamples(cells)):
            trace, path = trace_of(cell), traces / trace_name(cell)
            traces.mkdir(parents=True, exist_ok=True)
            write(trace, path)
            if number == 0 and not quiet:
                out.print(show.table(trace, design_of(cell.row.design)))
            out.print(f"{path}: {trace.description}", highlight=False, soft_wrap=True)
    for cell in cells:
        if isinstance(cell.verdict, Unknown):
            out.print(f"unknown: {cell.row} {cell.prop}: {cell.verdict.reason}", highlight=False)
    if os.environ.get("GITHUB_ACTIONS"):
        for (row, prop), why in failures.items():
            click.echo(f"::error title=kvlatch::{row} {prop}: {why}", err=True)
    if not quiet:
        out.print(matrix.summary(cells, failures, seconds, selection=traces is not None), highlight=False)


def _certificates_may_go(directory: Path) -> None:
    """Say so before the proofs, not after them, if the directory holds something else."""
    try:
        check_target(directory)
    except Refused as error:
        raise Failure(str(error), USAGE) from error


def _certify(cells: Sequence[Cell], directory: Path, *, quiet: bool) -> None:
    try:
        count = certify(cells, directory)
    except Refused as error:
        raise Failure(str(error), USAGE) from error
    click.echo(f"{directory}: {count} files; check them with: kvlatch recheck {directory}", err=quiet)


def _pin_traces(cells: Sequence[Cell]) -> None:
    """Put the counterexamples in the place of those that are there."""
    directory = pins.PINS.with_name("traces")
    directory.mkdir(exist_ok=True)
    kept = {trace_name(cell) for cell in pins.counterexamples(cells)}
    for cell in pins.counterexamples(cells):
        write(trace_of(cell), directory / trace_name(cell))
    for old in directory.glob(f"*{SUFFIX}"):
        if old.name not in kept:
            old.unlink()
