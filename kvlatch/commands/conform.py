"""``kvlatch conform``: hold somebody's manager against the laws, and say what came of it."""

from __future__ import annotations

import io
import json
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import attrs
import click
from rich.console import Console

from kvlatch.commands import conform_published, judgements
from kvlatch.commands.atlas import grid
from kvlatch.commands.common import (
    html_option,
    json_option,
    junit_option,
    profile_option,
    refuse,
    sarif_option,
    traces_option,
)
from kvlatch.commands.exits import OK, UNKNOWN, USAGE, VIOLATED, Failure
from kvlatch.proofs import pins
from kvlatch.proofs.atlas import result
from kvlatch.proofs.foreign import JudgedMerge, judge_merge
from kvlatch.proofs.verdicts import Proved
from kvlatch.reference.faults import AdapterFault, Refused
from kvlatch.reference.laws import UnknownLaw, select
from kvlatch.reference.oracle import confined, vectors
from kvlatch.reference.oracle.checks import laws_of
from kvlatch.reference.oracle.examine import examine, judged
from kvlatch.reference.oracle.explore import Play, replay
from kvlatch.reference.oracle.findings import text_of
from kvlatch.reference.oracle.merge_table import as_merge
from kvlatch.reference.oracle.process import Process
from kvlatch.reference.oracle.results import Result
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
    except (AdapterFault, PublishedError, Refused) as error:
        raise Failure(str(error), getattr(error, "exit_code", UNKNOWN)) from error


def _answered(question: Question, output: judgements.Output) -> int:
    target = question.target or ""
    if conform_published.names(target):
        conform_published.refuse_options(target, question.play)
    if question.merge:
        refuse(("play", "cases"), "with --merge")
    if conform_published.names(target) and question.merge:
        return _merge(*conform_published.merge(target, question.backend), output)
    if conform_published.names(target):
        how = question.only, question.seconds, question.seed, question.play
        return output.write(conform_published.report(target, question.backend, *how))
    if question.merge:
        if question.program is not None:
            raise Failure("--merge takes a Python adapter with an update(room, status): a program has none", USAGE)
        return _merge(target, confined.extracted(_named(target)), output)
    laws = _selected(laws_of(question.profile), question)
    if question.program is None:
        return _of_a_module(_named(target), laws, question, output)
    return _of_a_program(question.program, laws, question, output)


# --- Whom ---------------------------------------------------------------------------------------------------------


def _named(name: str) -> str:
    """A reader's own ``module:NAME``: it is imported in a process of its own."""
    if ":" not in name:
        raise Failure(f"{name!r} is no manager: MODULE:MAKE_ADAPTER, sglang==VERSION, vllm==VERSION", USAGE)
    return name


def _of_a_module(name: str, laws: Sequence[str], question: Question, output: judgements.Output) -> int:
    """Of an adapter in Python."""
    if question.cases is not None:
        return _vectors(confined.ran_vectors(name, question.cases), output)
    if question.play is not None:
        return output.write(_as_report(name, confined.played(name, laws, _text(question.play)), question))
    result = confined.examined(name, laws, seed=question.seed, sequential=question.sequential)
    return output.write(_as_report(name, result, question))


def _of_a_program(command: str, laws: Sequence[str], question: Question, output: judgements.Output) -> int:
    """Of a program, which has a process of its own anyway."""
    subject = f"--exec {shlex.quote(command)}"
    with Process(shlex.split(command)) as process:
        if question.cases is not None:
            outcomes = vectors.run(process, question.cases)
            return _vectors(((one.as_json(), one.sentence, one.failed) for one in outcomes), output)
        if question.play is not None:
            again = _played(process, _text(question.play))
            result = Result(judged(again, subject, laws), looked_at={"moves": len(again.moves)})
        else:
            found = examine(process, subject, laws, seed=question.seed, sequential=question.sequential)
            result = Result.of(found)
        return output.write(_as_report(subject, result, question))


def _text(play: str) -> str:
    """The play that a text or a file says."""
    try:
        return text_of(read(Path(play))) if play.endswith(SUFFIX) else play
    except (TraceError, ValueError) as error:
        raise Failure(f"--play: {error}", USAGE) from error


def _played(process: Process, text: str) -> Play:
    try:
        return replay(process, text)
    except ValueError as error:
        raise Failure(f"--play: {error}", USAGE) from error


# --- What is said -------------------------------------------------------------------------------------------------


def _selected(laws: Sequence[str], question: Question) -> list[str]:
    try:
        return select(list(laws), question.only)
    except UnknownLaw as error:
        raise Failure(str(error), USAGE) from error


def _as_report(subject: str, result: Result, question: Question) -> judgements.Report:
    """The result of an examination or a play, to be put out as any other report."""
    members = {} if question.play else {"plays": dict(result.plays), "complete": result.complete, "seed": question.seed}
    return judgements.Report(subject, result.judgements, question.only, result.looked_at, members, result.notes)


def _vectors(outcomes: Iterable[tuple[dict[str, Any], str, bool]], output: judgements.Output) -> int:
    """Of each test vector its outcome, as JSON and in a sentence, and whether it failed."""
    cases = failures = 0
    for members, sentence, failed in outcomes:
        cases, failures = cases + 1, failures + failed
        if output.as_json:
            click.echo(json.dumps(members))
        elif failed:
            click.echo(sentence)
    if not output.as_json:
        click.echo(f"{cases} cases, {failures} failed")
    return VIOLATED if failures else OK


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
    scopes = sorted({cell.verdict.scope for cell in judged.cells if isinstance(cell.verdict, Proved)})
    console.print("in the place of latch's merge, one step an update:", highlight=False)
    for cell in judged.cells:
        console.print(f"  {pins.text(cell.verdict):8} {cell.prop}", highlight=False)
    for scope in scopes:
        console.print(f"holds: {scope}", highlight=False)
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
@click.option("--play", metavar="TEXT|FILE", help="Play a finding again: its text, or its trace.")
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
@html_option
@json_option()
def conform(
    traces: Path | None, junit: Path | None, sarif: Path | None, html: Path | None, as_json: bool, **question: Any
) -> int:
    """Hold a manager against the laws: your adapter, a program in any language, or a published version.

    Exit 0 if it keeps every law that was judged, 1 if it breaks one (each with a short run that shows it), 3 if none,
    or none of --only, could be judged, or if it cannot be driven.
    """
    for name, option in {"merge": "--merge", "cases": "--vectors"}.items():
        if question[name]:
            refuse(("traces", "junit", "sarif", "html"), f"with {option}")
    return answer(Question(**question), judgements.Output("kvlatch conform", as_json, junit, traces, sarif, html))
