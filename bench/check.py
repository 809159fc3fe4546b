"""The score of the log judge: healthy logs that it must not accuse, and planted faults that it must find.

``python bench/check.py`` writes random healthy logs in every form (what is left out, how things are named, in which
order lines come), and logs with one fault among healthy rooms, judges each as ``kvlatch check`` does and prints what
it got wrong. A healthy log is wrongly judged if any law is called broken or the log is refused; a faulty one if no law
is; that another law is called broken is counted apart. Exit code 0 if no healthy log is accused and 95 % of the faults
are found.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import attrs

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.subjects.logs.faults import FAULTS, Fault, keys
from bench.subjects.logs.forms import FORMS, KEEPS_FAULTS, Form, written
from bench.subjects.logs.healthy import healthy
from kvlatch.reference.logs.check import check
from kvlatch.reference.logs.events import LogError

TARGET: Final = 0.95


@attrs.frozen
class Case:
    """A log: the fault that is planted in it, if any, and its form."""

    seed: int
    form: Form
    fault: Fault | None = None
    rooms: int = 4

    @property
    def name(self) -> str:
        """``healthy/whole/3``, ``pinned/bare/3``."""
        return f"{self.fault.name if self.fault else 'healthy'}/{self.form.__name__}/{self.seed}"

    def text(self) -> bytes | None:
        """The file; None if the fault cannot be planted in this run."""
        draw = random.Random(self.seed)  # noqa: S311  # no secret
        events = healthy(self.seed, self.rooms)
        if self.fault is not None:
            chosen = list(dict.fromkeys(keys(events)))
            draw.shuffle(chosen)
            planted = (self.fault.planted(events, key) for key in chosen)
            found = next((events for events in planted if events is not None), None)
            if found is None:
                return None
            events = found
        return written(self.form(events, draw), packed=self.seed % 5 == 0)


@attrs.frozen
class Result:
    """What ``kvlatch check`` said of a case."""

    case: Case
    exit: int
    broken: dict[str, str]
    error: str = ""

    def reason(self) -> str:
        """What is wrong with it; empty if nothing is."""
        if self.exit not in (0, 1, 3):
            return f"exit {self.exit}: {self.error}"
        if self.case.fault is None:
            return "; ".join(f"{law}: {says}" for law, says in self.broken.items())
        return "" if self.broken else f"missed, exit {self.exit}"

    @property
    def named(self) -> bool:
        """Whether the law that is broken is among those that were called so."""
        return self.case.fault is not None and self.case.fault.law in self.broken


def judged(case: Case, folder: Path) -> Result | None:
    """Ask what ``kvlatch check`` asks; None if there is no such case."""
    text = case.text()
    if text is None:
        return None
    log = folder / f"{case.name.replace('/', '-')}.ndjson{'.gz' if text[:1] == bytes([0x1F]) else ''}"
    log.write_bytes(text)
    try:
        report = check(log)
    except LogError as error:
        return Result(case, error.exit_code, {}, str(error))
    broken = {one.law: str(one.answer) for one in report.judgements if one.verdict == "broken"}
    return Result(case, report.exit_code, broken, report.error or "")


def cases(seeds: int, only: Sequence[str]) -> Iterator[Case]:
    """Healthy ones in every form, then each fault in the forms that keep it."""
    for seed in range(seeds):
        yield from (Case(seed, form) for form in FORMS if not only or "healthy" in only)
    for seed in range(max(1, seeds // 5)):
        for fault in FAULTS:
            if not only or fault.name in only:
                yield from (Case(seed, form, fault) for form in KEEPS_FAULTS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, and say by the exit code whether the targets are met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--seeds", type=int, default=10, help="healthy runs in each form, and five times as many as faulty"
    )
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="healthy, or the name of a fault")
    parser.add_argument("--keep", type=Path, metavar="DIRECTORY", help="leave the logs there")
    told = parser.parse_args(arguments)
    chosen = list(cases(told.seeds, told.only))
    if not chosen:
        print(f"bench/check.py: they are called healthy, {', '.join(fault.name for fault in FAULTS)}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="kvlatch-check-") as name:
        folder = told.keep or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        results = [result for case in chosen if (result := judged(case, folder)) is not None]
    wrong = {result.case.name: result.reason() for result in results if result.reason()}
    for case, reason in wrong.items():
        print(f"{case}: {reason}")
    well = [result for result in results if result.case.fault is None]
    ill = [result for result in results if result.case.fault is not None]
    accused = sum(bool(result.reason()) for result in well)
    found = sum(not result.reason() for result in ill)
    print(f"healthy logs cleared: {len(well) - accused} of {len(well)}")
    print(f"faults found: {found} of {len(ill)}, {sum(result.named for result in ill)} under the law that is broken")
    return 0 if not accused and found >= TARGET * len(ill) else 1


if __name__ == "__main__":
    sys.exit(main())
