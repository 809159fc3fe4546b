"""``kvlatch conform`` on published code: what a target names, and what the judge of that package answers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from kvlatch.commands.common import is_given, refuse
from kvlatch.commands.exits import USAGE, Failure
from kvlatch.commands.judgements import Report
from kvlatch.reference.laws import LAWS, NO_CRASH, Broken, Judgement, Kept, NotJudged, UnknownLaw, select
from kvlatch.reference.played import moves_of
from kvlatch.reference.published.sglang.explore import NAME as EXPLORED
from kvlatch.reference.published.sglang.explore import explore
from kvlatch.reference.published.sglang.findings import known_of
from kvlatch.reference.published.sglang.judge import examine, extract_table, judge_play
from kvlatch.reference.published.sglang.scenarios import NAMES
from kvlatch.reference.published.sglang.script_text import parse
from kvlatch.reference.published.sglang.subjects import resolve
from kvlatch.reference.published.vllm import laws as vllm_laws
from kvlatch.reference.published.vllm.scripts import PACKAGE
from kvlatch.spec.merges import Table
from kvlatch.spec.traces import SUFFIX, read


def names(target: str) -> bool:
    """Whether the target names published code: ``sglang==0.5.23``, ``./sglang``, ``sglang.whl``."""
    return "==" in target or "/" in target or target.endswith(".whl") or (bool(target) and Path(target).is_dir())


_OF_EXPLORATION: Final = ("seconds", "seed")
_OF_SGLANG: Final = ("backend", "play", *_OF_EXPLORATION)
_WITHOUT_EFFECT: Final = ("program", "profile", "cases", "sequential")
"""Options of the command that published code has no use for."""


def refuse_options(target: str, play: str | None) -> None:
    """Raises Failure if the user has set an option that has no effect on published code, or not on this package."""
    refuse(_WITHOUT_EFFECT, "on published code")
    if _parsed(target)[0] == "vllm":
        refuse(_OF_SGLANG, "on vllm")
    if play is not None:
        refuse(_OF_EXPLORATION, "with --play")


def report(target: str, backend: str, only: Sequence[str], seconds: float, seed: int, play: str | None) -> Report:
    """Judge it, and explore for ``seconds``, with random plays of that ``seed``; or judge one ``play`` (text or trace).

    Raises Failure, or what the judge of that package raises.
    """
    project, code = _parsed(target)
    try:
        match project:
            case "sglang" if play is not None:
                return _played(code, backend, only, play)
            case "sglang":
                return _sglang(code, backend, only, seconds, seed)
            case "vllm":
                return _vllm(code, only)
    except UnknownLaw as error:
        raise Failure(str(error), USAGE) from error
    raise Failure(f"{project!r} is no package that kvlatch can drive: they are sglang and vllm", USAGE)


def merge(target: str, backend: str) -> tuple[str, Table]:
    """What to call the manager, and the table of its update. Raises Failure, or what the extraction raises."""
    project, code = _parsed(target)
    if project != "sglang":
        raise Failure(f"--merge takes an adapter or sglang==VERSION, not {target!r}", USAGE)
    return f"sglang {code} {backend}", extract_table(code, backend)


def _parsed(target: str) -> tuple[str, str]:
    """The project and the code: a version or a path, with overlays behind it."""
    project, equal, version = target.partition("==")
    if equal:
        return project, version
    return "sglang", target if "/" in target else f"./{target}"


def _sglang(code: str, backend: str, only: Sequence[str], seconds: float, seed: int) -> Report:
    """The known scenarios; then, for each law that they have not broken, what exploration finds in the time."""
    subject = resolve(code)
    explored = {f"{law}/{EXPLORED}": law for law in LAWS} if seconds else {}
    chosen = select([*NAMES, *explored], only)
    judgements: list[Judgement] = []
    looked_at: dict[str, int] = {}
    if known := [name for name in chosen if name in NAMES]:
        found = examine(subject, backend, known)
        judgements += found.judgements
        looked_at = {"plays of scenarios": found.plays, "silent": found.silent, "waited for a lock": found.waited}
    broken = {one.law for one in judgements if one.verdict == "broken"}
    if laws := [explored[name] for name in chosen if name in explored and explored[name] not in broken]:
        search = explore(subject, backend, laws, seconds=seconds, seed=seed)
        judgements += search.judgements
        left_out = {f"left out, since {reason}": count for reason, count in search.left_out.items()}
        looked_at |= {"plays explored": search.plays, **left_out}
    warning = {"warning": subject.warning} if subject.warning else {}
    if subject.warning:
        click.echo(f"kvlatch: {subject.warning}", err=True)
    order = {law: number for number, law in enumerate(LAWS)}
    judgements.sort(key=lambda one: order[one.law])
    return Report(f"{subject.name} {backend}", tuple(judgements), tuple(only), looked_at, warning)


def _played(code: str, backend: str, only: Sequence[str], play: str) -> Report:
    """One play, that of a finding or of the user's own: what its end says of each law.

    A finding's trace is played on its backend unless the user names one, and judged by the law that it breaks as well.
    """
    laws = tuple(only)
    try:
        text = play
        if play.endswith(SUFFIX):
            trace = read(Path(play))
            text = moves_of(trace)
            its_backend, its_law = known_of(trace)
            backend = backend if is_given("backend") else its_backend
            laws = laws or tuple(dict.fromkeys((*LAWS, its_law)))
        script = parse(text)
    except ValueError as error:
        raise Failure(f"--play: {error}", USAGE) from error
    subject = resolve(code)
    found = judge_play(subject, backend, script, laws)
    return Report(f"{subject.name} {backend}", found.judgements, tuple(only), {"steps": len(script)})


def _vllm(version: str, only: Sequence[str]) -> Report:
    """Every law; what is left out of a report is what ``only`` does not select."""
    chosen = select([_finding_name(law) for law in vllm_laws.LAWS], only)
    _, warning = PACKAGE.fetch_any(version)
    if warning:
        click.echo(f"kvlatch: {warning}", err=True)
    found = [_finding(one) for one in vllm_laws.judge(version) if _finding_name(one.law) in chosen]
    return Report(f"vllm {version}", tuple(found), tuple(only), {}, {"warning": warning} if warning else {})


def _finding_name(law: vllm_laws.Law) -> str:
    """``pages-held/prefill``."""
    return "/".join(filter(None, (law.prop or NO_CRASH, law.scenario)))


def _finding(finding: vllm_laws.Finding) -> Judgement:
    law, scenario = finding.law.prop or NO_CRASH, finding.law.scenario
    match finding.verdict:
        case "broken":
            name = "/".join(filter(None, (law, scenario)))
            again = f"kvlatch conform vllm=={finding.version} --only {name}"
            return Judgement(law, Broken(finding.sentence, finding.text, again=again), scenario)
        case "kept" if finding.looks:
            return Judgement(law, Kept(finding.looks, "states"), scenario)
        case "kept":
            return Judgement(law, NotJudged("no state was seen that could have broken it"), scenario)
    return Judgement(law, NotJudged(finding.sentence), scenario)
