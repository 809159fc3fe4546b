"""The command line. Everything heavy is imported inside the commands, so that ``--help`` answers at once.

What the exit codes mean is in ``exits.py``.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from kvlatch.proofs.exits import INTERNAL, INTERRUPTED, OK, UNKNOWN, USAGE, VIOLATED, Failure

if TYPE_CHECKING:
    from rich.console import Console

    from kvlatch.proofs.prove import Cell, Row
    from kvlatch.spec.designs import Design

_PIPED_WIDTH: Final = 160
"""Columns when the output is no terminal: enough for the whole matrix."""


def main() -> NoReturn:
    """Run the command line; an uncaught exception exits with 70."""
    try:
        code = cli.main(prog_name="kvlatch", standalone_mode=False)
    except click.exceptions.Exit as done:
        code = done.exit_code
    except click.ClickException as error:
        click.echo(f"kvlatch: {error.format_message()}", err=True)
        code = error.exit_code
    except Failure as failure:
        click.echo(f"kvlatch: {failure}", err=True)
        code = failure.code
    except (KeyboardInterrupt, click.Abort):
        click.echo("kvlatch: interrupted", err=True)
        code = INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()  # the reader has gone, as in `kvlatch prove | head`; Python would complain once more
        code = OK
    except Exception:  # noqa: BLE001  # whatever it is, it must not exit with 1 and read as "violated"
        traceback.print_exc()
        click.echo("kvlatch: internal error, please report it with the lines above", err=True)
        code = INTERNAL
    sys.exit(code if isinstance(code, int) else OK)


_profile = click.option(
    "--profile",
    type=click.Choice(["first-terminal-wins", "failure-overrides"]),
    default="first-terminal-wins",
    show_default=True,
    callback=lambda _, __, chosen: chosen.replace("-", " "),
    help="May a late Failed replace Success?",
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="kvlatch")
def cli() -> None:
    """Prove, refute and replay request-status managers of disaggregated LLM serving.

    `kvlatch prove` decides every design; `kvlatch show TRACE` reads a counterexample; `kvlatch replay TRACE --on
    sglang==VERSION` executes it on published code.
    """


@cli.command()
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
    from kvlatch.proofs import matrix
    from kvlatch.proofs.prove import Disagreement, UnknownName, select

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
            matrix.pin(cells)
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
    from kvlatch.proofs import kernels

    findings = [*kernels.prove_kernels(), *kernels.refute_planted()]
    for line in [json.dumps(kernels.as_json(f)) for f in findings] if as_json else kernels.lines(findings):
        click.echo(line)
    return kernels.exit_code(findings)


def _properties(wanted: Sequence[str]) -> list[str]:
    from kvlatch.proofs.prove import UnknownName
    from kvlatch.spec.properties import BY_NAME

    for name in wanted:
        if name not in BY_NAME:
            raise UnknownName(f"no property is called {name!r}: they are {', '.join(BY_NAME)}")
    return [name for name in BY_NAME if name in wanted or not wanted]


def _decide(rows: Sequence[Row], names: Sequence[str], *, thorough: bool, as_json: bool) -> list[Cell]:
    """All cells, in the order of the rows; JSON lines as they come, progress on a terminal."""
    from rich.progress import Progress

    from kvlatch.proofs import matrix
    from kvlatch.proofs.prove import prove

    decided: dict[Row, list[Cell]] = {}
    with Progress(console=_console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("deciding", total=len(rows))
        for cells in prove(rows, names, thorough=thorough):
            row = cells[0].row
            decided[row] = cells
            progress.update(task, advance=1, description=f"{row.design} {row.atomicity}, {row.workers} workers")
            if as_json:
                for cell in cells:
                    click.echo(json.dumps(matrix.as_json(cell)))
    return [cell for row in rows for cell in decided[row]]


def _failures(cells: Sequence[Cell], *, against_pins: bool) -> dict[tuple[Row, str], str]:
    """Why each cell fails that does: it is not as expected; or, in a selection, it does not hold."""
    from kvlatch.proofs import matrix

    if against_pins:
        return matrix.differences(cells)
    return {(cell.row, cell.prop): said for cell in cells if (said := matrix.text(cell.verdict)) != "holds"}


def _print_matrix(cells: Sequence[Cell]) -> None:
    from kvlatch.proofs import matrix

    console = _console()
    for table in matrix.tables(cells, console.width):
        console.print(table)
        console.print()
    console.print(matrix.legend(cells), highlight=False)


def _report(
    cells: Sequence[Cell],
    failures: dict[tuple[Row, str], str],
    seconds: float,
    *,
    traces: Path | None,
    quiet: bool,
) -> None:
    """What the numbers mean for the one who asked: counts, and each failure with the way to see it."""
    from kvlatch.proofs import matrix, show
    from kvlatch.proofs.prove import design_of, trace_name, trace_of
    from kvlatch.proofs.verdicts import Unknown
    from kvlatch.spec.traces import write

    console = _console(stderr=quiet)
    if traces is None:
        for (row, prop), why in failures.items():
            console.print(f"not as expected: {row} {prop}: {why}", highlight=False)
    else:
        for number, cell in enumerate(matrix.counterexamples(cells)):
            trace, path = trace_of(cell), traces / trace_name(cell)
            traces.mkdir(parents=True, exist_ok=True)
            write(trace, path)
            if number == 0 and not quiet:
                console.print(show.table(trace, design_of(cell.row.design)))
            console.print(f"{path}: {trace.description}", highlight=False, soft_wrap=True)
    for cell in cells:
        if isinstance(cell.verdict, Unknown):
            console.print(f"unknown: {cell.row} {cell.prop}: {cell.verdict.reason}", highlight=False)
    if os.environ.get("GITHUB_ACTIONS"):
        for (row, prop), why in failures.items():
            click.echo(f"::error title=kvlatch::{row} {prop}: {why}", err=True)
    if not quiet:
        console.print(matrix.summary(cells, failures, seconds, selection=traces is not None), highlight=False)


def _certificates_may_go(directory: Path) -> None:
    """Say so before the proofs, not after them, if the directory holds something else."""
    from kvlatch.proofs.certificates import Refused, check_target

    try:
        check_target(directory)
    except Refused as error:
        raise Failure(str(error), USAGE) from error


def _certify(cells: Sequence[Cell], directory: Path, *, quiet: bool) -> None:
    from kvlatch.proofs.certificates import Refused, certify

    try:
        count = certify(cells, directory)
    except Refused as error:
        raise Failure(str(error), USAGE) from error
    click.echo(f"{directory}: {count} files; check them with: kvlatch recheck {directory}", err=quiet)


def _pin_traces(cells: Sequence[Cell]) -> None:
    """Put the counterexamples in the place of those that are there."""
    from kvlatch.proofs import matrix
    from kvlatch.proofs.prove import trace_name, trace_of
    from kvlatch.spec.traces import SUFFIX, write

    directory = matrix.PINS.with_name("traces")
    directory.mkdir(exist_ok=True)
    kept = {trace_name(cell) for cell in matrix.counterexamples(cells)}
    for cell in matrix.counterexamples(cells):
        write(trace_of(cell), directory / trace_name(cell))
    for old in directory.glob(f"*{SUFFIX}"):
        if old.name not in kept:
            old.unlink()


@cli.command()
@click.argument("certificates", type=click.Path(path_type=Path, exists=True), required=False)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def recheck(certificates: Path | None, as_json: bool) -> int:
    """Check certificates with cvc5 alone: complete, unaltered, about this spec, and each obligation unsatisfiable.

    CERTIFICATES is a directory or an archive; by default, those of every pinned verdict, which come with kvlatch. Exit
    0 if so, 1 with one line for each file that is not as it should be.
    """
    import attrs
    from rich.progress import Progress

    from kvlatch.proofs.recheck import SHIPPED
    from kvlatch.proofs.recheck import recheck as check

    with Progress(console=_console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("checking")
        report = check(certificates or SHIPPED, lambda done, files: progress.update(task, completed=done, total=files))
    if as_json:
        click.echo(json.dumps(attrs.asdict(report)))
    else:
        for finding in report.findings:
            click.echo(finding)
        if not report.findings:
            about = f"{report.theorems} theorems, {report.counterexamples} counterexamples, {report.files} files"
            click.echo(f"{about}: every obligation is unsat by cvc5 alone")
    return VIOLATED if report.findings else OK


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def atlas(as_json: bool) -> int:
    """Count the merges: which tables obey which laws, and why no renumbering of the statuses is a fix."""
    from kvlatch.proofs import atlas as atlases

    counted = atlases.atlas()
    if as_json:
        click.echo(json.dumps(atlases.as_json(counted)))
    else:
        _console().print(*atlases.report(counted), sep="\n")
    return OK


def _room(_context: click.Context, _parameter: click.Parameter, text: str | None) -> int | None:
    """A room id, decimal or hexadecimal."""
    try:
        return None if text is None else int(text, 0)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is no room id: it is an integer, decimal or as 0x…") from error


@cli.command()
@click.argument("file", metavar="TRACE|LOG", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--room", metavar="N", callback=_room, help="The file is an event log: show this room of it.")
@click.option("--mermaid", is_flag=True, help="Print a Mermaid sequence diagram instead.")
@click.option("--design", metavar="NAME", help="A trace's, if it does not ship (MODULE:NAME); of a log, as in check.")
@_profile
def show(file: Path, room: int | None, mermaid: bool, design: str | None, profile: Any) -> int:
    """Show a trace, or one room of an event log, as a table with one column per thread, and say what went wrong.

    `kvlatch check LOG` lists the rooms that break a law; `kvlatch show LOG --room N` tells one of them.
    """
    from rich.progress import Progress

    from kvlatch.proofs import show as shows
    from kvlatch.reference import story as stories
    from kvlatch.reference.log_read import LogError, is_log
    from kvlatch.reference.log_story import story
    from kvlatch.spec.traces import TraceError, read

    chosen = _design(design)
    if room is None and is_log(file):
        how = f"name a room with --room N; kvlatch check {file} lists those that break a law"
        raise Failure(f"{file} is an event log: {how}", USAGE)
    try:
        if room is None:
            told = shows.table(read(file), chosen)
        else:
            with Progress(console=_console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
                task = progress.add_task(file.name)
                told = story(
                    file,
                    room,
                    profile=profile,
                    design=chosen,
                    progress=lambda done, total: progress.update(task, completed=done, total=total),
                )
    except TraceError as error:
        raise Failure(str(error), USAGE) from error
    except LogError as error:
        raise Failure(str(error), error.exit_code) from error
    if mermaid:
        click.echo(stories.mermaid(told))
    else:
        _console().print(told)
    return OK


@cli.command()
@click.argument("trace", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--on", "target", metavar="sglang==VERSION", help="Published code to run it on; by default, the spec.")
@click.option("--backend", default="nixl", show_default=True, help="Which manager of that code.")
@click.option("--repeat", type=click.IntRange(1, 100_000), default=1, show_default=True, help="How many times.")
@click.option("--timeout", type=click.FloatRange(1), default=60.0, show_default=True, help="Seconds for all of it.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.option("--design", metavar="MODULE:NAME", help="The trace's design, if it is not one that ships.")
def replay(
    trace: Path, target: str | None, backend: str, repeat: int, timeout: float, as_json: bool, design: str | None
) -> int:
    """Execute a trace again: on the spec, or step by step on the unmodified code of a published sglang wheel.

    Exit 0 if the property holds on what was observed, 1 if it is violated.
    """
    from kvlatch.proofs import replay as replays
    from kvlatch.reference.wheels import PublishedError
    from kvlatch.spec.traces import TraceError, read

    try:
        run = read(trace)
        if target is None:
            result: replays.SpecReplay | replays.Replay = replays.on_spec(run, _design(design))
        else:
            project, equal, version = target.partition("==")
            if project != "sglang" or not equal:
                raise Failure(f"--on takes sglang==VERSION, not {target!r}", USAGE)
            result = replays.on_sglang(run, version, backend, repeat, timeout, _design(design))
    except (TraceError, replays.CannotReplay) as error:
        raise Failure(str(error), USAGE) from error
    except PublishedError as error:
        raise Failure(str(error), error.exit_code) from error
    if as_json:
        click.echo(json.dumps(result.as_json()))
    else:
        click.echo(result.sentence)
        for remark in getattr(result, "remarks", []):
            click.echo(f"   {remark}")
    return VIOLATED if result.violated else OK


@cli.command()
@click.argument("log", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@_profile
@click.option("--design", metavar="NAME", help="Also hold every write against the merge of this design.")
@click.option("--quiet", type=click.IntRange(1), metavar="N", help="A live room is pinned after N lines without it.")
@click.option("--engine", type=click.Choice(["auto", "numpy", "fast", "cupy"]), default="auto", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def check(log: Path, profile: Any, design: str | None, quiet: int | None, engine: Any, as_json: bool) -> int:
    """Check an event log (NDJSON, Parquet or Arrow): the first violation of each room, final statuses, pinned rooms.

    Exit 0 if nothing is wrong, 1 if a room breaks a law or is pinned, 2 if the log cannot be read to its end.
    """
    from rich.progress import Progress

    from kvlatch.reference.log import check as check_log
    from kvlatch.reference.log_read import LogError

    try:
        with Progress(console=_console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
            task = progress.add_task(log.name)
            report = check_log(
                log,
                profile=profile,
                design=_design(design),
                quiet=quiet,
                engine=engine,
                progress=lambda done, total: progress.update(task, completed=done, total=total),
            )
    except LogError as error:
        raise Failure(str(error), error.exit_code) from error
    if as_json:
        click.echo(json.dumps(report.as_json()))
    else:
        for line in report.lines():
            click.echo(line)
    return report.exit_code


@cli.command()
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@click.option("--size", type=click.Choice(["small", "medium", "large"]), default="small", show_default=True)
def vectors(directory: Path, size: Any) -> int:
    """Write test vectors for managers in any language; run them with `kvlatch conform --exec COMMAND --vectors`."""
    from kvlatch.reference.vectors import VectorError, write

    try:
        count = write(directory, size)
    except VectorError as error:
        raise Failure(str(error), USAGE) from error
    click.echo(f"{directory}: {count} cases; run them with: kvlatch conform --exec COMMAND --vectors {directory}")
    return OK


@cli.command()
@click.argument("target", required=False, metavar="[MODULE:MAKE_ADAPTER|sglang==VERSION|vllm==VERSION]")
@click.option("--exec", "program", metavar="COMMAND", help="A program that speaks the line protocol, with arguments.")
@click.option("--backend", default="nixl", show_default=True, help="Which manager of an sglang version.")
@click.option("--only", multiple=True, metavar="LAW", help="Only this law.")
@_profile
@click.option("--merge", is_flag=True, help="Extract the table of its update (Python, sglang), and prove what follows.")
@click.option(
    "--vectors", "cases", type=click.Path(path_type=Path, exists=True, file_okay=False), help="Run these test vectors."
)
@click.option("--play", metavar="TEXT|FILE", help="Play a finding once more: its text, or its trace.")
@click.option("--explore", is_flag=True, help="sglang: let the oracle look for interleavings by itself.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the random plays.")
@click.option("--traces", type=click.Path(path_type=Path, file_okay=False), help="Write what is found there.")
@click.option("--junit", type=click.Path(path_type=Path, dir_okay=False), help="Also write a JUnit report.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def conform(traces: Path | None, junit: Path | None, as_json: bool, **question: Any) -> int:
    """Hold a manager against the laws: your adapter, a program in any language, or a published version.

    Exit 0 if it keeps every law, 1 if it breaks one (each with a shortest run that shows it), 3 if it cannot be driven.
    """
    from kvlatch.proofs.conform import Output, Question, answer

    return answer(Question(**question), Output(as_json, junit, traces))


@cli.command()
@click.option("--control", default="seed-control", show_default=True, metavar="DESIGN", help="The build that fails.")
@click.option("--treatment", default="latch", show_default=True, metavar="DESIGN", help="The build with the fix.")
@click.option("--design", "designs", multiple=True, metavar="DESIGN", help="Instead, this one by itself.")
@click.option("--url", metavar="URL", help="Instead, a deployment that runs already: where its router listens.")
@click.option("--metrics", multiple=True, metavar="URL", help="With --url: the metrics page of a prefill engine.")
@click.option("--build", "label", default="", metavar="NAME", help="With --url: what you call the build that runs.")
@click.option(
    "--against",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="REPORT",
    help="With --url: the report.json of the control, stormed before.",
)
@click.option("--yes", is_flag=True, help="With --url: do not ask before requests are sent.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the requests and the delays.")
@click.option(
    "--repetitions", type=click.IntRange(1, 100), help="Storms on each build; 4, or 1 where none is compared."
)
@click.option(
    "--requests", type=click.IntRange(1, 100_000), default=160, show_default=True, help="At most, in a storm."
)
@click.option("--clients", type=click.IntRange(1, 10_000), default=20, show_default=True, help="At work at a time.")
@click.option(
    "--seconds", type=click.FloatRange(0.1, 3600), default=6.0, show_default=True, help="At most, for a storm."
)
@click.option("--rate", type=click.FloatRange(0.1), help="Most requests a second; 20 with --url, else no limit.")
@click.option(
    "--patience",
    type=(click.FloatRange(0), click.FloatRange(0)),
    default=(0.05, 0.6),
    show_default=True,
    metavar="LEAST MOST",
    help="Seconds after which an impatient client hangs up.",
)
@click.option(
    "--chunks",
    type=(click.IntRange(1, 1000), click.IntRange(1, 1000)),
    default=(4, 10),
    show_default=True,
    metavar="LEAST MOST",
    help="Length of a prompt, in chunks of 64 words.",
)
@click.option(
    "--limit",
    type=click.FloatRange(1),
    default=20.0,
    show_default=True,
    help="Seconds after which a patient client gives up, too: its request is unaccounted for.",
)
@click.option("--unread", type=click.IntRange(0), default=0, help="So many clients never read their answer.")
@click.option(
    "--queue", type=click.IntRange(1), default=4096, show_default=True, help="Chunks that may wait for a worker."
)
@click.option(
    "--noise",
    type=click.FloatRange(0, 1),
    default=0.8,
    show_default=True,
    help="Chance that a worker is delayed before a store or a lock; 0 leaves the race to luck.",
)
@click.option("--both-abort", is_flag=True, help="Prefill looks for clients that hung up too, every four seconds.")
@click.option(
    "--fault",
    "faults",
    multiple=True,
    type=click.Choice(["kill-prefill", "kill-decode", "kill-router"]),
    help="Kill -9 this part in the middle of the storm.",
)
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), help="Folder of the report; by default storm-N."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object: the report.")
def storm(
    requests: int, clients: int, seconds: float, rate: float | None, patience: tuple[float, float],
    chunks: tuple[int, int], limit: float, unread: int, queue: int, noise: float, both_abort: bool, **question: Any,
) -> int:  # fmt: skip
    """Storm a live prefill/decode system with clients that hang up, and see whether it leaves requests behind.

    Alone: control and treatment by turns, each on a system of its own that is started here, with real NIXL transfers
    behind the real sglang-router. DESIGN is a design that ships, or your module:NAME, with /locked, /split or /cas.

    Exit 0 if the treatment (or the one build) leaves nothing behind although the race fired; 1 if it pins a request,
    leaves one without an ending, or answers one with wrong pages; 3 if the storm does not show which.
    """
    from kvlatch.proofs.storm import Question, answer
    from kvlatch.reference.live.load import Load

    if rate is None and question["url"]:
        rate = 20.0
    try:
        load = Load(
            requests=requests, clients=clients, seconds=seconds, rate=rate, patience=patience, chunks=chunks,
            limit=limit, unread=unread,
        )  # fmt: skip
    except ValueError as error:
        raise Failure(str(error), USAGE) from error
    settings = {"queue": queue, "noise": noise, "both_abort": both_abort}
    return answer(Question(load=load, settings=settings, **question))


def _design(name: str | None) -> Design | None:
    from kvlatch.proofs.prove import UnknownName, design_of

    try:
        return None if name is None else design_of(name)
    except UnknownName as error:
        raise Failure(str(error), USAGE) from error


def _console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(file=stream, width=None if stream.isatty() else _PIPED_WIDTH)
