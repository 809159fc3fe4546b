"""``kvlatch recheck``: check certificates with cvc5 alone."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import attrs
import click
from rich.progress import Progress

from kvlatch.commands.common import console
from kvlatch.commands.exits import OK, VIOLATED
from kvlatch.proofs.recheck import SHIPPED
from kvlatch.proofs.recheck import recheck as check


@click.command()
@click.argument("certificates", type=click.Path(path_type=Path, exists=True), required=False)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def recheck(certificates: Path | None, as_json: bool) -> int:
    """Check certificates with cvc5 alone: complete, unaltered, about this spec, and each obligation unsatisfiable.

    CERTIFICATES is a directory or an archive; by default, those of every pinned verdict, which come with kvlatch. Exit
    0 if so, 1 with one line for each file that is not as it should be.
    """
    with Progress(console=console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
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
