"""``kvlatch conform``: hold somebody's manager against the laws, and say what came of it."""

from __future__ import annotations

import io
import json
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import attrs
import click
from rich.console import Console

from kvlatch.commands import conform_published, judgements
from kvlatch.commands.atlas import grid
from kvlatch.commands.common import json_option, junit_option, profile_option, sarif_option, traces_option
from kvlatch.commands.exits import OK, UNKNOWN, USAGE, VIOLATED, Failure
from kvlatch.proofs import pins
from kvlatch.proofs.atlas import result
from kvlatch.proofs.foreign import JudgedMerge, judge_merge
from kvlatch.reference.faults import AdapterFault
from kvlatch.reference.laws import UnknownLaw, select
from kvlatch.reference.loader import NotLoadable, load
from kvlatch.reference.oracle import vectors
from kvlatch.reference.oracle.checks import laws_of
from kvlatch.reference.oracle.examine import Report, examine, judged
from kvlatch.reference.oracle.explore import replay
from kvlatch.reference.oracle.findings import text_of
from kvlatch.reference.oracle.inprocess import InProcess
from kvlatch.reference.oracle.merge_table import as_merge, extract
from kvlatch.reference.oracle.moves import Player
from kvlatch.reference.oracle.process import Process
from kvlatch.reference.published.wheels import PublishedError
from kvlatch.spec.merges import Table
from kvlatch.spec.schema import Profile
from kvlatch.spec.traces import SUFFIX, TraceError, read


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
    seed: int
    seconds: float
    sequential: bool


def answer(question: Question, output: judgements.Output) -> int:
    """Ask, and report; Failure if it cannot be asked."""
    if (question.target is None) == (question.program is None):
        raise Failure("name one manager: MODULE:MAKE_ADAPTER, sglang==VERSION, vllm==VERSION, or --exec COMMAND", USAGE)
    try:
        return _answered(question, output)
    except vectors.VectorError as error:
        raise Failure(str(error), USAGE) from error
    except (AdapterFault, PublishedError) as error:
        raise Failure(str(error), getattr(error, "exit_code", UNKNOWN)) from error


def _answered(question: Question, output: judgements.Output) -> int:
    target = question.target or ""
    if conform_published.names(target):
        conform_published.refuse_options(target)
    if conform_published.names(target) and question.merge:
        return _merge(*conform_published.merge(target, question.backend), output)
    if conform_published.names(target):
        how = question.only, question.seconds, question.seed
        return output.write(conform_published.report(target, question.backend, *how))
    if question.merge:
        if question.program is not None:
            raise Failure("--merge takes a Python adapter with an update(room, status): a program has none", USAGE)
        return _merge(target, extract(_imported(target)), output)
    with _player(question) as (player, subject):
        if question.cases is not None:
            return _vectors(player, question.cases, output)
        if question.play is not None:
            return _play(player, subject, question, output)
        return _examined(player, subject, question, output)


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
    if ":" not in name:
        raise Failure(f"{name!r} is no manager: MODULE:MAKE_ADAPTER, sglang==VERSION, vllm==VERSION", USAGE)
    try:
        made = load(name)
    except NotLoadable as error:
        raise Failure(str(error), USAGE) from error
    if not callable(made):
        raise Failure(f"{name} is a {type(made).__name__}: it has to be called with a Probe to make an adapter", USAGE)
    return made


# --- What is asked ------------------------------------------------------------------------------------------------


def _examined(player: Player, subject: str, question: Question, output: judgements.Output) -> int:
    laws = _selected(laws_of(question.profile), question)
    with redirect_stdout(sys.stderr):  # what an adapter prints is not part of the report
        report = examine(player, subject, laws, seed=question.seed, sequential=question.sequential)
    return output.write(_as_report(report, question.only))


def _selected(laws: Sequence[str], question: Question) -> list[str]:
    try:
        return select(list(laws), question.only)
    except UnknownLaw as error:
        raise Failure(str(error), USAGE) from error


def _as_report(report: Report, only: tuple[str, ...]) -> judgements.Report:
    """The oracle's report, to be put out as any other."""
    plays = {law: str(finding.play) for law, finding in report.findings.items()}
    members = {"plays": plays, "complete": report.complete, "seed": report.seed}
    return judgements.Report(report.subject, report.judgements, only, report.looked_at, members, report.notes)


def _play(player: Player, subject: str, question: Question, output: judgements.Output) -> int:
    """Play what a text or a file says, and report which laws its end breaks."""
    play = question.play or ""
    laws = _selected(laws_of(question.profile), question)
    try:
        with redirect_stdout(sys.stderr):
            again = replay(player, text_of(read(Path(play))) if play.endswith(SUFFIX) else play)
    except (TraceError, ValueError) as error:
        raise Failure(f"--play: {error}", USAGE) from error
    moves = {"moves": len(again.moves)}
    return output.write(judgements.Report(subject, judged(again, subject, laws), question.only, moves))


def _vectors(player: Player, cases: Path, output: judgements.Output) -> int:
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


def _merge(subject: str, table: Table, output: judgements.Output) -> int:
    found = judge_merge(subject, table)
    click.echo(json.dumps(found.as_json()) if output.as_json else _merge_text(found))
    return OK if found.holds else VIOLATED


def _merge_text(judged: JudgedMerge) -> str:
    """What an extracted table is, and what is proved of it, for a terminal."""
    output = io.StringIO()
    console = Console(file=output, width=120, color_system=None)
    console.print(grid(result(as_merge(judged.merge)), judged.subject))
    same = ", ".join(judged.same_as) or "no rule of the spec"
    console.print(f"the same table as: {same}", highlight=False)
    for profile, changes in judged.changes.items():
        differs = "obeys every law" if not changes else "; ".join(map(str, changes))
        console.print(f"{profile}: {differs}", highlight=False)
    console.print("in the place of latch's merge, one step an update, any number of rooms and workers:")
    for cell in judged.cells:
        console.print(f"  {pins.text(cell.verdict):8} {cell.prop}", highlight=False)
    return output.getvalue().rstrip()


@click.command()
@click.argument("target", required=False, metavar="[MODULE:MAKE_ADAPTER|sglang==VERSION|vllm==VERSION]")
@click.option("--exec", "program", metavar="COMMAND", help="A program that speaks the line protocol, with arguments.")
@click.option("--backend", default="nixl", show_default=True, help="Which manager of an sglang version.")
@click.option("--only", multiple=True, metavar="LAW", help="Only this law.")
@profile_option
@click.option("--merge", is_flag=True, help="Extract the table of its update (Python, sglang), and prove what follows.")
@click.option(
    "--vectors", "cases", type=click.Path(path_type=Path, exists=True, file_okay=False), help="Run these test vectors."
)
@click.option("--play", metavar="TEXT|FILE", help="Play a finding once more: its text, or its trace.")
@click.option("--sequential", is_flag=True, help="One thread at a time calls this manager: hold none inside a call.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the random plays.")
@click.option(
    "--seconds",
    type=click.FloatRange(0),
    default=60.0,
    show_default=True,
    help="sglang: how long to explore after the known scenarios.",
)
@traces_option("Write the runs that break a law there.")
@junit_option
@sarif_option
@json_option()
def conform(traces: Path | None, junit: Path | None, sarif: Path | None, as_json: bool, **question: Any) -> int:
    """Hold a manager against the laws: your adapter, a program in any language, or a published version.

    Exit 0 if it keeps every law that was judged, 1 if it breaks one (each with a short run that shows it), 3 if none,
    or none of --only, could be judged, or if it cannot be driven.
    """
    return answer(Question(**question), judgements.Output("kvlatch conform", as_json, junit, traces, sarif))
