"""The gate's own score: how many mechanical mutants of the engines their tests notice.

``python bench/gate.py [--seconds N] [--every N] [--results FILE]``. The mutants (``mutants.py``) are of the code that
stands between a row and a verdict: grounding, the evaluator, the concrete semantics, search, induction and what makes a
proof. Each is written into a copy of this checkout, and the tests that are named for its file run until one fails; they
must pass where nothing is changed. A mutant that no test notices is listed, and counts as missed without an argument in
``EQUIVALENT``.

A result is a line of the results file, with the hash of the mutant, so that a run goes on where the last one ended;
``--every N`` takes every N-th mutant of a file. Exit code 1 if a mutant is missed, 3 if none was tried.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Final

import attrs

ROOT: Final = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from bench.mutants import Mutant, mutants  # noqa: E402  # after the path

_COPIED: Final = ("spec", "proofs", "reference", "kvlatch", "tests", "bench", "pyproject.toml")


@attrs.frozen
class Part:
    """The classes and functions of a file whose mutants are tried, and the tests that have to notice them."""

    file: str
    classes: frozenset[str]
    functions: frozenset[str]
    tests: tuple[str, ...]


def _part(file: str, classes: str, functions: str, *tests: str) -> Part:
    return Part(file, frozenset(classes.split()), frozenset(functions.split()), tests)


PARTS: Final = (
    _part("proofs/verdicts.py", "Case", "earn _startable _unfounded", "proofs/test_gate.py", "proofs/test_verdicts.py"),
    _part("proofs/worlds.py", "", "scope_of scope_of_machine bounds_of fairness_of _counts _few _listed",
          "proofs/test_worlds.py", "proofs/test_gate.py"),
    _part("proofs/reach.py", "Possible", "possible", "proofs/test_reach.py"),
    _part("proofs/columns.py", "Layout Columns", "", "proofs/test_engines.py", "proofs/test_search.py"),
    _part("proofs/search.py", "Search", "explore _successors _after _next_level _cyclic", "proofs/test_search.py",
          "proofs/test_gate.py"),
    _part("proofs/induction.py", "Theory Invariant", "keep _broken _kept _holds_initially", "proofs/test_induction.py",
          "proofs/test_gate.py", "proofs/test_gaps.py"),
    _part("proofs/ranking.py", "", "parts spent greatest", "proofs/test_parametric.py", "proofs/test_induction.py"),
    _part("proofs/parametric.py", "Valuation AnyNumber", "footprint _only_here _valuation", "proofs/test_parametric.py",
          "proofs/test_gate.py"),
    _part("proofs/sorts.py", "Conditions Sorts", "_alternations mentions quantified order_of relation",
          "proofs/test_parametric.py"),
    _part("proofs/settlement.py", "Settlement", "parts", "proofs/test_parametric.py"),
    _part("proofs/solvers.py", "Answers", "discharge _by_z3 _session _by_cvc5 standalone", "proofs/test_solvers.py"),
    _part("spec/terms.py", "Field", "evaluate assign rewrite _combine fields free", "spec/test_terms.py",
          "spec/test_model.py"),
    _part("spec/steps.py", "Grounding Action",
          "_labels _indices _name _applies _actions _mine _spent _store names_any serves_several",
          "spec/test_model.py", "proofs/test_protocols.py", "proofs/test_induction.py"),
    _part("spec/model.py", "Model Fixed Concrete Machine", "build", "spec/test_model.py", "proofs/test_protocols.py"),
)  # fmt: skip

EQUIVALENT: Final[dict[str, str]] = {}
"""By file and name of a mutant, why nothing can tell it from the original."""


@attrs.frozen
class Result:
    """What became of one mutant: ``noticed`` by a failing test, or in time-out; else it survived."""

    file: str
    name: str
    digest: str
    noticed: bool


def digest(part: Part, mutant: Mutant) -> str:
    """A name for a mutant that changes with its source."""
    return hashlib.sha256(f"{part.file}\0{mutant.name}\0{mutant.source}".encode()).hexdigest()[:16]


def of(part: Part, every: int) -> list[Mutant]:
    """The mutants of a part, every N-th of them."""
    source = (ROOT / part.file).read_text(encoding="utf-8")
    return list(mutants(source, part.classes, functions=part.functions))[::every]


def known(path: Path) -> dict[str, Result]:
    """What a results file has, by digest."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {result.digest: result for result in (Result(**json.loads(line)) for line in lines)}


def noticed(copy: Path, part: Part, mutant: Mutant, limit: float) -> bool:
    """Whether the tests of a part fail, or do not end in time, where the mutant takes the place of its file."""
    target = copy / part.file
    original = target.read_text(encoding="utf-8")
    target.write_text(mutant.source, encoding="utf-8")
    tests = [str(Path("tests") / test) for test in part.tests]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    try:
        done = subprocess.run(command, cwd=copy, capture_output=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return True
    finally:
        target.write_text(original, encoding="utf-8")
    return done.returncode != 0


def _copy(folder: str) -> Path:
    for name in _COPIED:
        source, target = ROOT / name, Path(folder, name)
        if source.is_dir():
            shutil.copytree(source, target, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, target)
    return Path(folder)


def run(results: Path, *, seconds: float, every: int, limit: float) -> list[Result]:
    """Try mutants that have no result yet, a part at a time in turn, until the time is over; all results there are."""
    start = time.monotonic()
    before = known(results)
    found: list[Result] = []
    sound = set[str]()
    queues = [[(part, mutant) for mutant in of(part, every)] for part in PARTS]
    in_turn = [queue[i] for i in range(max(map(len, queues))) for queue in queues if i < len(queue)]
    with tempfile.TemporaryDirectory() as folder, results.open("a", encoding="utf-8") as file:
        copy = _copy(folder)
        for part, mutant in in_turn:
            name = digest(part, mutant)
            if name in before:
                found.append(before[name])
                continue
            if time.monotonic() - start > seconds:
                continue
            if part.file not in sound:
                unchanged = Mutant("unchanged", ast.unparse(ast.parse((ROOT / part.file).read_text(encoding="utf-8"))))
                if noticed(copy, part, unchanged, limit):
                    raise SystemExit(
                        f"{part.file}: its tests fail, or take over {limit:.0f} s, where nothing is changed"
                    )
                sound.add(part.file)
            result = Result(part.file, mutant.name, name, noticed(copy, part, mutant, limit))
            found.append(result)
            file.write(json.dumps(attrs.asdict(result)) + "\n")
            file.flush()
    return found


def report(found: list[Result]) -> list[str]:
    """The score by file, and each survivor with the argument for it, if there is one."""
    tried, caught = Counter(r.file for r in found), Counter(r.file for r in found if r.noticed)
    lines = [f"{file:<24} {caught[file]:>4} of {tried[file]:>4} noticed" for file in sorted(tried)]
    survivors = [result for result in found if not result.noticed]
    for result in survivors:
        why = EQUIVALENT.get(f"{result.file}: {result.name}", "missed")
        lines.append(f"survives: {result.file}: {result.name}  [{why}]")
    total = len(found) - len(survivors)
    return [*lines, f"{total} of {len(found)} mutants noticed" if found else "no mutant was tried"]


def main() -> int:
    """Run, print, and say by the exit code whether a mutant was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3600, help="start no mutant after so long")
    parser.add_argument("--every", type=int, default=7, help="take every N-th mutant of a file")
    parser.add_argument("--limit", type=float, default=300, help="seconds for the tests of one mutant")
    parser.add_argument("--results", type=Path, default=ROOT / "build" / "gate.jsonl")
    chosen = parser.parse_args()
    chosen.results.parent.mkdir(parents=True, exist_ok=True)
    found = run(chosen.results, seconds=chosen.seconds, every=chosen.every, limit=chosen.limit)
    print("\n".join(report(found)))
    if not found:
        return 3
    return int(any(not r.noticed and f"{r.file}: {r.name}" not in EQUIVALENT for r in found))


if __name__ == "__main__":
    sys.exit(main())
