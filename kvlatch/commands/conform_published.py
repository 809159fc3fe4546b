"""``kvlatch conform`` on published code: which package a target names, and what its judge answers."""

from __future__ import annotations

from collections.abc import Sequence

from kvlatch.commands.exits import USAGE, Failure
from kvlatch.commands.judgements import Report
from kvlatch.reference.laws import NO_CRASH, Broken, Judgement, Kept, NotJudged
from kvlatch.reference.published.sglang import laws as sglang_laws
from kvlatch.reference.published.vllm import laws as vllm_laws
from kvlatch.reference.story import Line, Story, text
from kvlatch.spec.merges import Table


def names(target: str) -> bool:
    """Whether the target names published code, as in ``sglang==0.5.23``."""
    return "==" in target


def report(target: str, backend: str, only: Sequence[str]) -> Report:
    """Judge it. Raises Failure, or what the judge of that package raises."""
    project, _, version = target.partition("==")
    match project:
        case "sglang":
            subject = f"sglang {version} {backend}"
            found = [_sglang(subject, one) for one in sglang_laws.judge(version, backend, only)]
        case "vllm":
            if unknown := [law for law in only if law not in vllm_laws.BY_LAW]:
                raise Failure(f"no law is called {unknown[0]!r}: they are {', '.join(vllm_laws.BY_LAW)}", USAGE)
            subject = f"vllm {version}"
            found = [_vllm(one) for one in vllm_laws.judge(version) if one.law.name in only or not only]
        case _:
            raise Failure(f"{project!r} is no package that kvlatch can drive: they are sglang and vllm", USAGE)
    return Report(subject, tuple(found))


def merge(target: str, backend: str) -> tuple[str, Table]:
    """What to call the manager, and the table of its update. Raises Failure, or what the extraction raises."""
    project, _, version = target.partition("==")
    if project != "sglang":
        raise Failure(f"--merge takes an adapter or sglang==VERSION, not {target!r}", USAGE)
    return f"sglang {version} {backend}", sglang_laws.extract_table(version, backend)


def _sglang(subject: str, finding: sglang_laws.Finding) -> Judgement:
    law = sglang_laws.LAW[finding.law].prop
    scenario = finding.law.removeprefix(f"{law}-") if law and law != finding.law else ""
    return Judgement(
        law or NO_CRASH, _answer(finding.verdict, finding.sentence, _text(subject, finding)), scenario or finding.law
    )


def _vllm(finding: vllm_laws.Finding) -> Judgement:
    law = finding.law.prop or NO_CRASH
    scenario = finding.law.name.removeprefix(law).removeprefix("-")
    return Judgement(law, _answer(finding.verdict, finding.sentence, finding.text), scenario)


def _answer(verdict: str, sentence: str, run: str) -> Kept | Broken | NotJudged:
    match verdict:
        case "broken":
            return Broken(sentence, run)
        case "kept":
            return Kept(1, "scenario")
    return NotJudged(sentence)


def _text(subject: str, finding: sglang_laws.Finding) -> str:
    """The real run as a table."""
    lines = tuple(
        Line(number, row.thread, row.op, row.status, row.remark.removeprefix("polls "), "else")
        for number, row in enumerate(finding.trace, 1)
    )
    return text(Story(f"{subject}; {finding.law}", lines, len(lines) or None, f"{finding.sentence}."))
