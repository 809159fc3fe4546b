"""``kvlatch convert``: what an engine says without being recorded, as an event log."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvlatch.commands.common import json_option
from kvlatch.commands.exits import UNKNOWN, USAGE, Failure

if TYPE_CHECKING:
    from kvlatch.reference.logs.converting.messages import Side


@click.command()
@click.argument("logs", nargs=-1, required=True, metavar="LOG...")
@click.option("--into", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path),
              help="Where the event log goes; else to standard output.")  # fmt: skip
@click.option("--node", metavar="NAME", help="All logs are of this one engine; else each is named after its file.")
@click.option("--side", type=click.Choice(["prefill", "decode"]),
              help="Whose text logs they are, if their start, which says so, is missing.")  # fmt: skip
@json_option("What was found as one JSON object, on standard error; ids in it are strings.")
def convert(logs: tuple[str, ...], into: Path | None, node: str | None, side: Side | None, as_json: bool) -> int:
    """Convert SGLang's text logs (also .gz, or `-`) or its OpenTelemetry spans (OTLP in JSON) into an event log.

    `kvlatch convert prefill.log decode.log | kvlatch check -` judges what they show. Text logs say most with
    `--log-level debug --log-requests`. What was found, and which requests have no end, is told on standard error.

    Exit 0 if there are events, 3 if no line says anything of a request, 2 if a log cannot be read.
    """
    from kvlatch.reference.logs.converting.digest import Digest
    from kvlatch.reference.logs.converting.read import HEADER, converted, unit_of
    from kvlatch.reference.logs.events import LogError
    from kvlatch.reference.logs.files import STDIN

    missing = next((log for log in logs if log not in STDIN and not Path(log).is_file()), None)
    if missing is not None:
        raise Failure(f"{missing}: {'a folder' if Path(missing).is_dir() else 'no such file'}", USAGE)
    if into is not None and any(Path(log).resolve() == into.resolve() for log in logs):
        raise Failure(f"{into} is one of the logs: the event log needs a file of its own", USAGE)
    try:
        digest = Digest(unit_of(logs))
        output = sys.stdout if into is None else into.open("w", encoding="utf-8")
        try:
            output.write(json.dumps(HEADER) + "\n")
            for said in converted(logs, node, side, digest):
                output.write(json.dumps(said) + "\n")
        finally:
            output.flush()
            if into is not None:
                output.close()
    except LogError as error:
        raise Failure(str(error), error.exit_code) from error
    if as_json:
        click.echo(json.dumps(digest.members()), err=True)
    else:
        click.echo("\n".join(digest.lines()), err=True)
    if not digest.events:
        raise Failure(
            f"no {digest.unit} says anything of a request; at the log level info SGLang prints failures only", UNKNOWN
        )
    return 0
