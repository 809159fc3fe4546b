"""What several commands share: their options, the console they print to, and the user's design."""

from __future__ import annotations

import os
import sys
from pathlib import Path
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


def _can_be_written(_: click.Context, __: click.Parameter, path: Path | None) -> Path | None:
    """Notice before any work is done, not after it, that a file or a folder cannot be written."""
    if path is None:
        return None
    if path.is_dir() and not os.access(path, os.W_OK | os.X_OK):
        raise click.BadParameter(f"{path}: nothing may be written into that folder")
    there = path if path.exists() else _nearest_folder(path)
    if not os.access(there, os.W_OK):
        raise click.BadParameter(f"{path}: {there} may not be written")
    return path


def _nearest_folder(path: Path) -> Path:
    """The folder above that exists, and in which others can be made."""
    above = next(folder for folder in path.absolute().parents if folder.exists())
    if not above.is_dir():
        raise click.BadParameter(f"{path}: {above} is not a folder")
    return above


def _file_can_be_written(context: click.Context, parameter: click.Parameter, path: Path | None) -> Path | None:
    """A file is not made together with its folder."""
    if path is not None and path.is_dir():
        raise click.BadParameter(f"{str(path)!r} is a folder: name a file")
    if path is not None and not path.parent.is_dir():
        raise click.BadParameter(f"{path}: the folder {path.parent} does not exist")
    return _can_be_written(context, parameter, path)


json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object.")

junit_option = click.option(
    "--junit",
    metavar="FILE",
    type=click.Path(path_type=Path),
    callback=_file_can_be_written,
    help="Also write a JUnit report.",
)

traces_option = click.option(
    "--traces",
    metavar="DIRECTORY",
    type=click.Path(path_type=Path, file_okay=False),
    callback=_can_be_written,
    help="Write what is found there, as traces.",
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
