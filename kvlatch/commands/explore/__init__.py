"""``kvlatch explore``: a run to look at, or a design to play with, as one HTML file that opens anywhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, get_args

import click

from kvlatch.commands import pages
from kvlatch.commands.common import ROOM_ID, file_can_be_written, json_option, refuse
from kvlatch.commands.exits import OK, USAGE, Failure
from kvlatch.commands.explore import page
from kvlatch.proofs.prove import Row, UnknownName, design_of, prove, trace_of
from kvlatch.proofs.verdicts import Refuted
from kvlatch.reference.logs.events import LogError
from kvlatch.reference.logs.read import is_log
from kvlatch.reference.logs.story import story
from kvlatch.reference.played import is_played
from kvlatch.spec.model import Instance, Machine, named
from kvlatch.spec.protocols import protocol_of
from kvlatch.spec.schema import AnyDesign, Atomicity, Network, Sizes
from kvlatch.spec.traces import SUFFIX, Step, Trace, TraceError, read

OF_A_DESIGN: Final = ("prop", "atomicity", "network", "workers", "chunks", "requests")


@click.command()
@click.argument("subject", metavar="TRACE|LOG|DESIGN")
@click.option(
    "--output", type=click.Path(path_type=Path), callback=file_can_be_written, required=True, help="The HTML file."
)
@click.option("--room", type=ROOM_ID, metavar="ID", help="Of a log: the room to show.")
@click.option("--property", "prop", metavar="NAME", help="Of a design: begin with its shortest counterexample.")
@click.option("--design", metavar="MODULE:NAME", help="Of a trace whose design does not ship.")
@click.option("--against", metavar="NAME", help="Also say which states only one of the two designs can reach.")
@click.option("--atomicity", type=click.Choice(["locked", "split", "cas"]), help="Of a design; by default its first.")
@click.option("--network", type=click.Choice(get_args(Network)), help="Of a design; by default orderly.")
@click.option("--workers", type=click.IntRange(1, 4), help="Of a design: workers, or ranks; by default the fewest.")
@click.option("--chunks", type=click.IntRange(1, 4), help="Of a design; by default 1.")
@click.option("--requests", type=click.IntRange(1, 2), help="Of a design: how often the room id is used; by default 1.")
@json_option("One JSON object: where the page is, and what it shows.")
def explore(subject: str, output: Path, as_json: bool, **options: Any) -> int:
    """Write a page: the run of a trace, a room of a log, or a design to play with.

    A run of the spec can be played on from any step, and saved as a trace for `kvlatch show` and `kvlatch replay`. The
    page is one file that makes no request; open it from a disk, a mail or an artifact of CI.
    """
    chosen = {name: value for name, value in options.items() if value is not None}
    try:
        made = _page(subject, **chosen)
    except TraceError as error:
        raise Failure(str(error), USAGE) from error
    except LogError as error:
        raise Failure(str(error), error.exit_code) from error
    pages.write(output, made.html(pages.as_called()))
    click.echo(json.dumps({"page": str(output), "title": made.title}) if as_json else f"{output}: {made.title}")
    return OK


def _page(subject: str, **chosen: Any) -> page.Page:
    path = Path(subject)
    if subject.endswith(SUFFIX):
        refuse(("room", *OF_A_DESIGN), "of a trace")
        return _of_trace(read(path), chosen.get("design"), chosen.get("against"))
    if path.is_file():
        refuse(("design", "against", *OF_A_DESIGN), "of a log")
        if not is_log(path):
            raise Failure(f"{subject} is neither a trace (its name ends in {SUFFIX}) nor an event log", USAGE)
        if "room" not in chosen:
            raise Failure(f"name a room with --room ID; kvlatch check {subject} lists those that break a law", USAGE)
        return page.of_story(story(path, chosen["room"]))
    refuse(("room", "design"), "of a design")
    return _of_design(_known(subject), **chosen)


def _known(name: str) -> AnyDesign:
    """A design of any protocol."""
    try:
        return design_of(name)
    except UnknownName as error:
        raise Failure(str(error), USAGE) from error


def _of_trace(trace: Trace, design: str | None, against: str | None) -> page.Page:
    if is_played(trace):
        refuse(("design", "against"), "of a finding of conform")
        return page.of_finding(trace)
    return page.of_trace(trace, None if design is None else _known(design), _other(against, trace))


def _of_design(
    design: AnyDesign,
    *,
    prop: str | None = None,
    against: str | None = None,
    atomicity: Atomicity | None = None,
    network: Network = "orderly",
    workers: int | None = None,
    chunks: int = 1,
    requests: int = 1,
) -> page.Page:
    level = atomicity or design.atomicities[0]
    if level not in design.atomicities:
        raise Failure(f"{design.name} is never {level}: it is {' or '.join(design.atomicities)}", USAGE)
    protocol = protocol_of(design)
    count = workers or protocol.counts[0]
    if prop is not None:
        refuse(("network", "chunks", "requests"), "with --property, whose counterexample says it")
        return _of_cell(Row(design.name, level, count), prop, against)
    if protocol.sizes is Instance:
        sizes: Sizes = Instance(count, chunks, requests)
    else:
        refuse(("chunks", "requests"), f"in the protocol {protocol.name}")
        sizes = protocol.worlds[0].instance(count)
    machine = Machine.of(design, level, network, sizes, protocol)
    start = Step(named(machine, machine.initial()))
    title = Trace(design.name, level, network, sizes, None, (start,))
    return page.of_design(machine, title, _other(against, title))


def _of_cell(row: Row, prop: str, against: str | None) -> page.Page:
    """A cell of the matrix: its shortest counterexample, decided anew."""
    names = [known.name for known in row.protocol.properties]
    if prop not in names:
        raise Failure(f"no property of the protocol {row.protocol.name} is called {prop!r}: {', '.join(names)}", USAGE)
    (cells,) = prove([row], [prop])
    if not isinstance(cells[0].verdict, Refuted):
        raise Failure(f"{row.design} {row.atomicity} keeps {prop}: there is no counterexample to show", USAGE)
    trace = trace_of(cells[0])
    return page.of_trace(trace, design_of(row.design), _other(against, trace))


def _other(name: str | None, trace: Trace) -> Machine | None:
    """The machine of another design in the instance of a trace, and in its atomicity if it has that."""
    if name is None:
        return None
    design = _known(name)
    level = next((one for one in design.atomicities if one == trace.atomicity), design.atomicities[0])
    network = next(one for one in get_args(Network) if one == trace.network)
    if not isinstance(trace.instance, protocol_of(design).sizes):
        raise Failure(f"{name} is a design of the protocol {design.protocol}, which has other states", USAGE)
    return Machine.of(design, level, network, trace.instance, protocol_of(design))
