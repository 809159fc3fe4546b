"""``kvlatch conform``: hold somebody's manager against the laws, and say what came of it."""

from __future__ import annotations

import importlib
import json
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, Final, Literal

import attrs
import click

from kvlatch.proofs import junit
from kvlatch.proofs.exits import OK, UNKNOWN, USAGE, VIOLATED, Failure
from kvlatch.proofs.foreign import judge_merge
from kvlatch.reference import sglang_laws, sglang_player, vectors, vllm_laws
from kvlatch.reference.adapter import AdapterFault, InProcess
from kvlatch.reference.explore import Player, replay
from kvlatch.reference.merge_table import extract
from kvlatch.reference.oracle import LAWS, Finding, Report, examine, laws_of, text_of
from kvlatch.reference.process import Process
from kvlatch.reference.story import Line, Story, text
from kvlatch.reference.wheels import PublishedError
from kvlatch.spec.merges import Table
from kvlatch.spec.properties import Profile
from kvlatch.spec.traces import SUFFIX, Trace, TraceError, read, write

_PUBLISHED_LIMIT: Final = 6_000
"""Plays a stage on published code: enough for every law that the table of the newest sglang breaks."""


@attrs.frozen
class Question:
    """What is asked of which manager: the options of the command."""

    target: str | None
    program: str | None
    backend: str
    only: tuple[str, ...]
    profile: Profile
    merge: bool
    cases: Path | None
    play: str | None
    explore: bool
    seed: int


def answer(question: Question, output: Output) -> int:
    """Ask, and report; Failure if it cannot be asked."""
    if (question.target is None) == (question.program is None):
        raise Failure("name one manager: MODULE:MAKE_ADAPTER, sglang==VERSION, vllm==VERSION, or --exec COMMAND", USAGE)
    try:
        return _answered(question, output)
    except vectors.VectorError as error:
        raise Failure(str(error), USAGE) from error
    except (AdapterFault, PublishedError) as error:
        raise Failure(str(error), getattr(error, "exit_code", UNKNOWN)) from error


def _answered(question: Question, output: Output) -> int:
    target = question.target or ""
    project, published, version = target.partition("==")
    if published:
        return _published(project, version, question, output)
    if question.merge:
        return _merge(target, extract(_imported(target)), output)
    with _player(question) as (player, subject):
        if question.cases is not None:
            return _vectors(player, question.cases, output)
        if question.play is not None:
            return _play(player, subject, question.play, output)
        return output.report(_examined(player, subject, question))


# --- Whom ---------------------------------------------------------------------------------------------------------


@contextmanager
def _player(question: Question) -> Iterator[tuple[Player, str]]:
    if question.program is not None:
        with Process(shlex.split(question.program)) as process:
            yield process, f"--exec {shlex.quote(question.program)}"
    elif question.target is not None:
        in_process = InProcess(_imported(question.target))
        try:
            yield in_process, question.target
        finally:
            in_process.close()


def _imported(name: str) -> Callable[[Any], Any]:
    """What a reader's own ``module:NAME`` is, importable from here."""
    module, colon, attribute = name.partition(":")
    if not colon:
        raise Failure(f"{name!r} is no manager: MODULE:MAKE_ADAPTER, sglang==VERSION, vllm==VERSION", USAGE)
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        made = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise Failure(f"{name}: {error}", USAGE) from error
    if not callable(made):
        raise Failure(f"{name} is a {type(made).__name__}: it has to be called with a Probe to make an adapter", USAGE)
    return made  # type: ignore[no-any-return]  # it is callable, and what it takes shows when it is called


# --- What is asked ------------------------------------------------------------------------------------------------


def _examined(player: Player, subject: str, question: Question) -> Report:
    if unknown := [law for law in question.only if law not in LAWS]:
        raise Failure(f"no law is called {unknown[0]!r}: they are {', '.join(LAWS)}", USAGE)
    laws = [law for law in laws_of(question.profile) if law in question.only or not question.only]
    with redirect_stdout(sys.stderr):  # what an adapter prints is not part of the report
        return examine(player, subject, laws, walk=question.seed)


def _play(player: Player, subject: str, play: str, output: Output) -> int:
    """Play what a text or a file says, and report which laws its end breaks."""
    try:
        with redirect_stdout(sys.stderr):
            again = replay(player, text_of(read(Path(play))) if play.endswith(SUFFIX) else play)
    except (TraceError, ValueError) as error:
        raise Failure(f"--play: {error}", USAGE) from error
    findings = [Finding(law, subject, again) for law in again.broken()]
    judged = [Judged(f.law, "broken", f.seen, f.text, f.trace) for f in findings]
    summary = f"{subject}: this play breaks {', '.join(f.law for f in findings) or 'no law'}"
    return output.write(subject, judged, summary, {"subject": subject, "broken": [f.as_json() for f in findings]})


def _published(project: str, version: str, question: Question, output: Output) -> int:
    """The laws of a published package; which they are depends on what it has."""
    backend = question.backend
    match project:
        case "sglang" if question.explore:
            subject = f"sglang=={version} --backend {backend} --explore"
            laws = [law for law in sglang_player.LAWS if law in question.only or not question.only]
            player = sglang_player.SglangPlayer(version, backend)
            if question.play is not None:
                return _play(player, subject, question.play, output)
            return output.report(examine(player, subject, laws, limit=_PUBLISHED_LIMIT, examples=0))
        case "sglang" if question.merge:
            return _merge(f"sglang {version} {backend}", sglang_laws.extract_table(version, backend), output)
        case "sglang":
            run = sglang_laws.judge(version, backend, question.only)
            subject = f"sglang {version} {backend}"
            judged = [Judged(one.law, one.verdict, one.sentence, _text(subject, one)) for one in run]
            return output.scripted(subject, judged, [attrs.asdict(one) for one in run])
        case "vllm":
            if unknown := [law for law in question.only if law not in vllm_laws.BY_LAW]:
                raise Failure(f"no law is called {unknown[0]!r}: they are {', '.join(vllm_laws.BY_LAW)}", USAGE)
            found = [one for one in vllm_laws.judge(version) if one.law.name in question.only or not question.only]
            judged = [Judged(one.law.name, one.verdict, one.sentence, one.text) for one in found]
            return output.scripted(f"vllm {version}", judged, [one.as_json() for one in found])
    raise Failure(f"{project!r} is no package that kvlatch can drive: they are sglang and vllm", USAGE)


def _vectors(player: Player, cases: Path, output: Output) -> int:
    outcomes = vectors.run(player, cases)
    for outcome in outcomes:
        if output.as_json:
            click.echo(json.dumps(outcome.as_json()))
        elif outcome.failed:
            click.echo(outcome.sentence)
    failed = sum(outcome.failed for outcome in outcomes)
    if not output.as_json:
        click.echo(f"{len(outcomes)} cases, {failed} failed")
    return VIOLATED if failed else OK


def _merge(subject: str, table: Table, output: Output) -> int:
    judged = judge_merge(subject, table)
    click.echo(json.dumps(judged.as_json()) if output.as_json else judged.text)
    return OK if judged.holds else VIOLATED


# --- What is said -------------------------------------------------------------------------------------------------


@attrs.frozen
class Judged:
    """One law on one manager: ``text`` is all there is to read if it is broken, ``trace`` what to write."""

    law: str
    verdict: Literal["kept", "broken", "absent"]
    sentence: str
    text: str = ""
    trace: Trace | None = None


@attrs.frozen
class Output:
    """Where a report goes."""

    as_json: bool
    junit: Path | None
    traces: Path | None

    def report(self, report: Report) -> int:
        """What the oracle has found."""
        found = report.findings
        judged = [
            Judged(law, "broken", found[law].seen, found[law].text, found[law].trace)
            if law in found
            else Judged(law, "kept", LAWS[law])
            for law in report.laws
        ]
        return self.write(report.subject, judged, report.summary, report.as_json())

    def scripted(self, subject: str, judged: Sequence[Judged], laws: Sequence[dict[str, object]]) -> int:
        """What runs of published code have shown."""
        counts = Counter(one.verdict for one in judged)
        told = ", ".join(f"{counts[verdict]} {verdict}" for verdict in ("kept", "broken", "absent") if counts[verdict])
        return self.write(subject, judged, f"{subject}: {told}", {"subject": subject, "laws": list(laws)})

    def write(self, subject: str, judged: Sequence[Judged], summary: str, members: dict[str, object]) -> int:
        """All of it; 1 if a law is broken."""
        broken = [one for one in judged if one.verdict == "broken"]
        if self.as_json:
            click.echo(json.dumps(members))
        else:
            for one in broken:
                click.echo(f"{one.text}\n")
            for one in judged:
                click.echo(f"{one.verdict:7} {one.law}: {one.sentence}")
            click.echo(summary)
        if self.junit is not None:
            cases = [junit.Case(subject, o.law, o.text if o.verdict == "broken" else None) for o in judged]
            junit.write(self.junit, "kvlatch conform", cases)
        if self.traces is not None:
            self.traces.mkdir(parents=True, exist_ok=True)
            for one in broken:
                if one.trace is not None:
                    write(one.trace, self.traces / f"{one.law}{SUFFIX}")
        return VIOLATED if broken else OK


def _text(subject: str, finding: sglang_laws.Finding) -> str:
    """The real run as a table."""
    lines = tuple(
        Line(number, row.thread, row.op, row.status, row.remark.removeprefix("polls "), "else")
        for number, row in enumerate(finding.trace, 1)
    )
    return text(Story(f"{subject}; {finding.law}", lines, len(lines) or None, f"{finding.sentence}."))
