"""One self-contained page: a run, and the machine it is a run of, if there is one.

The page is ``page.html`` with ``page.css``, ``page.js`` and the data put in: it opens from a disk, makes no request and
needs no server.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Mapping
from importlib import resources
from itertools import pairwise
from string import Template
from typing import Final

import attrs

from kvlatch.commands import show
from kvlatch.commands.explore.machine import as_json
from kvlatch.reference.laws import LAWS
from kvlatch.reference.story import Line, Story
from kvlatch.spec.model import Machine
from kvlatch.spec.schema import AnyDesign
from kvlatch.spec.traces import Trace, meta, verify

TABLE: Final = "table"
DECODE: Final = "decode"
ARROWS: Final = {
    "status": (TABLE, True),
    "wire": (DECODE, True),
    "metadata": (DECODE, False),
    "notice": (DECODE, False),
}
"""What a change of a variable is drawn as: an arrow between the thread's lane and this one, out of it or into it."""


@attrs.frozen
class Page:
    """What a page shows. ``data`` is what the script reads; the rest of it is described there."""

    title: str
    data: dict[str, object]

    def html(self, again: str) -> str:
        """The document; ``again`` is the command that makes it once more."""
        folder = resources.files(__package__ or "")
        # "</" would end the script element that the data is in.
        data = json.dumps(self.data | {"again": again}, separators=(",", ":")).replace("</", r"<\/")
        return Template(folder.joinpath("page.html").read_text(encoding="utf-8")).substitute(
            title=html.escape(self.title),
            style=folder.joinpath("page.css").read_text(encoding="utf-8"),
            script=folder.joinpath("page.js").read_text(encoding="utf-8"),
            data=data,
        )


def of_trace(trace: Trace, design: AnyDesign | None = None, against: Machine | None = None) -> Page:
    """A run of the spec, which is verified first: TraceError if the spec forbids it. It can be played on from."""
    run = verify(trace, design)
    story = show.table(trace, design)
    machine = run.meaning.machine
    numbers = {action: number for number, action in enumerate(machine.model.actions)}
    page = _of_machine(machine, trace, against)
    page |= {
        "heading": story.heading,
        "sentence": story.sentence,
        "fatal": story.fatal,
        "actions": [numbers[action] for action in run.actions],
        "start": story.fatal or 0,
        "map": against is not None,
    }
    return Page(f"{trace.design} {trace.prop or ''}".strip(), page)


def of_design(machine: Machine, title: Trace, against: Machine | None = None) -> Page:
    """A design to play with, from its first state; ``title`` is the empty trace, which names design and network."""
    page = _of_machine(machine, title, against)
    page |= {
        "heading": f"{title.design}, {title.atomicity}, {title.network} network",
        "sentence": "Choose a step: whatever can happen next is listed, and the properties say what it breaks.",
        "fatal": None,
        "actions": [],
        "map": True,
    }
    return Page(f"{title.design}: play", page)


def _of_machine(machine: Machine, trace: Trace, against: Machine | None) -> dict[str, object]:
    described = as_json(machine)
    arrows = _arrows(var.name for var in machine.model.variables) if machine.protocol.entry else {}
    threads = dict.fromkeys(action.thread for action in machine.model.actions)
    page: dict[str, object] = {
        "lanes": _lanes(threads, decode=True) if arrows else list(threads),
        "variables": described["variables"],
        "arrows": arrows,
        "terse": bool(arrows),
        "steps": [],
        "machine": described,
        "itf": meta(trace),
    }
    if against is not None:
        name = against.model.fix.title if against.model.fix else ""
        page["against"] = {"name": name, "machine": as_json(against)}
    return page


def _arrows(names: Iterable[str]) -> dict[int, dict[str, object]]:
    """By the number of a variable, how a change of it is drawn. With several rooms a name ends in ``@room``."""
    return {
        number: {"name": base, "lane": ARROWS[base][0], "out": ARROWS[base][1]}
        for number, name in enumerate(names)
        if (base := name.partition("@")[0]) in ARROWS
    }


def of_finding(trace: Trace) -> Page:
    """What ``conform`` has found: the play with what an observer saw after each move. There is no machine behind it."""
    names = list(trace.steps[0].state)
    labels = {name: list(dict.fromkeys(step.state[name] for step in trace.steps)) for name in names}
    steps = [
        {"thread": step.thread or "", "text": _moved(step.action or "", before.state, step.state), "arrows": arrows}
        for before, step in pairwise(trace.steps)
        for arrows in [_changes(before.state, step.state)]
    ]
    return Page(
        f"{trace.design}: {trace.prop}",
        {
            "heading": f"{trace.design}: {len(steps)} moves",
            "sentence": f"{trace.prop} is broken: {LAWS.get(trace.prop or '', '')}",
            "fatal": len(steps) or None,
            "start": len(steps),
            "lanes": _lanes((step.thread or "" for step in trace.steps[1:]), decode=True),
            "variables": [{"name": name, "labels": labels[name]} for name in names],
            "arrows": {},
            "steps": steps,
            "states": [[labels[name].index(step.state[name]) for name in names] for step in trace.steps],
        },
    )


def _moved(action: str, before: Mapping[str, str], after: Mapping[str, str]) -> str:
    words = action.replace("_", " ")
    if before.get("status") == after.get("status"):
        return words
    return f"{words}: {before.get('status')} → {after.get('status')}"


def _changes(before: Mapping[str, str], after: Mapping[str, str]) -> list[dict[str, object]]:
    return [
        {"lane": lane, "out": out, "says": after[name] if name == "status" else ""}
        for name, (lane, out) in ARROWS.items()
        if name in after and before[name] != after[name]
    ]


def of_story(story: Story) -> Page:
    """A run that is known as a story alone, such as a room of a log: its lanes, and what the table shows."""
    labels = list(dict.fromkeys(line.entry for line in story.lines))
    return Page(
        story.heading,
        {
            "heading": story.heading,
            "sentence": story.sentence,
            "fatal": story.fatal and 1 + [line.number for line in story.lines].index(story.fatal),
            "start": story.fatal and 1 + [line.number for line in story.lines].index(story.fatal),
            "lanes": _lanes(line.thread for line in story.lines),
            "variables": [{"name": "entry", "labels": ["", *labels]}],
            "arrows": {},
            "steps": [
                {"thread": line.thread, "text": f"{line.time} {line.text}".strip(), "arrows": _arrow(line)}
                for line in story.lines
            ],
            "states": [[0], *([1 + labels.index(line.entry)] for line in story.lines)],
        },
    )


def _arrow(line: Line) -> list[dict[str, object]]:
    match line.kind:
        case "writes the table":
            return [{"lane": TABLE, "out": True, "says": line.entry}]
        case "reads the table":
            return [{"lane": TABLE, "out": False, "says": ""}]
    return []


def _lanes(threads: Iterable[str], *, decode: bool = False) -> list[str]:
    return [*([DECODE] if decode else []), *dict.fromkeys(threads), TABLE]
