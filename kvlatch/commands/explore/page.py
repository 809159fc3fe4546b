"""One self-contained page: a run, and the machine it is a run of, if there is one.

The page is ``page.html`` with its style, its scripts and the data put in: it opens from a disk, makes no request and
needs no server.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final

import attrs

from kvlatch.commands import pages, show
from kvlatch.commands.explore.machine import as_json
from kvlatch.reference import played
from kvlatch.reference.story import Line, Story
from kvlatch.spec.model import Machine
from kvlatch.spec.schema import AnyDesign
from kvlatch.spec.traces import Step, Trace, meta, verify

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
        return pages.render(
            __package__ or "", "page.html", title=self.title, data=self.data | {"again": again}, place=""
        )


def shell(place: str) -> str:
    """The document without data, for a script that puts it where ``place`` stands."""
    return _document("a run", None, place)


def _document(title: str, data: dict[str, object] | None, place: str = "") -> str:
    return pages.render(__package__ or "", "page.html", title=title, data=data, place=place)


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


def of_finding(trace: Trace, sentence: str = "") -> Page:
    """What ``conform`` has found: the play with what an observer saw after each move. There is no machine behind it."""
    count = len(trace.steps) - 1
    law = f"{trace.prop} is broken: {sentence}" if sentence else played.sentence(trace)
    texts = [_moved(after.action or "", before.state, after.state) for before, after in pairwise(trace.steps)]
    return _seen(trace, f"{trace.design}: {count} moves", law, texts, count or None)


def still(trace: Trace, design: AnyDesign | None = None) -> Page:
    """A run of the spec without its machine, which is most of a page: to look at, not to play on from."""
    story = show.table(trace, design)
    return _seen(trace, story.heading, story.sentence, [line.text for line in story.lines], story.fatal)


def _seen(trace: Trace, heading: str, sentence: str, texts: Sequence[str], fatal: int | None) -> Page:
    """The states of a trace, with a text for each step."""
    names = list(trace.steps[0].state)
    labels = {name: list(dict.fromkeys(step.state[name] for step in trace.steps)) for name in names}
    arrows = bool(_arrows(names))
    threads = dict.fromkeys(step.thread or "" for step in trace.steps[1:])
    steps = [
        {"thread": after.thread or "", "text": text, "arrows": _changes(before.state, after)}
        for (before, after), text in zip(pairwise(trace.steps), texts, strict=True)
    ]
    return Page(
        f"{trace.design}: {trace.prop}",
        {
            "heading": heading,
            "sentence": sentence,
            "fatal": fatal,
            "start": fatal or 0,
            "lanes": _lanes(threads, decode=True) if arrows else list(threads),
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


def _changes(before: Mapping[str, str], step: Step) -> list[dict[str, object]]:
    """What a step changed, as arrows; a poll that changed nothing has read the table."""
    drawn = [(name, *ARROWS[base]) for name in before if (base := name.partition("@")[0]) in ARROWS]
    arrows: list[dict[str, object]] = [
        {"lane": lane, "out": out, "says": step.state[name] if name.startswith("status") else ""}
        for name, lane, out in drawn
        if before[name] != step.state[name]
    ]
    reads = drawn and not arrows and step.action == "poll"
    return [{"lane": TABLE, "out": False, "says": ""}] if reads else arrows


def of_story(story: Story) -> Page:
    """A run that is known as a story alone, such as a room of a log: a lane for each thread and each rank's table."""
    places = list(dict.fromkeys(line.place for line in story.lines))
    labels = ["", *dict.fromkeys(line.entry for line in story.lines)]
    entries = dict.fromkeys(places, 0)
    states = [list(entries.values())]
    for line in story.lines:
        entries[line.place] = labels.index(line.entry)
        states.append(list(entries.values()))
    fatal = story.fatal and 1 + [line.number for line in story.lines].index(story.fatal)
    lanes = (_lanes((line.thread for line in story.lines if line.place == one), table=_table(one)) for one in places)
    return Page(
        story.heading,
        {
            "heading": story.heading,
            "sentence": story.sentence,
            "fatal": fatal,
            "start": fatal,
            "lanes": [lane for group in lanes for lane in group],
            "variables": [{"name": f"{place} entry".strip(), "labels": labels} for place in places],
            "arrows": {},
            "steps": [
                {"thread": line.thread, "text": f"{line.time} {line.text}".strip(), "arrows": _arrow(line)}
                for line in story.lines
            ],
            "states": states,
        },
    )


def _table(place: str) -> str:
    """The lane of a table, which has its rank's name where there are several."""
    return f"{place} {TABLE}".strip()


def _arrow(line: Line) -> list[dict[str, object]]:
    match line.kind:
        case "writes the table":
            return [{"lane": _table(line.place), "out": True, "says": line.entry}]
        case "reads the table":
            return [{"lane": _table(line.place), "out": False, "says": ""}]
    return []


def _lanes(threads: Iterable[str], *, decode: bool = False, table: str = TABLE) -> list[str]:
    return [*([DECODE] if decode else []), *dict.fromkeys(threads), table]
