"""``kvlatch check``: hold an event log against the laws."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click
from rich.progress import Progress

from kvlatch.commands.common import chosen_design, console, profile_option
from kvlatch.commands.exits import Failure
from kvlatch.reference.logs.check import check as check_log
from kvlatch.reference.logs.read import LogError


@click.command()
@click.argument("log", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@profile_option
@click.option("--design", metavar="NAME", help="Also hold every write against the merge of this design.")
@click.option("--quiet", type=click.IntRange(1), metavar="N", help="A live room is pinned after N lines without it.")
@click.option("--engine", type=click.Choice(["auto", "numpy", "fast", "cupy"]), default="auto", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def check(log: Path, profile: Any, design: str | None, quiet: int | None, engine: Any, as_json: bool) -> int:
    """Check an event log (NDJSON, Parquet or Arrow): the first violation of each room, final statuses, pinned rooms.

    Exit 0 if nothing is wrong, 1 if a room breaks a law or is pinned, 2 if the log cannot be read to its end.
    """
    try:
        with Progress(console=console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
            task = progress.add_task(log.name)
            report = check_log(
                log,
                profile=profile,
                design=chosen_design(design),
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
