"""The result of an examination, as data: it goes from one process to another as JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Self

import attrs

from kvlatch.reference.laws import Broken, Judgement, Kept, NotJudged
from kvlatch.reference.oracle.report import Report
from kvlatch.spec.traces import SUFFIX, read, write


@attrs.frozen
class Result:
    """The judgements, with what they rest on; ``plays`` are texts of plays, by the law that each breaks."""

    judgements: tuple[Judgement, ...]
    summary: str = ""
    plays: Mapping[str, str] = attrs.field(factory=dict)
    looked_at: Mapping[str, int] = attrs.field(factory=dict)
    notes: tuple[str, ...] = ()
    complete: bool = False

    @classmethod
    def of(cls, report: Report) -> Self:
        """What a report says, without its plays' details."""
        plays = {law: str(finding.play) for law, finding in report.findings.items()}
        return cls(report.judgements, report.summary, plays, report.looked_at, report.notes, report.complete)

    def as_json(self, traces: Path | None = None) -> dict[str, object]:
        """The result for another process; traces of broken laws are left out, or put into a folder."""
        judgements = [_written(one, traces) for one in self.judgements]
        members = {field.name: getattr(self, field.name) for field in attrs.fields(Result)}
        return members | {"judgements": judgements, "plays": dict(self.plays), "looked_at": dict(self.looked_at)}

    @classmethod
    def from_json(cls, members: Mapping[str, Any], traces: Path | None = None) -> Self:
        """What :meth:`as_json` has written."""
        judgements = tuple(_read(one, traces) for one in members["judgements"])
        return cls(**{**members, "judgements": judgements, "notes": tuple(members["notes"])})


_ANSWERS: Final[Mapping[str, Callable[..., Kept | Broken | NotJudged]]] = {
    "Kept": Kept, "Broken": Broken, "NotJudged": NotJudged,
}  # fmt: skip


def _written(one: Judgement, traces: Path | None) -> list[object]:
    answer, trace = one.answer, None
    if isinstance(answer, Broken):
        if answer.trace is not None and traces is not None:
            trace = f"{one.name.replace('/', '.')}{SUFFIX}"
            write(answer.trace, traces / trace)
        answer = attrs.evolve(answer, trace=None)
    return [one.law, one.scenario, one.seconds, type(answer).__name__, attrs.asdict(answer), trace]


def _read(members: list[Any], traces: Path | None) -> Judgement:
    law, scenario, seconds, kind, fields, trace = members
    if trace is not None and traces is not None:
        fields = {**fields, "trace": read(traces / trace)}
    return Judgement(law, _ANSWERS[kind](**fields), scenario, seconds)
