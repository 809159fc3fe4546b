"""What several commands share: their options, the console they print to, and the user's design."""

from __future__ import annotations

import math
import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from kvlatch.commands.exits import USAGE, Failure

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from kvlatch.spec.designs import Design
    from kvlatch.spec.schema import AnyDesign

Decorator = Callable[[Callable[..., object]], Callable[..., object]]
PIPED_WIDTH: Final = 160
"""Columns when the output is not a terminal: enough for the whole matrix."""
_ANY_WIDTH: Final = 10_000

profile_option = click.option(
    "--profile",
    type=click.Choice(["first-terminal-wins", "failure-overrides"]),
    default="first-terminal-wins",
    show_default=True,
    callback=lambda _, __, chosen: chosen.replace("-", " "),
    help="May a late Failed replace Success?",
)


class Number(click.FloatRange):
    """A finite number: ``nan`` is within no bounds, and click takes it for being within all."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return number


def content(path: Path, largest: int) -> bytes:
    """What a file or a pipe holds; Failure for anything else, and for more than ``largest`` bytes."""
    try:
        with path.open("rb") as file:
            kind = os.fstat(file.fileno()).st_mode
            if not (stat.S_ISREG(kind) or stat.S_ISFIFO(kind)):
                raise Failure(f"{path}: neither a file nor a pipe", USAGE)
            found = file.read(largest + 1)
    except OSError as error:
        raise Failure(f"{path}: {error.strerror}", USAGE) from error
    if len(found) > largest:
        raise Failure(f"{path}: larger than {largest // 2**20} MiB", USAGE)
    return found


def folder_can_be_made(_: click.Context, __: click.Parameter, path: Path | None) -> Path | None:
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


def file_can_be_written(context: click.Context, parameter: click.Parameter, path: Path | None) -> Path | None:
    """A file is not made together with its folder."""
    if path is not None and path.is_dir():
        raise click.BadParameter(f"{str(path)!r} is a folder: name a file")
    if path is not None and not path.parent.is_dir():
        raise click.BadParameter(f"{path}: the folder {path.parent} does not exist")
    return folder_can_be_made(context, parameter, path)


def json_option(says: str = "One JSON object; ids in it are strings.") -> Decorator:
    """``--json``: what goes to standard output is for machines, and nothing else goes there."""
    return click.option("--json", "as_json", is_flag=True, help=says)


junit_option = click.option(
    "--junit",
    metavar="FILE",
    type=click.Path(path_type=Path),
    callback=file_can_be_written,
    help="Also write a JUnit report.",
)


sarif_option = click.option(
    "--sarif",
    metavar="FILE",
    type=click.Path(path_type=Path),
    callback=file_can_be_written,
    help="Also write SARIF, for code scanning.",
)


html_option = click.option(
    "--html",
    metavar="FILE",
    type=click.Path(path_type=Path),
    callback=file_can_be_written,
    help="Also write a page: one HTML file, on which the findings open as lanes.",
)


def traces_option(says: str, default: str | None = None) -> Decorator:
    """``--traces DIRECTORY``, which is made when there is something to be written."""
    return click.option(
        "--traces",
        metavar="DIRECTORY",
        type=click.Path(path_type=Path, file_okay=False),
        callback=folder_can_be_made,
        default=default,
        show_default=default is not None,
        help=says,
    )


class _RoomId(click.ParamType[int | str]):
    """A room id of a log: an integer in decimal or as 0x…, or else a string."""

    name = "id"

    def convert(self, value: str, _parameter: click.Parameter | None, _context: click.Context | None) -> int | str:
        try:
            return int(value, 0)
        except ValueError:
            return value


ROOM_ID: Final = _RoomId()


def chosen_design(name: str | None) -> Design | None:
    """The design that was named, of which a manager or a log can be asked; Failure if it is none."""
    from kvlatch.proofs.prove import UnknownName, room_design

    try:
        return None if name is None else room_design(name)
    except UnknownName as error:
        raise Failure(str(error), USAGE) from error


def design_of_trace(name: str | None) -> AnyDesign | None:
    """The design that was named, of any protocol and with any rows; Failure if there is none."""
    from kvlatch.proofs.prove import UnknownName, design_of

    try:
        return None if name is None else design_of(name)
    except UnknownName as error:
        raise Failure(str(error), USAGE) from error


def console(*, stderr: bool = False) -> Console:
    """Standard output, or standard error; as wide as the terminal, or wide enough for the whole matrix."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(file=stream, width=None if stream.isatty() else PIPED_WIDTH)


def put(console: Console, *renderables: RenderableType) -> None:
    """Print so that nothing is cut: what has too long words for the console is as wide as they need."""
    from rich.measure import Measurement
    from rich.table import Table

    from kvlatch.reference.story import fit

    width = console.width
    for renderable in renderables:
        least = Measurement.get(console, console.options.update(max_width=_ANY_WIDTH), renderable).minimum
        if isinstance(renderable, Table):
            fit(renderable, console, width)
        console.width = max(width, least)
        console.print(renderable, highlight=False, crop=False)
        console.width = width


@contextmanager
def progress(what: str, total: int | None = None) -> Iterator[Callable[[int, int | None], None]]:
    """A bar on a terminal's standard error, and nothing elsewhere; the function takes how much is done, and of what."""
    from rich.progress import Progress

    with Progress(console=console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done, of: bar.update(task, completed=done, total=of)


def is_given(parameter: str) -> bool:
    """Whether this parameter was given on the command line, and is not the default."""
    return click.get_current_context().get_parameter_source(parameter) is ParameterSource.COMMANDLINE


def refuse(parameters: Iterable[str], because: str) -> None:
    """Exit 2 if one of these parameters was given on the command line, where it would have no effect."""
    for parameter in click.get_current_context().command.params:
        name = str(parameter.name)
        if name in parameters and is_given(name):
            raise Failure(f"{parameter.opts[0]} has no effect {because}", USAGE)
