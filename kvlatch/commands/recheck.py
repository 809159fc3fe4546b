"""``kvlatch recheck``: check certificates with cvc5 alone."""

from __future__ import annotations

import json
from pathlib import Path

import attrs
import click

from kvlatch.commands.common import json_option, progress
from kvlatch.commands.exits import OK, UNKNOWN, USAGE, VIOLATED, Failure
from kvlatch.proofs.archives import Malformed
from kvlatch.proofs.recheck import SHIPPED
from kvlatch.proofs.recheck import recheck as check


@click.command()
@click.argument("certificates", type=click.Path(path_type=Path, exists=True), required=False)
@json_option()
def recheck(certificates: Path | None, as_json: bool) -> int:
    """Check certificates with cvc5 alone: complete, unaltered, about this spec, and each obligation unsatisfiable.

    CERTIFICATES is a directory or an archive; by default, those of every pinned verdict, which come with kvlatch. Exit
    0 if so, 1 with one line for each file that is not as it should be, 2 if these are no certificates at all, 3 if they
    certify nothing.
    """
    try:
        with progress("checking") as done:
            report = check(certificates or SHIPPED, done)
    except Malformed as error:
        raise Failure(str(error), USAGE) from error
    if as_json:
        click.echo(json.dumps(attrs.asdict(report)))
    else:
        for finding in report.findings:
            click.echo(finding)
        about = f"{report.theorems} theorems, {report.counterexamples} counterexamples, {report.files} files"
        if not report.findings:
            found = "every obligation is unsat by cvc5 alone" if report.files else "nothing is certified"
            click.echo(f"{about}: {found}")
    if report.findings:
        return VIOLATED
    return OK if report.files else UNKNOWN
