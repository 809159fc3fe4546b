"""The rooms of a log that are worth looking at, as timelines: a lane for each thread and each rank's table."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from kvlatch.commands.explore import page
from kvlatch.commands.report import Finding, anchors
from kvlatch.reference.logs.events import Room, name_of
from kvlatch.reference.logs.files import File
from kvlatch.reference.logs.report import Report
from kvlatch.reference.logs.story import stories
from kvlatch.reference.story import text

_WORST: Final = 5
"""Rooms that are shown because they break most laws; besides them, the first room of each broken law."""


def worst(report: Report, paths: Sequence[Path | str]) -> tuple[Finding, ...]:
    """The rooms that break most laws and the first one of each law, told from a second pass over the logs.

    None if a log is a pipe, which cannot be read again.
    """
    broken: dict[Room, list[str]] = {}
    for finding in report.findings:
        name = f"{finding.law}/{finding.scenario}" if finding.scenario else finding.law
        laws = broken.setdefault(finding.room, [])
        if name not in laws:
            laws.append(name)
    most = sorted(broken, key=lambda room: len(broken[room]), reverse=True)[:_WORST]
    first = {name: room for room in reversed(broken) for name in broken[room]}
    rooms = list(dict.fromkeys([*most, *first.values()]))
    if not rooms or not all(File.of(path).regular for path in paths):
        return ()
    told = stories(paths, rooms, profile=report.profile, quiet=report.quiet)
    names = [name_of(room) for room in rooms]
    return tuple(
        Finding(
            anchor, name, f"Breaks {', '.join(broken[room])}", told[room].sentence, text(told[room]),
            _again(paths, room), run=page.of_story(told[room]), breaks=tuple(broken[room]),
        )
        for room, name, anchor in zip(rooms, names, anchors(names), strict=True)
    )  # fmt: skip


def _again(paths: Sequence[Path | str], room: Room) -> str:
    """The command that shows a room; there is none for several logs."""
    return shlex.join(["kvlatch", "show", str(paths[0]), "--room", str(room)]) if len(paths) == 1 else ""
