"""The gate's own score: how many mechanical mutants of the engines their tests notice.

``python bench/gate.py [--seconds N] [--every N] [--results FILE]``. The mutants (``mutants.py``) are of the code that
stands between a row and a verdict: grounding, the evaluator, the concrete semantics, search, induction and what makes
a proof. Each is written into a copy of this checkout, and the tests that are named for its file run until one fails,
those first that have noticed most so far; they must pass where nothing is changed. Each mutant is listed with the
test that noticed it; one that no test notices counts as missed without an argument in ``EQUIVALENT``.

A result is a line of the results file, with the hash of the mutant, so that a run goes on where the last one ended;
what has survived is tried again once its tests have changed. ``--every N`` takes every N-th mutant of a file. Exit
code 1 if a mutant is missed, 3 if none was tried.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

import attrs

ROOT: Final = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from bench.mutants import Mutant, mutants  # noqa: E402  # after the path

_PROMISING: Final = 5
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

UNCHANGED: Final = "unchanged"
"""The name of what is no mutant: the tests of a part must pass on it."""

EQUIVALENT: Final[dict[str, str]] = {
    "proofs/columns.py: column: without 'return np.full(len(packed), labels[0], np.uint8)'": (
        "a number modulo one is zero, so the lines below give the same column, only slower"
    ),
}
"""By file and name of a mutant, why nothing can tell it from the original."""


@attrs.frozen
class Result:
    """What became of one mutant: ``by`` is the test that failed, or says that they did not end; "" if it survived.

    ``digest`` is a hash of the mutant, ``tests`` one of the tests.
    """

    file: str
    name: str
    digest: str
    tests: str
    by: str

    @property
    def noticed(self) -> bool:
        """Some test failed, or none came to its end in time."""
        return bool(self.by)


def digest(part: Part, mutant: Mutant) -> str:
    """A name for a mutant that changes with its source."""
    return hashlib.sha256(f"{part.file}\0{mutant.name}\0{mutant.source}".encode()).hexdigest()[:16]


def tests_of(part: Part) -> str:
    """A name for the tests of a part that changes with them."""
    texts = [(ROOT / "tests" / test).read_bytes() for test in part.tests]
    return hashlib.sha256(b"\0".join(texts)).hexdigest()[:16]


def unchanged(part: Part) -> Mutant:
    """The file as it is, in the spelling of its mutants."""
    return Mutant(UNCHANGED, ast.unparse(ast.parse((ROOT / part.file).read_text(encoding="utf-8"))))


def of(part: Part, every: int) -> list[Mutant]:
    """The mutants of a part, every N-th of them, but for those that change a docstring or an annotation alone."""
    source = (ROOT / part.file).read_text(encoding="utf-8")
    same = _meaning(source)
    some = islice(mutants(source, part.classes, functions=part.functions), 0, None, every)
    return [mutant for mutant in some if _meaning(mutant.source) != same]


def _meaning(source: str) -> str:
    """What Python runs of a module: nothing here reads docstrings or the annotations of functions."""
    tree = ast.parse(source)
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        function.returns = None
        for argument in ast.walk(function.args):
            if isinstance(argument, ast.arg):
                argument.annotation = None
        body = function.body[ast.get_docstring(function) is not None :]
        function.body = [line for line in body if not isinstance(line, ast.Pass)]
        for node in ast.walk(function):
            if isinstance(node, ast.AnnAssign):
                node.annotation = ast.Constant(None)
    return ast.dump(tree)


def known(path: Path) -> dict[str, Result]:
    """What a results file has, by digest."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {result.digest: result for result in (Result(**json.loads(line)) for line in lines)}


def noticed(copy: Path, part: Part, mutant: Mutant, limit: float, first: Sequence[str] = ()) -> str:
    """The test of a part that fails where the mutant takes the place of its file; "" if all pass in time.

    The tests in ``first`` run before the others.
    """
    target = copy / part.file
    original = target.read_text(encoding="utf-8")
    target.write_text(mutant.source, encoding="utf-8")
    tests = [str(Path("tests") / test) for test in (*first, *part.tests)]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    try:
        done = subprocess.run(command, cwd=copy, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return f"no end in {limit:.0f} s"
    finally:
        target.write_text(original, encoding="utf-8")
    if done.returncode == 0:
        return ""
    failed = re.search(r"^(?:FAILED|ERROR) (?:tests/)?(\S+)", done.stdout, re.MULTILINE)
    return failed[1] if failed else f"pytest ended with {done.returncode}"


def promising(part: Part, found: Iterable[Result]) -> list[str]:
    """The tests that have noticed most mutants of this part so far."""
    counts = Counter(one.by.partition("[")[0] for one in found if one.file == part.file and "::" in one.by)
    return [test for test, _ in counts.most_common(_PROMISING)]


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
    queues = [[(part, mutant) for mutant in of(part, every)] for part in PARTS]
    in_turn = [queue[i] for i in range(max(map(len, queues))) for queue in queues if i < len(queue)]
    with tempfile.TemporaryDirectory() as folder, results.open("a", encoding="utf-8") as file:
        copy = _copy(folder)

        def stands(part: Part, mutant: Mutant) -> bool:
            """There is a result: the mutant was noticed, or survived the tests that there are now."""
            result = before.get(digest(part, mutant))
            return result is not None and (result.noticed or result.tests == tests_of(part))

        def judge(part: Part, mutant: Mutant) -> None:
            by = noticed(copy, part, mutant, limit, promising(part, found))
            if by and mutant.name == UNCHANGED:
                raise SystemExit(f"{part.file}: where nothing is changed, this fails: {by}")
            result = Result(part.file, mutant.name, digest(part, mutant), tests_of(part), by)
            before[result.digest] = result
            file.write(json.dumps(attrs.asdict(result)) + "\n")
            file.flush()

        for part, mutant in in_turn:
            if not stands(part, mutant) and time.monotonic() - start <= seconds:
                if not stands(part, unchanged(part)):
                    judge(part, unchanged(part))
                judge(part, mutant)
            if stands(part, mutant):
                found.append(before[digest(part, mutant)])
    return found


def report(found: list[Result]) -> list[str]:
    """Each mutant with the test that noticed it, the score by file, and the survivors, each with its argument."""
    tried, caught = Counter(r.file for r in found), Counter(r.file for r in found if r.noticed)
    lines = [f"{result.file}: {result.name}  [{result.by}]" for result in found if result.noticed]
    lines += [f"{file:<24} {caught[file]:>4} of {tried[file]:>4} noticed" for file in sorted(tried)]
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
