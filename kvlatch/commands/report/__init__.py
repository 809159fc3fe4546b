"""The page of a command that judges: what was judged, what was not and why, what broke, and the command to repeat it.

One builder for ``prove``, ``conform`` and ``check``. A finding opens as lanes: the page of ``kvlatch explore`` in a
frame, made by the script when it is opened. Without scripts, and on paper, its run is there as text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Final, Literal

import attrs

from kvlatch.commands import pages
from kvlatch.commands.explore import page as explore

Tone = Literal["good", "bad", "open", ""]

_MACHINES: Final = 600_000
_RUNS: Final = 450_000
_TEXTS: Final = 350_000
"""Bytes for machines to play on with, for runs, and for their texts."""
_WORDS: Final = 250_000
"""Bytes for all other words; beside these, a page has its own, and stays below its limit."""
_TEXT: Final = 40_000
_SENTENCE: Final = 2_000
_NAME: Final = 300
"""Characters of one text, of one sentence and of a name, all of which foreign code may have written."""
_SHELL: Final = "@data@"
"""Where the script puts a run into the page of ``explore``."""


@attrs.frozen
class Cell:
    """One cell of a table; ``link`` is the anchor of the finding that it is about."""

    text: str
    tone: Tone = ""
    link: str = ""


@attrs.frozen
class Table:
    """A table whose first column names its rows. ``words``: its cells are text, and not words or figures."""

    caption: str
    heads: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    words: bool = True


@attrs.frozen
class Finding:
    """A run worth looking at: its name, what was claimed, what was seen, and how to see it again.

    ``run`` is what opens as lanes; ``still`` the same without the machine, for a page that would be too large.
    ``breaks`` names what a run breaks that is no law's own; ``see`` are anchors of others, each with what to call it.
    """

    anchor: str
    name: str
    claim: str
    sentence: str
    text: str = ""
    again: str = ""
    place: str = ""
    run: explore.Page | None = None
    still: explore.Page | None = None
    breaks: tuple[str, ...] = ()
    see: Mapping[str, str] = attrs.field(factory=dict)


@attrs.frozen
class Section:
    """Findings of one kind, most important first; ``none`` is what to say if there are none."""

    heading: str
    findings: tuple[Finding, ...]
    none: str = "Nothing."


@attrs.frozen
class Report:
    """All of a page: ``unjudged`` maps a reason to what was not judged for it, ``legend`` a word to its meaning."""

    command: str
    title: str
    tone: Tone
    summary: str
    tables: tuple[Table, ...]
    sections: tuple[Section, ...]
    unjudged: Mapping[str, Sequence[str]]
    figures: Mapping[str, object]
    again: str
    cautions: tuple[str, ...] = ()
    legend: Mapping[str, str] = attrs.field(factory=dict)


@attrs.frozen
class _Shown:
    """A finding as the page has it: ``run`` is its number among the page's runs, ``note`` what was left out."""

    finding: Finding
    text: str
    run: int | None
    note: str


@attrs.define
class _Runs:
    """The runs of a page, and the machines that they share."""

    machines: list[object] = attrs.field(factory=list)
    runs: list[dict[str, object]] = attrs.field(factory=list)
    known: dict[str, int] = attrs.field(factory=dict)
    of_machines: int = 0
    of_runs: int = 0

    def add(self, finding: Finding) -> tuple[int | None, str]:
        """The number of its run, None if there is none, and what had to be left out."""
        for made in filter(None, (finding.run, finding.still)):
            run = dict(made.data)
            machine = run.pop("machine", None)
            if machine is not None:
                del run["variables"]  # they are the machine's
                number = self._machine(machine)
                if number is None:
                    continue
                run["machine"] = number
            size = len(pages.embedded(run))
            if self.of_runs + size <= _RUNS:
                self.of_runs += size
                self.runs.append(run)
                left = made is finding.still and finding.run is not None
                return len(self.runs) - 1, "To play on from here, write its own page." if left else ""
        return None, "" if finding.run is None else "Its lanes would make this page too large."

    def _machine(self, machine: object) -> int | None:
        """Its number; None if there is no room left for it."""
        written = json.dumps(machine, sort_keys=True)
        if written not in self.known:
            if self.of_machines + len(written) > _MACHINES:
                return None
            self.of_machines += len(written)
            self.machines.append(machine)
            self.known[written] = len(self.machines) - 1
        return self.known[written]


@attrs.define
class _Words:
    """Foreign words, cut to a length each, and to ``left`` bytes all together."""

    left: int

    def cut(self, text: str, most: int) -> str:
        """A text that says itself how much of it was left out."""
        most = max(0, min(most, self.left))
        left = len(text) - most
        shown = text if left <= 0 else f"{text[:most].rstrip()} … and {left:,} more characters"
        self.left -= len(escape(shown).encode(errors="replace"))
        return shown


def html(report: Report) -> str:
    """The page."""
    runs, texts, words = _Runs(), _Words(_TEXTS), _Words(_WORDS)
    shown: list[tuple[Section, list[_Shown]]] = []
    for section in report.sections:
        shown.append((section, []))
        for finding in section.findings:
            number, note = runs.add(finding)
            shown[-1][1].append(_Shown(finding, texts.cut(finding.text, _TEXT), number, note))
    return pages.render(
        __name__,
        "report.html",
        report=report,
        sections=shown,
        runs={"machines": runs.machines, "runs": runs.runs},
        shell=explore.shell(_SHELL) if runs.runs else "",
        sentence=lambda text: words.cut(text, _SENTENCE),
        name=lambda text: words.cut(text, _NAME),
        marks={"good": "✓", "bad": "✗", "open": "?"},
        version=pages.version(),
    )


def anchors(names: Sequence[str]) -> Iterator[str]:
    """An anchor for each name; two are never the same."""
    for number, name in enumerate(names, 1):
        word = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in name)[:60]
        yield f"{number}-{word}"
