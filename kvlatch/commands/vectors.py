"""``kvlatch vectors``: write test vectors for managers in any language."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from kvlatch.commands.exits import OK, USAGE, Failure
from kvlatch.reference.oracle.vectors import VectorError, write


@click.command()
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@click.option("--size", type=click.Choice(["small", "medium", "large"]), default="small", show_default=True)
def vectors(directory: Path, size: Any) -> int:
    """Write test vectors for managers in any language; run them with `kvlatch conform --exec COMMAND --vectors`."""
    try:
        count = write(directory, size)
    except VectorError as error:
        raise Failure(str(error), USAGE) from error
    click.echo(f"{directory}: {count} cases; run them with: kvlatch conform --exec COMMAND --vectors {directory}")
    return OK
