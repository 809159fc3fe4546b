"""What an abort storm has shown, for a terminal: a summary, tables, and the commands that lead on."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterator, Sequence
from typing import Final

from kvlatch.commands.pages import printable
from kvlatch.commands.storm.report import (
    COUNTS,
    OF_UPSTREAM,
    ROOMS_SHOWN,
    UNKNOWN,
    Group,
    cautions,
    chance,
    counted,
    groups,
    harmed,
    many,
    remarks,
    window,
)
from kvlatch.reference.live.records import BrokenRoom, PinnedRoom, Storm

Row = tuple[str, Sequence[str | int | None]]
"""A figure of each build or rank, after what it counts; None is not known."""
_ENGINES: Final = 2


def lines(storm: Storm, width: int) -> Iterator[str]:
    """The summary, line by line: at most ``width`` columns wide, but for commands, which are never broken."""
    from kvlatch.commands.storm.plot import blocks

    builds = groups(storm)
    yield from _wrapped(storm.sentence, width)
    yield from _wrapped(chance(storm.p), width)
    yield from _wrapped(window(storm), width)
    for caution in cautions(storm):
        yield from _wrapped(f"! {caution}", width)
    yield ""
    yield "Requests in the prefill inflight queue, the greatest over the repetitions:"
    yield from blocks({group.label: group.runs for group in builds}, width)
    columns = max(1, (width - max(len(count.heading) for count in COUNTS)) // 22)
    for start in range(0, len(builds), columns):
        yield ""
        yield from _table(builds[start : start + columns], width)
    for group in builds:
        for said in remarks(group):
            yield from _wrapped(f"{group.label}: {said}", width)
        if len(group.parts) > _ENGINES:
            yield ""
            yield from _table_of_ranks(group, width)
    rooms = [(group, run, room) for group in builds for run in group.runs for room in run.pinned]
    for group, run, room in rooms[:ROOMS_SHOWN]:
        yield ""
        yield from _wrapped(f"{group.label}, repetition {run.repetition}: {_room(room)}", width)
        yield f"  {printable(room.show)}"
    if len(rooms) > ROOMS_SHOWN:
        yield ""
        yield f"and {many(len(rooms) - ROOMS_SHOWN, 'more pinned room', 'more pinned rooms')}"
    for group in builds:
        yield from _traces(group, width)


def _traces(group: Group, width: int) -> Iterator[str]:
    """Of the first run with such rooms: how many its logs accuse, the command that names them, and one of each law."""
    run = next((run for run in group.runs if run.traces is not None and run.traces.shown), None)
    if run is None or run.traces is None:
        return
    yield ""
    accused = f"{many(run.traces.rooms, 'room breaks', 'rooms break')} a law in the logs of both engines"
    yield from _wrapped(f"{group.label}, repetition {run.repetition}: {accused}", width)
    yield f"  {printable(run.traces.check)}"
    first: dict[str, BrokenRoom] = {}
    for room in run.traces.shown:
        first.setdefault(room.law, room)
    for room in first.values():
        yield from _wrapped(f"{room.law}: {room.says}", width)
        yield from (f"  {printable(show)}" for show in room.show)


def _table_of_ranks(group: Group, width: int) -> Iterator[str]:
    """What each rank has by itself."""
    rows = [
        (count.heading, ["" if (one := group.of_rank(part, count.name)) is None else one for part in group.parts])
        for count in (*COUNTS, *OF_UPSTREAM)
        if any(group.of_rank(part, count.name) is not None for part in group.parts)
    ]
    yield from _columns(f"{group.label}, by rank", group.parts, rows, width)


def _room(room: PinnedRoom) -> str:
    law = "" if room.law is None else f"; {room.law} is broken in line {room.line}"
    return f"room {room.room} is pinned as {room.status}{law}: {room.says}"


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(printable(text), width, subsequent_indent="  ", break_on_hyphens=False)


def _table(builds: Sequence[Group], width: int) -> Iterator[str]:
    """The counts, a column for each build."""
    rows: list[Row] = [(harmed(builds), [group.harmed_in for group in builds])]
    rows += [(count.heading, [group.total(count.name) for group in builds]) for count in counted(builds)]
    yield from _columns("", [group.label for group in builds], rows, width)


def _columns(title: str, headings: Sequence[str], rows: Sequence[Row], width: int) -> Iterator[str]:
    """A table with a column for each heading, and one for what is counted; None is not known."""
    from rich import box
    from rich.console import Console
    from rich.table import Column, Table
    from rich.text import Text

    from kvlatch.commands.common import put

    table = Table(Column(Text(title)), box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for heading in headings:
        table.add_column(Text(heading, overflow="fold"), justify="right")
    for says, figures in rows:
        table.add_row(
            says, *(UNKNOWN if one is None else f"{one:,}" if isinstance(one, int) else one for one in figures)
        )
    output = io.StringIO()
    put(Console(file=output, width=width, color_system=None), table)
    yield from (line.rstrip() for line in output.getvalue().splitlines())
