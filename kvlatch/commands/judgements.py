"""How judgements are put out, whoever has judged: text, JSON, JUnit, SARIF, a page, annotations, and an exit code.

A judge (the oracle, published code, logs, the live system) makes a :class:`Report`, and :meth:`Output.write` does the
rest.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs
import click

from kvlatch.commands import junit, pages, sarif
from kvlatch.commands.annotations import Annotation, annotate, block
from kvlatch.reference.laws import Broken, Judgement, NotJudged, Verdict, exit_code
from kvlatch.spec.traces import SUFFIX, write

if TYPE_CHECKING:
    from kvlatch.commands.report import Finding

_VERDICTS: Final[tuple[Verdict, ...]] = ("kept", "broken", "not judged")


@attrs.frozen
class Report:
    """What was judged, the answers, and how much was looked at.

    ``only`` is what the user selected: what is named there must have been judged for exit 0. ``looked_at`` counts what
    the answers rest on (``{"rooms": 12, "threads held": 2}``). ``members`` are further members of the JSON object;
    identifiers in them are strings, since jq 1.6 and JavaScript round large integers. ``notes`` say in sentences what
    was not looked at.
    """

    subject: str
    judgements: tuple[Judgement, ...]
    only: tuple[str, ...] = ()
    looked_at: Mapping[str, int] = attrs.field(factory=dict)
    members: Mapping[str, object] = attrs.field(factory=dict)
    notes: tuple[str, ...] = ()
    cautions: tuple[str, ...] = ()
    timelines: tuple[Finding, ...] = ()

    def of(self, verdict: Verdict) -> list[Judgement]:
        """The judgements with this verdict."""
        return [one for one in self.judgements if one.verdict == verdict]

    @property
    def broken(self) -> list[tuple[Judgement, Broken]]:
        """Each broken law with what was seen."""
        return [(one, one.answer) for one in self.judgements if isinstance(one.answer, Broken)]

    @property
    def summary(self) -> str:
        """One line: the subject, how many laws got which answer, and what was looked at."""
        counts = [f"{len(found)} {verdict}" for verdict in _VERDICTS if (found := self.of(verdict))]
        looks = [f"{what}: {count:,}" for what, count in self.looked_at.items()]
        said = [
            f"laws: {', '.join(counts) or 'none was judged'}",
            *([f"looked at {', '.join(looks)}"] if looks else []),
            *self.notes,
        ]
        return f"{self.subject}: {'; '.join(said)}"

    @property
    def lines(self) -> list[str]:
        """The whole report for a person: the run of each broken law, a line for each law, the summary."""
        return [*(line for one, answer in self.broken for line in _run(one, answer)), *self.verdict_lines]

    @property
    def verdict_lines(self) -> list[str]:
        """A line for each law, and the summary."""
        width = max(map(len, _VERDICTS))
        return [*(f"{one.verdict:{width}}  {one.name}: {one.answer}" for one in self.judgements), self.summary]

    @property
    def exit_code(self) -> int:
        """0 if all that was judged is kept, 1 if a law is broken, 3 if nothing, or nothing of ``only``, was judged."""
        return exit_code(self.judgements, self.only)

    def as_json(self) -> dict[str, object]:
        """The report for machines; ``judgements`` has an object for each."""
        counts = {verdict.replace(" ", "_"): len(self.of(verdict)) for verdict in _VERDICTS}
        looked_at: dict[str, object] = {"looked_at": dict(self.looked_at)} if self.looked_at else {}
        notes: dict[str, object] = {"notes": list(self.notes)} if self.notes else {}
        judgements = [one.as_json() | _texts(one) for one in self.judgements]
        return {"subject": self.subject, **counts, **looked_at, **notes, **self.members, "judgements": judgements}

    def cases(self) -> list[junit.Case]:
        """The judgements as JUnit cases: a broken law failed, with its run; one that was not judged was skipped."""
        return [_case(self.subject, one) for one in self.judgements]

    def annotations(self) -> list[Annotation]:
        """A sentence for each broken law, at the place to blame."""
        return [
            Annotation(f"{self.subject}: {one.name}", answer.sentence, answer.file, answer.line)
            for one, answer in self.broken
        ]

    def page(self, command: str) -> str:
        """Markdown for the page of a step in CI: each broken law in a sentence, and the shortest run."""
        if not self.broken:
            return ""
        sentences = [f"- **{one.name}**: {answer.sentence}" for one, answer in self.broken]
        runs = [(one, answer) for one, answer in self.broken if answer.text]
        shortest = min(runs, key=lambda run: run[1].text.count("\n"), default=None)
        run = ["", block("\n".join(_run(*shortest)))] if shortest else []
        return "\n".join([f"### {command}", "", self.summary, "", *sentences, *run])


@attrs.frozen
class Output:
    """Where a report goes: ``command`` as the user called it, and the options that every judging command has."""

    command: str
    as_json: bool = False
    junit: Path | None = None
    traces: Path | None = None
    sarif: Path | None = None
    html: Path | None = None

    def write(self, report: Report) -> int:
        """Put the report out, and return its exit code."""
        paths = self._write_traces(report)
        if self.junit is not None:
            junit.write(self.junit, self.command, report.cases())
        if self.sarif is not None:
            sarif.write(self.sarif, self.command, report.subject, report.judgements)
        if self.html is not None:
            from kvlatch.commands.report import laws

            pages.write(self.html, laws.html(report, self.command))
        if self.as_json:
            traces = {"traces": {name: str(path) for name, path in paths.items()}} if paths else {}
            click.echo(json.dumps(report.as_json() | traces))
        else:
            for line in report.lines:
                click.echo(line)
            for name, path in paths.items():
                click.echo(f"{path}: a trace that breaks {name}")
        annotate(report.annotations(), report.page(self.command))
        return report.exit_code

    def _write_traces(self, report: Report) -> dict[str, Path]:
        """Write the trace of each broken law that has one into the folder; where each is, by the law's name."""
        if self.traces is None:
            return {}
        found = {one.name: answer.trace for one, answer in report.broken if answer.trace is not None}
        self.traces.mkdir(parents=True, exist_ok=True)
        paths = {name: self.traces / f"{name.replace('/', '.')}{SUFFIX}" for name in found}
        for name, trace in found.items():
            write(trace, paths[name])
        return paths


def _run(one: Judgement, answer: Broken) -> list[str]:
    """The run that breaks a law: its text, and how to see it again."""
    text = answer.text or f"{one.name}: {answer.sentence}"
    return [text, *([f"again: {answer.again}"] if answer.again else []), ""]


def _texts(one: Judgement) -> dict[str, object]:
    return {"text": one.answer.text} if isinstance(one.answer, Broken) and one.answer.text else {}


def _case(owner: str, one: Judgement) -> junit.Case:
    match one.answer:
        case Broken() as answer:
            failure = "\n".join([answer.sentence, *_run(one, answer)]).rstrip()
            return junit.Case(owner, one.name, failure, one.seconds, file=answer.file, line=answer.line)
        case NotJudged(why):
            return junit.Case(owner, one.name, seconds=one.seconds, skipped=why)
        case _:
            return junit.Case(owner, one.name, seconds=one.seconds)
