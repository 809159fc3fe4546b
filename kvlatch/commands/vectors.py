"""``kvlatch vectors``: write test vectors for managers in any language."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import click

from kvlatch.commands.common import json_option
from kvlatch.commands.exits import OK, USAGE, Failure
from kvlatch.reference.oracle.vectors import VectorError, write


@click.command()
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@click.option("--size", type=click.Choice(["small", "medium", "large"]), default="small", show_default=True)
@json_option("One JSON object: where the vectors are, how many, and how to run them.")
def vectors(directory: Path, size: Any, as_json: bool) -> int:
    """Write test vectors for managers in any language; run them with `kvlatch conform --exec COMMAND --vectors`."""
    try:
        count = write(directory, size)
    except VectorError as error:
        raise Failure(str(error), USAGE) from error
    run = f"kvlatch conform --exec COMMAND --vectors {shlex.quote(str(directory))}"
    if as_json:
        click.echo(json.dumps({"directory": str(directory), "size": size, "cases": count, "run": run}))
    else:
        click.echo(f"{directory}: {count} cases; run them with: {run}")
    return OK
