"""What several commands share: their options, the console they print to, and the user's design."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

import click

from kvlatch.commands.exits import USAGE, Failure

if TYPE_CHECKING:
    from rich.console import Console

    from kvlatch.spec.designs import Design

_PIPED_WIDTH: Final = 160
"""Columns when the output is not a terminal: enough for the whole matrix."""

profile_option = click.option(
    "--profile",
    type=click.Choice(["first-terminal-wins", "failure-overrides"]),
    default="first-terminal-wins",
    show_default=True,
    callback=lambda _, __, chosen: chosen.replace("-", " "),
    help="May a late Failed replace Success?",
)


def chosen_design(name: str | None) -> Design | None:
    from kvlatch.proofs.prove import UnknownName, design_of

    try:
        return None if name is None else design_of(name)
    except UnknownName as error:
        raise Failure(str(error), USAGE) from error


def console(*, stderr: bool = False) -> Console:
    """Standard output, or standard error; as wide as the terminal, or wide enough for the whole matrix."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(file=stream, width=None if stream.isatty() else _PIPED_WIDTH)
