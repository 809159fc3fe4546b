"""The gate's score counts what it has tried, goes on where it ended, and calls a survivor a survivor."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from bench import gate
from bench.gate import PARTS, Part, Result, known, of, report, run
from bench.mutants import Mutant, mutants


def test_there_are_mutants_of_every_part() -> None:
    """Each file, class and function that is named is there, and at least a hundred mutants in all."""
    counts = {part.file: len(of(part, 1)) for part in PARTS}
    assert all(counts.values())
    assert sum(len(of(part, 7)) for part in PARTS) >= 100
    for part in PARTS:
        for name in part.functions:
            source = (gate.ROOT / part.file).read_text(encoding="utf-8")
            assert f"\ndef {name}(" in source, f"{part.file}: {name}"
        assert all((gate.ROOT / "tests" / test).exists() for test in part.tests)


def test_functions_have_mutants_too() -> None:
    source = "def one(a):\n    return a == 1\n\ndef other(a):\n    return a == 2\n"
    names = [mutant.name for mutant in mutants(source, frozenset(), functions=frozenset({"one"}))]
    assert names
    assert all(name.startswith("one: ") for name in names)


def test_results_are_kept_and_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has a result is not tried again; a file that changes is."""
    part = Part("proofs/ranking.py", frozenset(), frozenset({"greatest"}), ())
    tried: list[str] = []

    def noticed(copy: Path, _: Part, mutant: Mutant, limit: float) -> bool:
        assert (copy / "kvlatch" / "spec" / "model.py").exists()
        assert limit == 5
        if mutant.name == "unchanged":
            return False
        tried.append(mutant.name)
        return "return at once" in mutant.name

    monkeypatch.setattr(gate, "PARTS", (part,))
    monkeypatch.setattr(gate, "noticed", noticed)
    results = tmp_path / "gate.jsonl"
    assert run(results, seconds=-1, every=1, limit=5) == []
    first = run(results, seconds=60, every=1, limit=5)
    assert len(first) == len(tried) == len(of(part, 1))
    assert run(results, seconds=60, every=1, limit=5) == first
    assert len(tried) == len(first)
    assert len(known(results)) == len(first)


def test_tests_that_fail_anyway_give_no_score(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the tests fail without a mutant, every mutant would count as noticed: nothing is scored."""
    monkeypatch.setattr(gate, "PARTS", PARTS[:1])
    monkeypatch.setattr(gate, "noticed", lambda *_: True)
    with pytest.raises(SystemExit, match="where nothing is changed"):
        run(tmp_path / "gate.jsonl", seconds=60, every=50, limit=5)


def test_a_survivor_is_missed_unless_there_is_an_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    caught = Result("a.py", "f: 1 is 2", "0", noticed=True)
    missed = attrs.evolve(caught, name="f: 2 is 3", digest="1", noticed=False)
    assert report([caught, missed])[-2:] == ["survives: a.py: f: 2 is 3  [missed]", "1 of 2 mutants noticed"]
    monkeypatch.setitem(gate.EQUIVALENT, "a.py: f: 2 is 3", "never read")
    assert report([missed])[-2] == "survives: a.py: f: 2 is 3  [never read]"
    assert report([]) == ["no mutant was tried"]
