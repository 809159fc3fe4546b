"""The gate's score counts what it has tried, goes on where it ended, and calls a survivor a survivor."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import attrs
import pytest

from bench import gate
from bench.gate import PARTS, Part, Result, known, of, report, run
from bench.mutants import Mutant, mutants


def test_there_are_mutants_of_every_part() -> None:
    """Each file, class and function that is named is there, and at least a hundred mutants among their first ones."""
    count = 0
    for part in PARTS:
        source = (gate.ROOT / part.file).read_text(encoding="utf-8")
        some = [*islice(mutants(source, part.classes, functions=part.functions), 8)]
        assert some, part.file
        count += len(some)
        for name in part.functions:
            assert f"\ndef {name}(" in source, f"{part.file}: {name}"
        for name in part.classes:
            assert f"\nclass {name}" in source, f"{part.file}: {name}"
        assert all((gate.ROOT / "tests" / test).exists() for test in part.tests)
    assert count >= 100


def test_functions_have_mutants_too() -> None:
    source = "def one(a):\n    return a == 1\n\ndef other(a):\n    return a == 2\n"
    names = [mutant.name for mutant in mutants(source, frozenset(), functions=frozenset({"one"}))]
    assert names
    assert all(name.startswith("one: ") for name in names)


def test_what_nothing_reads_is_not_changed() -> None:
    """A docstring and annotations of functions are no code; a string that is used is."""
    head = 'def one(a: tuple[int, str]) -> str:\n    """Says one."""\n'
    source = head + '    b: tuple[int, str] = (1, a[1])\n    return "one"\n'
    plain = 'def one(a):\n    pass\n    b: int = (1, a[1])\n    return "one"\n'
    assert gate._meaning(source) == gate._meaning(plain)
    assert gate._meaning(source) != gate._meaning(source.replace('return "one"', 'return "two"'))
    assert gate._meaning(source) != gate._meaning(source.replace("(1, a[1])", "(1,)"))


def test_results_are_kept_and_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has a result is not tried again; a file that changes is."""
    part = Part("proofs/ranking.py", frozenset(), frozenset({"greatest"}), ())
    tried: list[str] = []
    tests = ["as they were"]

    def noticed(copy: Path, _: Part, mutant: Mutant, limit: float, first: Sequence[str]) -> str:
        assert (copy / "kvlatch" / "spec" / "model.py").exists()
        assert limit == 5
        if mutant.name == "unchanged":
            return ""
        tried.append(mutant.name)
        assert first == (["test_a.py::test_it"] if "return at once" in tried[0] and len(tried) > 1 else [])
        return "test_a.py::test_it[1]" if "return at once" in mutant.name else ""

    monkeypatch.setattr(gate, "PARTS", (part,))
    monkeypatch.setattr(gate, "noticed", noticed)
    monkeypatch.setattr(gate, "tests_of", lambda _: tests[0])
    results = tmp_path / "gate.jsonl"
    assert run(results, seconds=-1, every=1, limit=5) == []
    first = run(results, seconds=3600, every=1, limit=5)
    assert len(first) == len(tried) == len(of(part, 1))
    assert run(results, seconds=3600, every=1, limit=5) == first
    assert len(tried) == len(first)
    assert len(known(results)) == len(first) + 1  # with the file as it is
    tests[:] = ["changed"]
    assert len(run(results, seconds=3600, every=1, limit=5)) == len(first)
    assert len(tried) == 2 * len(first) - sum(one.noticed for one in first)


def test_tests_that_fail_anyway_give_no_score(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the tests fail without a mutant, every mutant would count as noticed: nothing is scored."""
    monkeypatch.setattr(gate, "PARTS", PARTS[:1])
    monkeypatch.setattr(gate, "noticed", lambda *_: "test_x.py::test_y")
    with pytest.raises(SystemExit, match=r"where nothing is changed, this fails: test_x\.py::test_y"):
        run(tmp_path / "gate.jsonl", seconds=3600, every=50, limit=5)


def test_a_survivor_is_missed_unless_there_is_an_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    caught = Result("a.py", "f: 1 is 2", "0", "7", by="test_a.py::test_one")
    missed = attrs.evolve(caught, name="f: 2 is 3", digest="1", by="")
    assert report([caught, missed])[0] == "a.py: f: 1 is 2  [test_a.py::test_one]"
    assert report([caught, missed])[-2:] == ["survives: a.py: f: 2 is 3  [missed]", "1 of 2 mutants noticed"]
    monkeypatch.setitem(gate.EQUIVALENT, "a.py: f: 2 is 3", "never read")
    assert report([missed])[-2] == "survives: a.py: f: 2 is 3  [never read]"
    assert report([]) == ["no mutant was tried"]
