"""The page of laws: what ``conform`` and ``check`` answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kvlatch.commands import pages
from kvlatch.commands.annotations import in_repository
from kvlatch.commands.explore import page as explore
from kvlatch.commands.report import Cell, Finding, Report, Section, Table, Tone, anchors
from kvlatch.reference.laws import SAYS, Broken, Judgement, Kept, NotJudged
from kvlatch.reference.played import is_played
from kvlatch.spec.traces import Trace, TraceError

if TYPE_CHECKING:
    from kvlatch.commands import judgements

_WORDS: Mapping[str, tuple[str, Tone]] = {
    "kept": ("✓ kept", "good"), "broken": ("✗ broken", "bad"), "not judged": ("? not judged", ""),
}  # fmt: skip


def html(report: judgements.Report, command: str) -> str:
    """The page of a judge's report; ``command`` is its name, without arguments."""
    from kvlatch.commands.report import html as page

    return page(of(report, command))


def of(report: judgements.Report, command: str) -> Report:
    """What is on that page."""
    broken = report.broken
    links = dict(zip((one.name for one, _ in broken), anchors([one.name for one, _ in broken]), strict=True))
    table = Table(
        "Each law, or each way that was taken to look for a broken one. "
        "A law is kept only where something happened that could have broken it.",
        ("law", "verdict", "why"),
        tuple(_row(one, links.get(one.name, "")) for one in report.judgements),
    )
    found = tuple(_finding(one, answer, links[one.name], report.timelines) for one, answer in broken)
    sections = [Section("What broke", found, "Nothing: no law that was judged is broken.")]
    if report.timelines:
        sections.append(Section("The worst rooms", report.timelines))
    unjudged: dict[str, list[str]] = {}
    for one in report.judgements:
        if isinstance(one.answer, NotJudged):
            unjudged.setdefault(one.answer.why, []).append(one.name)
    tone: Tone = {0: "good", 1: "bad"}.get(report.exit_code, "open")  # type: ignore[assignment]  # of Literals
    return Report(
        command, _title(report), tone, report.summary, (table,), tuple(sections), unjudged, _figures(report),
        pages.as_called(), report.cautions,
    )  # fmt: skip


def _title(report: judgements.Report) -> str:
    """The verdict in a sentence, in numbers of laws."""
    broken = {one.law for one in report.judgements if isinstance(one.answer, Broken)}
    kept = {one.law for one in report.judgements if isinstance(one.answer, Kept)}
    judged = len(broken | kept)
    left = len({one.law for one in report.judgements} - broken - kept)
    if not judged:
        return f"Nothing of {report.subject} was judged"
    rest = f"; {left} could not be judged" if left else ""
    laws = "1 law" if judged == 1 else f"{judged} laws"
    if broken:
        return f"{report.subject} breaks {len(broken)} of {laws} that could be judged{rest}"
    return f"{report.subject} keeps {'the' if judged == 1 else 'all'} {laws} that could be judged{rest}"


def _row(one: Judgement, link: str) -> tuple[Cell, ...]:
    word, tone = _WORDS[one.verdict]
    return Cell(one.name), Cell(word, tone, link), Cell(str(one.answer))


def _finding(one: Judgement, answer: Broken, anchor: str, timelines: Sequence[Finding]) -> Finding:
    file = in_repository(answer.file) or answer.file
    place = "" if file is None else f"{file}, line {answer.line}" if answer.line else file
    return Finding(
        anchor, one.name, SAYS[one.law], answer.sentence, answer.text, answer.again, place,
        None if answer.trace is None else _run(answer.trace, answer.sentence),
        see={room.anchor: f"The timeline of {room.name}" for room in timelines if one.name in room.breaks},
    )  # fmt: skip


def _run(trace: Trace, sentence: str) -> explore.Page:
    """The lanes of a finding. A trace that is a run of the spec can be played on from; what real threads did cannot."""
    if not is_played(trace):
        try:
            return explore.of_trace(trace)
        except TraceError:
            pass  # of code that no design describes: it is shown as it was seen
    return explore.of_finding(trace, sentence)


def _figures(report: judgements.Report) -> dict[str, object]:
    """Whatever the report counts, and its settings."""
    figures: dict[str, object] = dict(report.looked_at)
    for name, value in report.members.items():
        figure = _figure(value)
        if figure not in ("", None):
            figures[name.replace("_", " ")] = figure
    return figures


def _figure(value: object) -> object:
    """A member of a report in one cell; None for what is shown elsewhere."""
    match value:
        case bool():
            return "yes" if value else "no"
        case Mapping():
            return ", ".join(f"{count:,} {what}" for what, count in value.items() if type(count) is int and count)
        case str() | int() | float():
            return value
    return None
