"""``kvlatch prove``: decide properties of designs, and say whether each verdict is the expected one."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import click

from kvlatch.commands import junit, matrix, pages, show
from kvlatch.commands.annotations import annotate
from kvlatch.commands.common import (
    console,
    folder_can_be_made,
    html_option,
    json_option,
    junit_option,
    progress,
    put,
    refuse,
    traces_option,
)
from kvlatch.commands.exits import INTERNAL, OK, UNKNOWN, USAGE, VIOLATED, Failure
from kvlatch.proofs import pins
from kvlatch.proofs.certificates import Refused, certify, check_target
from kvlatch.proofs.prove import Cell, Disagreement, Row, UnknownName, design_of, select, trace_name, trace_of
from kvlatch.proofs.prove import prove as decide
from kvlatch.proofs.verdicts import Proved, Unknown
from kvlatch.spec.protocols import PROTOCOLS, all_designs
from kvlatch.spec.traces import SUFFIX, write

if TYPE_CHECKING:
    from kvlatch.proofs.ptx.kernels import Finding

_SELECTION = ("designs", "protocol", "atomicities", "properties", "workers")


@attrs.frozen
class Outputs:
    """Where the verdicts go, besides the terminal. ``traces`` is None where no trace is written."""

    as_json: bool
    junit: Path | None
    traces: Path | None
    certificates: Path | None
    html: Path | None


@click.command()
@click.option("--design", "designs", multiple=True, metavar="NAME", help="A design that ships, or your MODULE:NAME.")
@click.option("--protocol", type=click.Choice(list(PROTOCOLS)), help="Only the designs of this protocol.")
@click.option("--atomicity", "atomicities", multiple=True, type=click.Choice(["locked", "split", "cas"]))
@click.option("--property", "properties", multiple=True, metavar="NAME", help="A property of the protocol.")
@click.option(
    "--workers", multiple=True, type=click.IntRange(1, 4), help="Transfer workers, by default 1 and 2; or ranks."
)
@click.option("--only", type=click.Choice(["ptx"]), help="Instead, the CUDA kernels: the PTX that NVRTC emits.")
@click.option("--thorough", is_flag=True, help="Every cell by every engine that can decide it (minutes).")
@traces_option("Where counterexamples of a selection are written.", default="traces")
@click.option(
    "--certificates",
    type=click.Path(path_type=Path),
    callback=folder_can_be_made,
    help="Also write files that another solver can check: into a directory, or an archive NAME.tar.gz.",
)
@click.option("--pin", is_flag=True, help="Make these verdicts, and their traces, the expected ones.")
@junit_option
@html_option
@json_option("One JSON object a line, one line a cell.")
def prove(
    designs: tuple[str, ...],
    protocol: str | None,
    atomicities: tuple[str, ...],
    properties: tuple[str, ...],
    workers: tuple[int, ...],
    only: str | None,
    thorough: bool,
    pin: bool,
    **outputs: object,
) -> int:
    """Decide properties of designs, for any run of an instance.

    Without a selection: every design and every property, and exit 0 if each verdict is the expected one, be it a proof
    or a counterexample. With one: exit 0 if everything selected holds, 1 if something is violated (its trace is
    written), 3 if something is unknown.
    """
    out = Outputs(**outputs)  # type: ignore[arg-type]  # click has checked them
    selection = bool(designs or protocol or atomicities or properties or workers)
    if only is not None:
        refuse((*_SELECTION, "thorough", "traces", "certificates", "pin"), f"with --only {only}")
        return _prove_kernels(out)
    if selection:
        refuse(("pin",), "on a selection: only the whole matrix can be pinned")
    else:
        refuse(("traces",), "without a selection: the traces of the whole matrix are those that ship with kvlatch")
    start = time.perf_counter()
    try:
        names = _properties(properties)
        rows = _rows(_of_protocol(designs, protocol), atomicities, workers)
        _can_be_certified(out.certificates, rows)
        cells = _decide(rows, names, thorough=thorough, as_json=out.as_json)
    except UnknownName as error:
        raise Failure(str(error), USAGE) from error
    except Disagreement as error:
        raise Failure(f"the engines disagree, so nothing here can be believed: {error}", INTERNAL) from error
    if pin:
        pins.pin(cells)
        _pin_traces(cells)
    seconds = time.perf_counter() - start
    return _report(cells, seconds, out if selection else attrs.evolve(out, traces=None))


def _of_protocol(designs: Sequence[str], protocol: str | None) -> Sequence[str]:
    """The designs that were named, which must be of the protocol, or all of the protocol's."""
    if protocol is None:
        return designs
    if others := [name for name in designs if design_of(name).protocol != protocol]:
        raise UnknownName(f"{others[0]} is a design of the protocol {design_of(others[0]).protocol!r}")
    return designs or list(PROTOCOLS[protocol].designs)


def _rows(designs: Sequence[str], atomicities: Sequence[str], workers: Sequence[int]) -> list[Row]:
    """The rows of the selection, each once; UnknownName if something that was named selects none."""
    rows = list(dict.fromkeys(select(designs, atomicities, workers)))
    left = {row.design for row in rows}, {row.atomicity for row in rows}
    if idle := [name for name in designs if name not in left[0]]:
        raise UnknownName(f"{idle[0]} claims no {' or '.join(atomicities)}, so nothing of it is selected")
    if idle := [name for name in atomicities if name not in left[1]]:
        raise UnknownName(f"none of {', '.join(designs)} claims {idle[0]}, so --atomicity {idle[0]} selects nothing")
    return rows


def _properties(wanted: Sequence[str]) -> list[str]:
    known = list(dict.fromkeys(prop.name for protocol in PROTOCOLS.values() for prop in protocol.properties))
    for name in wanted:
        if name not in known:
            raise UnknownName(f"no property is called {name!r}: they are {', '.join(known)}")
    return [name for name in known if name in wanted or not wanted]


def _can_be_certified(target: Path | None, rows: Sequence[Row]) -> None:
    """Say before the proofs, not after them, that their certificates cannot be written."""
    if target is None:
        return
    if strange := [row.design for row in rows if row.design not in all_designs()]:
        raise Failure(f"{strange[0]} does not ship with kvlatch, so nobody else could check its certificates", USAGE)
    try:
        check_target(target)
    except Refused as error:
        raise Failure(str(error), USAGE) from error


def _decide(rows: Sequence[Row], names: Sequence[str], *, thorough: bool, as_json: bool) -> list[Cell]:
    """All cells, in the order of the rows; JSON lines as they come, progress on a terminal."""
    decided: dict[Row, list[Cell]] = {}
    with progress("deciding", len(rows)) as done:
        for cells in decide(rows, names, thorough=thorough):
            decided[cells[0].row] = cells
            done(len(decided), len(rows))
            if as_json:
                for cell in cells:
                    click.echo(json.dumps(matrix.as_json(cell)))
    return [cell for row in rows for cell in decided.get(row, [])]


def _report(cells: Sequence[Cell], seconds: float, out: Outputs) -> int:
    """Put the verdicts out; the exit code. With ``out.traces``, what was selected has to hold; else, to be expected."""
    selection = out.traces is not None
    failures = _failures(cells, against_pins=not selection)
    if not out.as_json:
        _print_matrix(cells)
    if out.junit is not None:
        junit.write(out.junit, "kvlatch prove", matrix.cases(cells, failures))
    terminal = console(stderr=out.as_json)
    if out.traces is not None:
        _write_traces(cells, out.traces, as_json=out.as_json)
    else:
        for (row, prop), why in failures.items():
            terminal.print(f"not as expected: {row} {prop}: {why}", highlight=False, soft_wrap=True)
    for cell in cells:
        if isinstance(cell.verdict, Unknown):
            terminal.print(f"unknown: {cell.row} {cell.prop}: {cell.verdict.reason}", highlight=False, soft_wrap=True)
    last_line = matrix.summary(cells, failures, seconds, selection=selection)
    if out.html is not None:
        from kvlatch.commands.report import cells as page

        pages.write(out.html, page.of_matrix(cells, failures, seconds, selection=selection))
    if out.certificates is not None:
        _certify(cells, out.certificates, quiet=out.as_json)
    if not out.as_json:
        terminal.print(last_line, highlight=False, soft_wrap=True)
    annotate(matrix.annotated(cells, failures), matrix.page(cells, failures, last_line))
    if not failures:
        return OK
    refuted = any(pins.text(cell.verdict) not in (pins.HOLDS, pins.NARROW, "unknown") for cell in cells)
    return VIOLATED if not selection or refuted else UNKNOWN


def _failures(cells: Sequence[Cell], *, against_pins: bool) -> dict[tuple[Row, str], str]:
    """The cells that fail, and why: the verdict is not the expected one; or, in a selection, it is no proof."""
    if against_pins:
        return pins.differences(cells)
    return {(cell.row, cell.prop): pins.text(cell.verdict) for cell in cells if not isinstance(cell.verdict, Proved)}


def _print_matrix(cells: Sequence[Cell]) -> None:
    out = console()
    for table in matrix.tables(cells, out.width):
        put(out, table, "")
    put(out, matrix.legend(cells))


def _write_traces(cells: Sequence[Cell], folder: Path, *, as_json: bool) -> None:
    """Write the counterexamples of a selection, show the first one, and say how to see each."""
    out = console(stderr=as_json)
    found = {folder / trace_name(cell): cell for cell in pins.counterexamples(cells)}
    if not found:
        return
    folder.mkdir(parents=True, exist_ok=True)
    for path, cell in found.items():
        write(trace_of(cell), path)
    first = next(iter(found.values()))
    if not as_json:
        put(out, show.table(trace_of(first), design_of(first.row.design)))
    for path, cell in found.items():
        out.print(f"{path}: {trace_of(cell).description}", highlight=False, soft_wrap=True, markup=False)
    design = [] if first.row.design in all_designs() else ["--design", first.row.design]
    again = shlex.join(["kvlatch", "show", str(next(iter(found))), *design])
    out.print(f"see a trace with: {again}", highlight=False, soft_wrap=True, markup=False)


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


# --------------------------------------------------------------------------------------------------------------------
# The kernels


def _prove_kernels(out: Outputs) -> int:
    """Every kernel on every architecture, and every planted bug refuted."""
    from kvlatch.proofs.ptx import kernels  # its solver objects are not needed for the matrix

    findings = [*kernels.prove_kernels(), *kernels.refute_planted()]
    for line in [json.dumps(kernels.as_json(f)) for f in findings] if out.as_json else kernels.lines(findings):
        click.echo(line)
    if out.junit is not None:
        junit.write(out.junit, "kvlatch prove --only ptx", [_kernel_case(finding) for finding in findings])
    if out.html is not None:
        from kvlatch.commands.report import cells as page

        pages.write(out.html, page.of_kernels(findings, kernels.exit_code(findings)))
    return kernels.exit_code(findings)


def _kernel_case(finding: Finding) -> junit.Case:
    """A finding as a JUnit case: a planted bug passes if it is refuted, all else if it is proved."""
    case = junit.Case(
        f"{finding.kernel}.sm_{finding.architecture}",
        f"{finding.obligation} [{finding.planted}]" if finding.planted else finding.obligation,
        seconds=finding.ms / 1000,
    )
    if finding.verdict == "not checked":
        return attrs.evolve(case, skipped=finding.reason)
    right = "refuted" if finding.planted else "proved"
    return case if finding.verdict == right else attrs.evolve(case, failure=f"not {right}: {finding}")
