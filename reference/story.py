"""A run for human eyes: a table with a column for each thread, and one sentence that says what went wrong."""

from __future__ import annotations

import io
from typing import Final, Literal

import attrs
from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

_FATAL: Final = "bold red"
_ANY_WIDTH: Final = 1000
Kind = Literal["reads the table", "writes the table", "else"]


@attrs.frozen
class Line:
    """One step as it is shown: who did what, and what the table and a poll say after it."""

    number: int
    thread: str
    text: str
    entry: str
    poll: str
    kind: Kind


@attrs.frozen
class Story:
    """A trace, told: its heading, a line for each step, the decisive one (None if there is none), a last sentence."""

    heading: str
    lines: tuple[Line, ...]
    fatal: int | None
    sentence: str

    @property
    def threads(self) -> tuple[str, ...]:
        """The threads that act: scheduler, bootstrap, then the workers."""
        acting = {line.thread for line in self.lines}
        return (*(t for t in ("scheduler", "bootstrap") if t in acting), *sorted(acting - {"scheduler", "bootstrap"}))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns = _columns(self)
        if Measurement.get(console, options.update(max_width=_ANY_WIDTH), columns).minimum > options.max_width:
            columns = _list(self)
        yield Text(self.heading, "bold")
        yield columns
        yield Text(self.sentence)


def text(story: Story, width: int = 120) -> str:
    """The story as plain text of at most so many columns."""
    output = io.StringIO()
    Console(file=output, width=width, color_system=None).print(story)
    return "\n".join(line.rstrip() for line in output.getvalue().splitlines())


def mermaid(story: Story) -> str:
    """The story as a ``sequenceDiagram``: its threads and the status table."""
    ids = {thread: thread.replace(" ", "") for thread in story.threads}
    output = ["sequenceDiagram", *(f"  participant {ids[thread]} as {thread}" for thread in story.threads)]
    output += ["  participant table as status table"]
    for line in story.lines:
        thread = ids[line.thread]
        arrow = {
            "reads the table": f"  table-->>{thread}: {line.text}",
            "writes the table": f"  {thread}->>table: {line.text}",
            "else": f"  Note over {thread}: {line.text}",
        }[line.kind]
        output += ["  rect rgba(255, 0, 0, 0.2)", arrow, "  end"] if line.number == story.fatal else [arrow]
    first = next(iter(ids.values()), "table")
    return "\n".join([*output, f"  Note over {first},table: {story.sentence}", ""])


def _columns(story: Story) -> Table:
    """A column for each thread."""
    grid = _grid("#", *story.threads, "table", "poll")
    for line in story.lines:
        cells = (line.text if thread == line.thread else "" for thread in story.threads)
        _row(grid, story, line, *cells)
    return grid


def _list(story: Story) -> Table:
    """For narrow terminals and many threads: the threads share one column."""
    grid = _grid("#", "thread", "does", "table", "poll")
    for line in story.lines:
        _row(grid, story, line, line.thread, line.text)
    return grid


def _grid(*headings: str) -> Table:
    return Table(*headings, box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=0)


def _row(grid: Table, story: Story, line: Line, *cells: str) -> None:
    """A row; the decisive step is marked by a star too, for those who see no colours."""
    fatal = line.number == story.fatal
    poll = "same" if line.poll == line.entry else line.poll
    row = (f"{line.number}{'*' if fatal else ''}", *cells, line.entry, poll)
    grid.add_row(*(Text(cell, overflow="fold") for cell in row), style=_FATAL if fatal else None)
