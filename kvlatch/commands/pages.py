"""What every page of kvlatch shares: one look, one template engine, and data that a script of the page reads.

A page is one HTML file that needs nothing else and asks for nothing; its content security policy forbids requests. What
a template is given may come from foreign code or a foreign server: all of it goes through :func:`printable` and through
Jinja's escaping, and data goes through :func:`embedded`.
"""

from __future__ import annotations

import json
import shlex
import sys
from importlib import metadata, resources
from pathlib import Path
from typing import TYPE_CHECKING

from kvlatch.commands.exits import USAGE, Failure

if TYPE_CHECKING:
    from collections.abc import Callable

LARGEST = 2_000_000
"""Bytes of a page: it is to be mailed, and to open at once."""


def printable(text: str) -> str:
    """The text on one line, with escapes for what could steer a terminal or turn round the order of characters."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def embedded(data: object) -> str:
    """JSON for a script element. No ``<`` is left in it, which could end the element or begin a comment there."""
    return json.dumps(data, separators=(",", ":")).replace("<", r"\u003c")


def source(package: str, name: str) -> str:
    """A file of a package: a template, a style, a script."""
    return resources.files(package).joinpath(name).read_text(encoding="utf-8")


def render(package: str, name: str, finalize: Callable[[object], object] | None = None, /, **values: object) -> str:
    """A template of a package, filled in; ``look`` is the style that all pages have, ``raw`` a file as it is."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        autoescape=True, finalize=finalize or shown, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    page: str = environment.from_string(source(package, name)).render(
        look=Markup(source(__package__ or "", "look.css")),  # noqa: S704  # our own file
        raw=lambda file: Markup(source(package, file)),  # noqa: S704  # our own file
        embedded=lambda data: Markup(embedded(data)),  # noqa: S704  # it leaves no markup
        **values,
    )
    return page


def shown(value: object) -> object:
    """How a template shows what it is given: figures with their thousands apart, and no word that steers anything."""
    if type(value) is int:
        return f"{value:,}"
    return printable(value) if type(value) is str else value


def version() -> str:
    """The version of kvlatch, if it is installed and not just checked out."""
    try:
        return metadata.version("kvlatch")
    except metadata.PackageNotFoundError:
        return "not installed"


def as_called() -> str:
    """The command line as it was called, to be pasted into a shell."""
    return shlex.join(["kvlatch", *sys.argv[1:]])


def write(path: Path, page: str) -> None:
    """Write a page; Failure if that cannot be done."""
    try:
        path.write_text(page, encoding="utf-8", errors="replace")
    except OSError as error:
        raise Failure(f"{path}: {error.strerror}", USAGE) from error
