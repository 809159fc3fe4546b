"""What GitHub Actions shows of a failure: annotations beside the code to blame, and a page for the step.

Outside GitHub Actions nothing is written. Annotations go to standard error, where the runner reads them too, so that
``--json`` leaves standard output to one object.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import attrs
import click

MOST: Final = 9
"""GitHub shows ten errors a step and drops the others without a word; the tenth says how many there are."""
_LARGEST: Final = 512 * 1024
"""Bytes of the step's page that one command may add; GitHub refuses a page of more than 1 MiB as a whole."""


@attrs.frozen
class Annotation:
    """One failure, in one sentence, and the place to blame in the user's repository, if it is known."""

    title: str
    sentence: str
    file: str | None = None
    line: int | None = None

    def __str__(self) -> str:
        place = {"file": in_repository(self.file), "line": self.line} if in_repository(self.file) else {}
        members = {**place, "title": self.title}
        written = ",".join(f"{name}={_property(str(value))}" for name, value in members.items() if value is not None)
        return f"::error {written}::{_message(self.sentence)}"


def in_actions() -> bool:
    """Whether this runs as a step of GitHub Actions."""
    return os.environ.get("GITHUB_ACTIONS") == "true"


def annotate(annotations: Sequence[Annotation], page: str = "") -> None:
    """Show the failures, at most ten, and add ``page`` (Markdown) to the page of the step."""
    if not in_actions():
        return
    shown = annotations[:MOST] if len(annotations) > MOST + 1 else annotations
    for annotation in shown:
        click.echo(str(annotation), err=True)
    if left := len(annotations) - len(shown):
        click.echo(str(Annotation("kvlatch", f"{left} more failures are in the log of this step")), err=True)
    if page and (file := os.environ.get("GITHUB_STEP_SUMMARY")):
        _append(Path(file), page)


def block(text: str) -> str:
    """Text as a block of Markdown that nothing in it can end."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}text\n{text}\n{fence}\n"


def _append(file: Path, page: str) -> None:
    content = page.encode(errors="replace")
    if len(content) > _LARGEST:
        content = f"The report has {len(content):,} bytes, too many for this page: it is in the log.\n".encode()
    try:
        with file.open("ab") as stream:
            stream.write(content + b"\n")
    except OSError as error:  # the verdict stands without its page
        click.echo(f"kvlatch: the page of the step cannot be written: {error.strerror}", err=True)


def in_repository(file: str | None) -> str | None:
    """The path as GitHub wants it, from the root of the repository; None for a file that lies elsewhere."""
    root = Path(os.environ.get("GITHUB_WORKSPACE") or Path.cwd()).resolve()
    path = None if file is None else Path(file).resolve()
    return path.relative_to(root).as_posix() if path is not None and path.is_relative_to(root) else None


def _message(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _message(text).replace(":", "%3A").replace(",", "%2C")
