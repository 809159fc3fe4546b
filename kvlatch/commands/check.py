"""``kvlatch check``: hold event logs against the laws."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, get_args

import click

from kvlatch.commands import judgements
from kvlatch.commands.common import (
    ROOM_ID,
    chosen_design,
    html_option,
    json_option,
    junit_option,
    profile_option,
    progress,
    refuse,
    sarif_option,
)
from kvlatch.commands.exits import USAGE, Failure
from kvlatch.spec.schema import Atomicity

if TYPE_CHECKING:
    from kvlatch.commands.check_runs import Runs
    from kvlatch.commands.report import Finding
    from kvlatch.reference.logs.report import Report

_STDIN: Final = "-"
_SUFFIXES: Final = (".ndjson", ".jsonl", ".gz", ".zst", ".parquet", ".arrow")
"""Files of a directory that are taken for logs."""


@click.command()
@click.argument("logs", nargs=-1, required=True, metavar="LOG...")
@profile_option
@click.option("--design", metavar="NAME", help="Also say of each room whether it is a run of this design, and if not, "
              "which event no run explains. Reads the logs twice, and keeps their events in memory.")  # fmt: skip
@click.option("--atomicity", type=click.Choice(get_args(Atomicity)), help="With --design: how its writes are made; "
              "without, any way that it claims.")  # fmt: skip
@click.option("--only", metavar="LAW", multiple=True, help="Answer for this law only; can be repeated.")
@click.option("--quiet", type=click.FloatRange(0, min_open=True), default=300.0, show_default=True, metavar="SECONDS",
              help="A live request to which nothing has happened for so long is pinned.")  # fmt: skip
@click.option(
    "--room", "rooms", type=ROOM_ID, metavar="ID", multiple=True, help="Judge this room only; can be repeated."
)
@click.option("--since", type=float, metavar="TIME", help="Leave out what is before this time, in the log's seconds.")
@click.option("--follow", is_flag=True, help="Wait for more at the end: a line as soon as a law breaks; ^C ends it.")
@click.option("--engine", type=click.Choice(["auto", "judge", "numpy", "fast", "gpu"]), default="auto",
              show_default=True, help="What screens a log of columns; `judge` judges every event. "
              "`auto` never takes `gpu`, which has not run on one yet.")  # fmt: skip
@click.option("--on", metavar="dask://HOST:PORT", help="Judge on the workers of a Dask scheduler, each a part of the "
              "rooms; they read the logs themselves.")  # fmt: skip
@junit_option
@sarif_option
@html_option
@json_option()
def check(
    logs: tuple[str, ...], profile: Any, design: str | None, atomicity: Atomicity | None, only: tuple[str, ...],
    quiet: float, rooms: tuple[int | str, ...], since: float | None, follow: bool, engine: Any, on: str | None,
    junit: Path | None, sarif: Path | None, html: Path | None, as_json: bool,
) -> int:  # fmt: skip
    """Check event logs (NDJSON, also .gz, .zst or `-`; Parquet; Arrow; directories of them; URLs) against every law.

    Several logs are read one after the other, as one. A last line that is cut off is left out, and named.

    For each law: in how many rooms it could have been broken, the rooms in which it is, or why it could not be judged.

    Exit 0 if no law is broken and some were judged, 1 if one is broken or a room is no run of --design, 2 if a log
    cannot be read to its end, 3 if nothing was judged, or no room for --design.
    """
    from kvlatch.reference.laws import LAWS, RUN_OF_DESIGN, UnknownLaw, select
    from kvlatch.reference.logs.check import check as check_logs
    from kvlatch.reference.logs.cluster import check_on
    from kvlatch.reference.logs.events import LogError

    chosen = chosen_design(design)
    if chosen is None:
        refuse(("atomicity",), "without --design")
    else:
        refuse(("since", "follow", "on"), "with --design: a run is followed from its beginning, in logs that are whole")
    try:
        asked = [RUN_OF_DESIGN] if chosen else []
        select([*LAWS, *asked, *(law for law in only if "/" in law and law.partition("/")[0] in LAWS)], only)
        paths = list(_files(logs))
        how: dict[str, Any] = {
            "profile": profile, "quiet": quiet, "engine": engine, "only": only, "rooms": rooms, "since": since,
        }  # fmt: skip
        runs = None
        if chosen is not None:
            from kvlatch.commands.check_runs import Runs

            runs = Runs.of(paths, chosen, atomicity, rooms)
        with progress(", ".join(logs)) as done:
            if on is not None:
                refuse(("follow",), "with --on: a cluster checks logs that are whole")
                report = check_on(on, *paths, progress=done, **how)
            else:
                report = check_logs(
                    *paths, **how, follow=follow, progress=None if follow else done,
                    found=(lambda finding: click.echo(finding.text("line"))) if follow and not as_json else None,
                )  # fmt: skip
    except UnknownLaw as error:
        raise Failure(str(error), USAGE) from error
    except LogError as error:
        raise Failure(str(error), error.exit_code) from error
    timelines: tuple[Finding, ...] = ()
    if html is not None:
        from kvlatch.commands.report.rooms import worst

        timelines = worst(report, paths)
    return _put(
        report, runs, only, judgements.Output("kvlatch check", as_json, junit, sarif=sarif, html=html), timelines
    )


def _files(logs: tuple[str, ...]) -> Iterator[Path | str]:
    """The files and URLs that are named, and the logs in the directories that are, by name."""
    from kvlatch.reference.logs.files import is_url

    for name in logs:
        path = Path(name)
        if name == _STDIN or is_url(name):
            yield name
        elif path.is_dir():
            found = sorted(file for file in path.iterdir() if file.suffix in _SUFFIXES and file.is_file())
            if not found:
                raise Failure(f"{path}: no log in that folder: they end in {', '.join(_SUFFIXES)}", USAGE)
            yield from found
        elif path.exists():
            yield path
        else:
            raise Failure(f"{path} does not exist", USAGE)


def _put(
    report: Report, runs: Runs | None, only: tuple[str, ...], output: judgements.Output, timelines: tuple[Finding, ...]
) -> int:
    """Print the report; the exit code."""
    looked_at = {"events": report.events, "rooms": report.rooms, "tables": report.tables}
    members: dict[str, object] = {
        "profile": report.profile, "version": report.version, "unit": report.unit, "engine": report.engine,
        "seconds": round(report.seconds, 3), "quiet": report.quiet, "silent": report.silent, "final": report.final,
        "running": report.running, "left": report.left, "disorder": report.disorder,
        "unfinished": report.unfinished, "error": report.error,
        "findings": [_finding(finding) for finding in report.findings],
    }  # fmt: skip
    if not output.as_json:
        _remarks(report)
    cautions = tuple(filter(None, [report.error, *report.cautions]))
    answers, notes = report.judgements, tuple[str, ...]()
    if runs is not None:
        answers, only, notes = (*answers, runs.judgement), (*only, runs.judgement.law), runs.notes
        members["run_of_design"] = runs.members()
    code = output.write(
        judgements.Report(report.path, answers, only, looked_at, members, notes, cautions, timelines=timelines)
    )
    if not output.as_json:
        click.echo("final: " + (", ".join(f"{n:,} {status}" for status, n in report.final.items() if n) or "no rooms"))
        if report.left:
            click.echo(f"{report.left:,} entries are left at the end, {report.running:,} of them on their way")
        speed = report.events / report.seconds if report.seconds else 0.0
        click.echo(f"{report.engine}: {speed:,.0f} events/s")
    return USAGE if report.error else code


def _remarks(report: Report) -> None:
    """What is to be read before the answers: where a log ends too soon, and where its order is not to be trusted."""
    if report.error:
        click.echo(f"{report.error}\nWhat follows is about the {report.events:,} events before that.\n")
    for line in report.cautions[:10]:
        click.echo(line)


def _finding(finding: Any) -> dict[str, object]:
    """A finding for machines; ids are strings."""
    members = {
        "law": finding.law, "scenario": finding.scenario, "room": str(finding.room), "node": finding.node,
        "rank": finding.rank, "line": finding.line or None, "before": finding.before, "after": finding.after,
        "op": finding.op, "incoming": finding.incoming, "sentence": finding.sentence,
    }  # fmt: skip
    return {name: value for name, value in members.items() if value not in (None, "")}
