"""A run for human eyes: a table with a column for each thread, and one sentence that says what went wrong."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from typing import Final, Literal

import attrs
from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

_FATAL: Final = "bold red"
_ANY_WIDTH: Final = 1000
Kind = Literal["reads the table", "writes the table", "else"]


@attrs.frozen
class Line:
    """One step as it is shown: who did what, what the table and a poll say after it, and when, if that is known.

    ``place`` is the table that it is about, node/rank, where there are several.
    """

    number: int
    thread: str
    text: str
    entry: str
    poll: str
    kind: Kind
    time: str = ""
    place: str = ""


@attrs.frozen
class Story:
    """A run to be read: a heading, a line for each step, the number of the decisive line if any, a last sentence."""

    heading: str
    lines: tuple[Line, ...]
    fatal: int | None
    sentence: str

    @property
    def threads(self) -> tuple[str, ...]:
        """The threads that act: scheduler, bootstrap, then the workers."""
        acting = {line.thread for line in self.lines}
        return (*(t for t in ("scheduler", "bootstrap") if t in acting), *sorted(acting - {"scheduler", "bootstrap"}))

    def as_json(self) -> dict[str, object]:
        """The story for machines: the number of the decisive line is ``fatal``."""
        lines = [attrs.asdict(line) for line in self.lines]
        return {"heading": self.heading, "lines": lines, "fatal": self.fatal, "sentence": self.sentence}

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = _columns(self)
        if least_width(table, console) > options.max_width:
            table = _list(self)
        fit(table, console, options.max_width)
        yield Text(self.heading, "bold")
        yield table
        yield Text(self.sentence)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """At least as wide as the narrower of the two tables, in which no word is broken."""
        least = min(least_width(table, console) for table in (_columns(self), _list(self)))
        return Measurement(least, max(least, options.max_width))


def least_width(table: Table, console: Console) -> int:
    """The columns of text that a table needs at least: no word of it is broken."""
    return Measurement.get(console, console.options.update(max_width=_ANY_WIDTH), table).minimum


def fit(table: Table, console: Console, width: int) -> None:
    """Give each column at least its longest word, and share what is left; rich alone would cut or break words.

    Cells are strings or Text. A table that needs more than ``width`` gets what it needs.
    """
    needs = [(column, *_needs(column)) for column in table.columns]
    left = width - least_width(table, console)
    for served, (column, word, line) in enumerate(sorted(needs, key=lambda need: need[2] - need[1])):
        more = max(0, min(line - word, left // (len(needs) - served)))
        column.width = word + more
        left -= more


def _needs(column: Column) -> tuple[int, int]:
    """The width of a column's longest word, and of its longest line."""
    texts = [str(cell) for cell in (column.header, *column.cells)]
    line = max(cell_len(line) for text in texts for line in (text.splitlines() or [""]))
    words = [cell_len(word) for text in texts for word in text.split()]
    return max([line] if column.no_wrap else words, default=0), line


def text(story: Story, width: int = 120) -> str:
    """The story as plain text, ``width`` columns wide at most."""
    output = io.StringIO()
    Console(file=output, width=width, color_system=None).print(story)
    return "\n".join(line.rstrip() for line in output.getvalue().splitlines())


def mermaid(story: Story) -> str:
    """The story as a ``sequenceDiagram``: its threads and the status table."""
    ids = {thread: _id(thread, number) for number, thread in enumerate(story.threads)}
    output = ["sequenceDiagram", *(f"  participant {ids[thread]} as {_safe(thread)}" for thread in story.threads)]
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
    return "\n".join([*output, f"  Note over {first},table: {_safe(story.sentence)}", ""])


def _id(thread: str, number: int) -> str:
    """A participant's name. Threads of the spec keep theirs; others may be called anything, a keyword too."""
    return thread.replace(" ", "") if re.fullmatch(r"scheduler|bootstrap|worker \d+", thread) else f"thread{number}"


def _safe(text: str) -> str:
    """Text without what Mermaid takes for an entity or the end of a statement."""
    return text.translate({ord("#"): "#35;", ord(";"): "#59;"})


def _columns(story: Story) -> Table:
    """A column for each thread."""
    return _table(story, story.threads, lambda line: [line.text if t == line.thread else "" for t in story.threads])


def _list(story: Story) -> Table:
    """For narrow terminals and many threads: the threads share one column."""
    return _table(story, ("thread", "does"), lambda line: [line.thread, line.text])


def _table(story: Story, headings: Sequence[str], cells: Callable[[Line], list[str]]) -> Table:
    """A row for each step; the decisive one is marked by a star too, for those who see no colours.

    Times, entries and polls have a column if there are any.
    """
    times, entries, polls = (any(getattr(line, field) for line in story.lines) for field in ("time", "entry", "poll"))
    shown = ["#", *["time"] * times, *headings, *["table"] * entries, *["poll"] * polls]
    columns = (Column(Text(heading), no_wrap=heading in ("#", "time")) for heading in shown)
    table = Table(*columns, box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=0)
    for line in story.lines:
        fatal = line.number == story.fatal
        poll = "same" if line.poll == line.entry else line.poll
        number = f"{line.number}{'*' if fatal else ''}"
        row = [number, *[line.time] * times, *cells(line), *[line.entry] * entries, *[poll] * polls]
        table.add_row(*(Text(cell, overflow="fold") for cell in row), style=_FATAL if fatal else None)
    return table
