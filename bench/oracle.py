"""The score of the conformance oracle: right managers that it must not accuse, wrong ones that it must find.

``python bench/oracle.py`` runs ``kvlatch conform`` with its default settings on each subject in a process of its own,
two at a time, and prints the score and every survivor. The targets: no right manager accused, each with at least eleven
laws kept within 10 s; 95 % of the wrong ones found within 20 s; 90 % of the mutants; what cannot be judged refused with
the right exit code and a line, within 15 s. Seconds are those of the processor, since what a manager waits for takes
longer on a machine with other users; a run that takes twice its limit by the clock, and a minute more, is stopped. Exit
code 0 if all targets are met by what was run, 1 if not, 2 for nothing to run.

``--resume FILE`` keeps what is done, a JSON object a line, and goes on from there; a changed subject, or a changed
oracle, is run again. ``--seconds S`` starts nothing after S seconds. ``--sample N`` draws N, the same each time.
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import attrs

ROOT: Final = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from bench.oracle_subjects import BadSubject, Expected, Subject, equivalent, subjects  # noqa: E402  # after the path

LIMITS: Final[dict[Expected, float]] = {"right": 10.0, "wrong": 20.0, "mutant": 20.0, "odd": 15.0}
"""Seconds of processor time."""
LAWS_KEPT: Final = 11
"""As many laws a right manager keeps at least: "not judged" is no praise."""
TARGETS: Final[dict[Expected, float]] = {"right": 1.0, "wrong": 0.95, "mutant": 0.90, "odd": 1.0}

NO_REPORT: Final = "no report"


# --- One run --------------------------------------------------------------------------------------


@attrs.frozen
class Outcome:
    """What ``kvlatch conform`` said of one subject: each law's verdict, and the sentence beside it."""

    name: str
    digest: str
    exit: int | None
    verdicts: dict[str, str] = attrs.field(factory=dict)
    says: dict[str, str] = attrs.field(factory=dict)
    seconds: float = 0.0
    clock: float = 0.0
    error: str = ""

    def laws(self, verdict: str) -> list[str]:
        """The laws with this verdict."""
        return [law for law, found in self.verdicts.items() if found == verdict]

    def reason(self, subject: Subject) -> str:
        """Why the subject counts against the oracle; empty if it does not."""
        broken, kept = self.laws("broken"), self.laws("kept")
        if self.exit is None:
            return f"stopped after {self.clock:.0f} s"
        if subject.expected == "odd":
            return self._odd(subject)
        if self.error and not broken:
            return f"not driven, exit {self.exit}: {self.error}"
        if self.seconds > LIMITS[subject.expected]:
            return f"took {self.seconds:.0f} s"
        if subject.expected == "right":
            if broken:
                return f"accused of {', '.join(f'{law} ({self.says[law]})' for law in broken)}"
            if len(kept) < LAWS_KEPT:
                rest = "; ".join(f"{law}: {self.says[law]}" for law in self.laws("not judged"))
                return f"only {len(kept)} laws kept, not judged are {rest}"
            return ""
        return "" if broken else f"missed, exit {self.exit}, {len(kept)} laws kept"

    def _odd(self, subject: Subject) -> str:
        """One that cannot be judged hangs by the clock, not by the processor."""
        if self.exit not in subject.exits:
            return f"exit {self.exit}, not {' or '.join(map(str, subject.exits))}: {self.error}"
        if self.clock > LIMITS["odd"]:
            return f"took {self.clock:.0f} s"
        return "no line says why" if self.exit not in (0, 1) and self.error == NO_REPORT else ""


def parsed(output: str) -> tuple[dict[str, str], dict[str, str]]:
    """The verdict on each law and the sentence beside it, from what ``conform --json`` prints.

    A law with several scenarios is broken if one is, else kept if one is. Raises ValueError for anything else.
    """
    members = json.loads(output)
    verdicts: dict[str, str] = {}
    says: dict[str, str] = {}
    worst = ["not judged", "kept", "broken"]
    for one in members["judgements"]:
        law, verdict = one["law"], one["verdict"]
        if worst.index(verdict) >= worst.index(verdicts.get(law, "not judged")):
            verdicts[law], says[law] = verdict, one.get("says", "")
    if not verdicts:
        raise ValueError("no judgement")
    return verdicts, says


def run(subject: Subject, build: str) -> Outcome:
    """Judge one subject in a folder and a process group of its own."""
    with tempfile.TemporaryDirectory(prefix="kvlatch-score-") as name:
        folder = Path(name)
        try:
            told = subject.put(folder)
        except (FileNotFoundError, subprocess.CalledProcessError) as error:
            return Outcome(subject.name, _digest(subject, build), 4, error=f"does not compile here: {error}")
        command = [sys.executable, "-m", "kvlatch", "conform", *told, "--json"]
        out, err = folder / ".stdout", folder / ".stderr"
        with out.open("wb") as stdout, err.open("wb") as stderr:
            begin = time.monotonic()
            process = subprocess.Popen(
                command, cwd=folder, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, start_new_session=True
            )
            code, seconds = _waited(process, begin + 2 * LIMITS[subject.expected] + 60)
        clock = time.monotonic() - begin
        last = err.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
        try:
            verdicts, says = parsed(out.read_text(encoding="utf-8", errors="replace"))
            problem = ""
        except (ValueError, KeyError, TypeError):
            verdicts, says, problem = {}, {}, last[0] if last else NO_REPORT
    return Outcome(subject.name, _digest(subject, build), code, verdicts, says, seconds, clock, problem)


def _waited(process: subprocess.Popen[bytes], until: float) -> tuple[int | None, float]:
    """The exit code (None if it had to be stopped), and the processor's seconds of a process and its children."""
    while time.monotonic() < until:
        pid, status, used = os.wait4(process.pid, os.WNOHANG)
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            return process.returncode, used.ru_utime + used.ru_stime
        time.sleep(0.02)  # wait4, which says how much was used, has no time limit
    os.killpg(process.pid, signal.SIGKILL)
    _, _, used = os.wait4(process.pid, 0)
    process.returncode = -signal.SIGKILL
    return None, used.ru_utime + used.ru_stime


# --- All of them ----------------------------------------------------------------------------------


def build_digest() -> str:
    """It changes with the oracle, with the catalogue and with the spec that it judges by."""
    files = [*(ROOT / "reference" / "oracle").glob("*.py"), *(ROOT / "spec").glob("*.py")]
    files += [ROOT / "reference" / "laws.py", ROOT / "kvlatch" / "commands" / "conform.py", Path(__file__)]
    return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(files))).hexdigest()[:16]


def _digest(subject: Subject, build: str) -> str:
    return f"{subject.digest}-{build}"


def kept_in(file: Path | None) -> dict[tuple[str, str], Outcome]:
    """The outcomes in a file, by name and digest; a last line that was cut off is passed over."""
    found = {}
    for line in file.read_text(encoding="utf-8").splitlines() if file is not None and file.exists() else ():
        try:
            outcome = Outcome(**json.loads(line))
        except (ValueError, TypeError):
            continue
        found[outcome.name, outcome.digest] = outcome
    return found


def outcomes(chosen: Sequence[Subject], file: Path | None, seconds: float, jobs: int = 2) -> Iterator[Outcome]:
    """The outcome of each subject as it comes; nothing is started once the seconds are over."""
    build, until = build_digest(), time.monotonic() + seconds
    done = kept_in(file)
    todo = []
    for subject in chosen:
        old = done.get((subject.name, _digest(subject, build)))
        if old is not None:
            yield old
        else:
            todo.append(subject)

    def one(subject: Subject) -> Outcome | None:
        return run(subject, build) if time.monotonic() < until else None

    with ThreadPoolExecutor(jobs) as pool:
        for outcome in pool.map(one, todo):
            if outcome is None:
                continue
            if file is not None:
                with file.open("a", encoding="utf-8") as lines:
                    lines.write(json.dumps(attrs.asdict(outcome)) + "\n")
            yield outcome


# --- The score ------------------------------------------------------------------------------------


@attrs.frozen
class Score:
    """How one kind of subject did: who counts against the oracle, each with the reason."""

    expected: Expected
    run: int
    against: dict[str, str]
    equivalent: int = 0
    by_name: int = 0

    @property
    def share(self) -> float:
        """Of those that count."""
        return 1 - len(self.against) / self.run if self.run else 1.0

    @property
    def met(self) -> bool:
        """Whether the target of its kind is reached."""
        return self.share >= TARGETS[self.expected]

    def __str__(self) -> str:
        words = {
            "right": "right managers cleared",
            "wrong": "wrong managers found",
            "mutant": "mutants found",
            "odd": "odd ones refused",
        }
        line = f"{words[self.expected]}: {self.run - len(self.against)} of {self.run} ({100 * self.share:.1f} %)"
        if self.expected == "wrong":
            line += f", {self.by_name} by the law that was expected"
        if self.equivalent:
            line += f", besides {self.equivalent} that are equivalent by argument"
        return line + ("" if self.met else f"; the target is {100 * TARGETS[self.expected]:.0f} %")


def scores(chosen: Sequence[Subject], found: Iterable[Outcome], arguments: dict[str, str]) -> list[Score]:
    """One score for each kind that was run.

    A mutant with an argument counts neither way, unless it was found: then the argument is wrong, and that is said.
    """
    by_name = {outcome.name: outcome for outcome in found}
    result = []
    for expected in LIMITS:
        mine = [subject for subject in chosen if subject.expected == expected and subject.name in by_name]
        against, named, same, counted = {}, 0, 0, 0
        for subject in mine:
            outcome = by_name[subject.name]
            reason = outcome.reason(subject)
            if subject.name in arguments:
                if not outcome.laws("broken"):
                    same += 1
                    continue
                reason = f"argued to be equivalent, and breaks {', '.join(outcome.laws('broken'))}"
            counted += 1
            named += subject.law in outcome.laws("broken")
            if reason:
                against[subject.name] = reason
        if mine:
            result.append(Score(expected, counted, against, same, named))
    return result


def report(chosen: Sequence[Subject], result: Sequence[Score], left: int) -> str:
    """The score and the survivors, for a terminal."""
    about = {subject.name: subject for subject in chosen}
    lines = []
    for score in result:
        for name, reason in score.against.items():
            subject = about[name]
            planted = f"{subject.says}; it breaks {subject.law}: {subject.run}" if subject.law else subject.says
            lines += [f"{score.expected} {name}: {reason}", f"    {planted}"]
    lines += [str(score) for score in result]
    if left:
        lines.append(f"{left} not run yet")
    return "\n".join(lines)


def select(everyone: Sequence[Subject], only: Sequence[str], sample: int | None) -> list[Subject]:
    """Those whose name or kind of subject fits a pattern, and of these a sample that is the same each time."""

    def fits(subject: Subject, pattern: str) -> bool:
        return fnmatch.fnmatchcase(subject.name, pattern) or subject.expected == pattern

    chosen = [subject for subject in everyone if not only or any(fits(subject, pattern) for pattern in only)]
    if sample is not None and sample < len(chosen):
        drawn = set(random.Random(0).sample([s.name for s in chosen], sample))  # noqa: S311  # no secret
        chosen = [subject for subject in chosen if subject.name in drawn]
    return chosen


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, and say by the exit code whether the targets are met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="a name, a pattern, or right, wrong, mutant"
    )
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), metavar="S", help="start nothing after S seconds"
    )
    parser.add_argument("--sample", type=int, metavar="N", help="draw N of them")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="keep what is done here, and go on from it")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    told = parser.parse_args(arguments)
    try:
        chosen = select(subjects(), told.only, told.sample)
    except BadSubject as error:
        print(f"bench/oracle.py: {error}", file=sys.stderr)
        return 2
    if not chosen:
        print("bench/oracle.py: no subject has such a name", file=sys.stderr)
        return 2
    found = []
    for outcome in outcomes(chosen, told.resume, told.seconds):
        found.append(outcome)
        if sys.stderr.isatty():
            print(f"\r{len(found)} of {len(chosen)}", end="", file=sys.stderr)
    result = scores(chosen, found, equivalent())
    if told.json:
        members: dict[str, Any] = {score.expected: attrs.asdict(score) | {"share": score.share} for score in result}
        print(json.dumps(members | {"left": len(chosen) - len(found)}))
    else:
        print(report(chosen, result, len(chosen) - len(found)))
    if not found:
        return 2
    return 0 if all(score.met for score in result) else 1


if __name__ == "__main__":
    sys.exit(main())
