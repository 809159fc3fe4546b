"""``kvlatch storm``: storm a control and a treatment, or one build, and say what came of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shlex
import shutil
import signal
import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, get_args

import attrs
import click

from kvlatch.commands import pages
from kvlatch.commands.annotations import annotate
from kvlatch.commands.common import content
from kvlatch.commands.exits import CANNOT, INTERNAL, INTERRUPTED, OK, UNKNOWN, USAGE, VIOLATED, Failure
from kvlatch.commands.storm import laws
from kvlatch.commands.storm.question import Question, check, folder, plan, published
from kvlatch.commands.storm.records_json import as_json, from_json
from kvlatch.proofs import pins
from kvlatch.reference.live import conclusion as conclusions
from kvlatch.reference.live.records import Conclusion, Role, Run, Storm
from kvlatch.reference.live.settings import Settings
from kvlatch.spec.room import ROOM

if TYPE_CHECKING:
    import httpx

    from kvlatch.reference.live import storm as storms
    from kvlatch.reference.live.system import Subject

_LARGEST: Final = 256 * 2**20
"""Bytes of an earlier report."""
_UPSTREAM_WAITS: Final = 300.0
"""Seconds for which upstream's decode waits for a transfer: its own default. A storm has ended by then."""
_POLLED: Final = 8
"""Connections that are kept for the pages that are polled."""


def answer(question: Question) -> int:
    """Storm, report, and say how it went; Failure if it cannot be done."""
    check(question)
    from kvlatch.reference.live.storm import NotAnswering, Unfit
    from kvlatch.reference.live.system import CannotLoad, CannotStart

    out = folder(question.out)
    runs: list[Run] = []
    fault = ""
    try:
        for run in _foreign(question) if question.url else _embedded(question, out):
            _progress(run)
            runs.append(run)
    except (Unfit, CannotLoad) as error:
        raise Failure(str(error), UNKNOWN) from error
    except (NotAnswering, CannotStart) as error:
        fault = str(error)
        if not runs:
            raise Failure(fault, CANNOT) from error
    storm = _storm(question, runs)
    _write(storm, out, question)
    if fault:
        raise Failure(f"{fault}; the report is about the runs before", CANNOT)
    if storm.conclusion == "refused":
        raise Failure(storm.sentence, USAGE)
    if left := [thing for run in storm.runs for thing in run.left_behind]:
        raise Failure(f"left behind: {', '.join(left)}", INTERNAL)
    return INTERRUPTED if any(run.interrupted for run in storm.runs) else exit_code(storm)


def exit_code(storm: Storm) -> int:
    """1 if the build in question breaks a law, 0 if the storm shows that it does not, 3 if it does not show which."""
    codes = {report.exit_code for report in laws.in_question(storm)}
    if VIOLATED in codes:
        return VIOLATED
    good: tuple[Conclusion, ...] = ("treatment fixes it", "drains")
    return OK if codes == {OK} and storm.conclusion in good else UNKNOWN


# --- The runs -----------------------------------------------------------------------------------------------------


def _storm(question: Question, runs: Sequence[Run]) -> Storm:
    """The experiment that these runs are; with an earlier report, they are the treatment of its control."""
    if question.against is not None:
        runs = (*_as("control", _earlier(question.against)), *_as("treatment", runs))
    conclusion, sentence, p = judge(runs)
    return Storm(
        command=command(sys.argv[1:]), seed=question.seed, version=pages.version(), settings=_settings(question),
        runs=tuple(runs), conclusion=conclusion, sentence=sentence, p=p, proofs=proofs_of(runs),
    )  # fmt: skip


def judge(runs: Sequence[Run]) -> tuple[Conclusion, str, float | None]:
    """The conclusion on all runs, a sentence, and p where two builds are compared."""
    by_role = {role: [run for run in runs if run.role == role] for role in get_args(Role)}
    try:
        if by_role["control"] and by_role["treatment"]:
            return conclusions.compare(by_role["control"], by_role["treatment"])
        if by_role["alone"]:
            return (*conclusions.alone(by_role["alone"]), None)
    except conclusions.Refused as error:
        return "refused", f"Refused: {error}.", None
    return "inconclusive", "Inconclusive: interrupted before both builds were stormed.", None


def _as(role: Role, runs: Sequence[Run]) -> tuple[Run, ...]:
    return tuple(attrs.evolve(run, role=role) for run in runs)


def _embedded(question: Question, out: Path) -> Iterator[Run]:
    """Every run on a system of its own, started here."""
    for role, number, subject in plan(question):
        name = re.sub(r"[^\w.+]+", "-", subject.name)
        folder = out / (f"{name}-{number}" if role == "alone" else f"{role}-{number}")
        run = asyncio.run(_on_system(question, role, number, subject, folder))
        yield run
        if run.interrupted:
            return


async def _on_system(question: Question, role: Role, number: int, subject: Subject, folder: Path) -> Run:
    """Start a system, storm it, stop it."""
    from kvlatch.reference.live import storm as storms
    from kvlatch.reference.live.system import System
    from kvlatch.reference.live.traces import traces

    settings = _of_engines(question)
    system = System(subject, settings, folder)
    async with _http(_POLLED, question) as polling:
        with _interruptible() as stop:
            try:
                await asyncio.to_thread(system.start)
                target = storms.Embedded.of(system, subject, settings, polling)
                run = await _run(question, target, stop, role, number)
            finally:
                await asyncio.to_thread(system.stop)
    found = traces(folder, run.ranks) if run.build.published else None
    return attrs.evolve(run, left_behind=system.left_behind(), traces=found)


def _of_engines(question: Question) -> Settings:
    """The settings of all engines; published code has one transfer worker a decode engine, so it goes at it faster."""
    settings = Settings(seed=question.seed, **question.settings)
    if not published(question.builds):
        return settings
    return attrs.evolve(
        settings, noise_seconds=0.02, chunk_seconds=0.01, page_seconds=0.001, waiting_timeout=_UPSTREAM_WAITS
    )


def _foreign(question: Question) -> Iterator[Run]:
    """Storm a deployment of the user's, unless it is the build of the earlier report."""
    earlier = () if question.against is None else _earlier(question.against)
    for number in range(1, (question.repetitions or 1) + 1):
        run = asyncio.run(_on_deployment(question, number, {run.build.fingerprint for run in earlier}))
        yield run
        if run.interrupted:
            return


async def _on_deployment(question: Question, number: int, stormed: Collection[str]) -> Run:
    """One storm on a deployment; Failure if it has been stormed before, and would be compared with itself."""
    from kvlatch.reference.live.foreign import Foreign

    async with _http(_POLLED, question) as polling:
        target = Foreign(str(question.url).rstrip("/"), question.metrics, question.label, polling)
        if (mark := await target.fingerprint()) in stormed:
            raise Failure(f"refused: this is the build of {question.against} ({mark}): nothing to compare", USAGE)
        with _interruptible() as stop:
            return await _run(question, target, stop, "alone", number)


async def _run(question: Question, target: storms.Target, stop: asyncio.Event, role: Role, number: int) -> Run:
    """One storm. Both builds get the same requests in the same repetition, and others in another.

    No client's connection is used twice: what is left of one that hung up is nobody else's.
    """
    from kvlatch.reference.live import storm as storms

    seed = question.seed * 1000 + number
    async with _http(0, question) as http:
        storm = storms.Storm(
            target, question.load, seed, http, role, number, question.faults, stop, hidden=question.secrets
        )
        return await storm.run()


def _http(kept: int, question: Question) -> httpx.AsyncClient:
    """HTTP without a proxy, with any number of connections, of which at most ``kept`` stay open to be used again."""
    import httpx

    from kvlatch.reference.live.system import raise_descriptor_limit

    raise_descriptor_limit()
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=kept)
    return httpx.AsyncClient(trust_env=False, timeout=10.0, limits=limits, headers=question.headers)


@contextlib.contextmanager
def _interruptible() -> Iterator[asyncio.Event]:
    """The first Ctrl-C ends the storm, and the report is still written; the second ends everything."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    def stopped() -> None:
        click.echo("kvlatch: stopping; the report is still written (Ctrl-C again: not)", err=True)
        stop.set()
        loop.remove_signal_handler(signal.SIGINT)

    loop.add_signal_handler(signal.SIGINT, stopped)
    try:
        yield stop
    finally:
        loop.remove_signal_handler(signal.SIGINT)


def _progress(run: Run) -> None:
    counts = run.counts
    hits = "" if counts.hits is None else f"{counts.hits} in the window, "
    what = f"{counts.sent} requests, {counts.aborted} aborts, {hits}{counts.pinned} pinned"
    what += f"; {run.harm} things went wrong" if run.build.published else ""
    click.echo(f"{run.role} {run.repetition}, {run.build.name}: {what}", err=True)


# --- The report ---------------------------------------------------------------------------------------------------


_PROVED: Final = {
    pins.HOLDS: "proved: never",
    pins.NARROW: f"proved: never, with up to {ROOM.bounded.sizes.count('chunk')} chunks a request",
}
"""What a pinned proof says of a storm, which sends requests of any number of chunks."""


def proofs_of(runs: Sequence[Run]) -> dict[str, dict[str, str]]:
    """What is pinned of each stormed design, by its build's name and by the count that a property is about."""
    pinned = pins.pinned()
    found: dict[str, dict[str, str]] = {}
    for run in runs:
        said = {}
        for count, prop in laws.PROPERTY_OF.items():
            word = pinned.get((str(run.build.design), str(run.build.atomicity), 2, prop))
            if word is not None:
                said[count] = _PROVED.get(word) or f"refuted in {word.rstrip('dr')} steps"
        if said:
            found[run.build.name] = said
    return found


def command(arguments: Sequence[str]) -> str:
    """The command as it was called, without the values of headers: a report is for others to read, a key is not."""
    shown: list[str] = []
    for word in arguments:
        option, equals, value = word.partition("=")
        if equals and option == "--header":
            shown.append(f"{option}={_hidden(value)}")
        else:
            shown.append(_hidden(word) if shown[-1:] == ["--header"] else word)
    return shlex.join(["kvlatch", *shown])


def _hidden(header: str) -> str:
    return f"{header.partition(':')[0]}: ***"


def _settings(question: Question) -> dict[str, object]:
    """All that a run was made with."""
    settings = {} if question.url else attrs.asdict(_of_engines(question))
    return {**attrs.asdict(question.load), **settings}


def _earlier(path: Path) -> tuple[Run, ...]:
    """The runs of an earlier report about one build."""
    try:
        storm = from_json(json.loads(content(path, _LARGEST).decode()))
    except UnicodeDecodeError as error:
        raise Failure(f"{path}: not UTF-8: byte {error.start}", USAGE) from error
    except (ValueError, RecursionError) as error:
        raise Failure(f"{path}: {error}", USAGE) from error
    if not storm.of("alone"):
        raise Failure(f"{path} compares two builds: --against takes the report.json of one", USAGE)
    return storm.of("alone")


def _write(storm: Storm, out: Path, question: Question) -> None:
    from kvlatch.commands.storm import page
    from kvlatch.commands.storm.terminal import lines

    judged = laws.reports(storm)
    report = json.dumps(as_json(storm) | {"judgements": [one.as_json() for one in judged]})
    out.mkdir(parents=True, exist_ok=True)
    _whole(out / "report.json", report)
    _whole(out / "report.html", page.html(storm))
    for one in laws.in_question(storm):
        annotate(one.annotations(), one.page("kvlatch storm"))
    if question.as_json:
        click.echo(report)
        return
    width = shutil.get_terminal_size((100, 24)).columns
    for line in lines(storm, width):
        click.echo(line)
    for one in judged:
        click.echo()
        for line in one.verdict_lines:
            click.echo(line)
    click.echo(f"{out / 'report.html'}, {out / 'report.json'}")


def _whole(path: Path, text: str) -> None:
    """Write a file so that it is there as a whole or not at all."""
    part = path.with_suffix(".part")
    part.write_text(text, "utf-8")
    part.replace(path)
