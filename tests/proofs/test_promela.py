"""The Promela model: well formed, and in SPIN's hands the same machine as in those of the explicit search."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

from kvlatch.proofs.promela import SpinFailed, missing, promela, spin
from kvlatch.proofs.search import explore
from kvlatch.spec.designs import DESIGNS
from kvlatch.spec.model import Instance, Machine, build
from kvlatch.spec.properties import BY_NAME, PROPERTIES
from kvlatch.spec.schema import Atomicity, Property

SMALLEST = Instance(workers=1, chunks=1, requests=1)
LARGER = Instance(workers=2, chunks=2, requests=2, rooms=2)
BENCH = Path(__file__).parents[2] / "bench" / "spin.py"
KEYWORDS = set(
    re.findall(
        r"\w+",
        """active assert atomic bit bool break byte c_code c_decl c_expr c_state c_track chan d_step D_proctype do else
        empty enabled end eval false fi for full get_priority goto hidden if in init inline int len local ltl mtype
        nempty never nfull nonprogress notrace np_ od of pc_value pid printf printm priority proctype provided return
        run select set_priority short show skip timeout trace true typedef unless unsigned xr xs""",
    )
)

NO_SPIN = missing()
needs_spin = pytest.mark.skipif(NO_SPIN is not None, reason=NO_SPIN or "")
machines = pytest.mark.parametrize("instance", [SMALLEST, LARGER], ids=["smallest", "larger"])


def machine(design: str, level: Atomicity, instance: Instance = SMALLEST) -> Machine:
    return Machine.of(DESIGNS[design], level, "disorderly" if instance.requests > 1 else "orderly", instance)


@machines
def test_every_action_is_one_option(instance: Instance) -> None:
    """Each action has one option, in the order of the rows, under its label."""
    on = machine("latch", "cas", instance)
    text = promela(on)
    assert re.findall(r":: d_step \{  /\* (.*) \*/", text) == [action.label for action in on.model.actions]
    assert text.count("d_step") == text.count("::") == len(on.model.actions)


@machines
@pytest.mark.parametrize("prop", PROPERTIES, ids=[prop.name for prop in PROPERTIES])
def test_a_property_is_one_more_option(instance: Instance, prop: Property) -> None:
    """A property adds the line with its assertion and changes nothing else."""
    on = machine("fix-a", "split", instance)
    text = promela(on, prop)
    [added] = [line for line in text.splitlines() if "assert" in line]
    assert f"/* breaks {prop.name} */" in added
    assert text.replace(f"{added}\n", "") == promela(on)


@machines
def test_the_text_is_well_formed(instance: Instance) -> None:
    """Brackets match, every name is declared once and is no keyword, every scratch byte is there and set back to 0."""
    text = re.sub(r"/\*.*?\*/", "", promela(machine("latch", "cas", instance), BY_NAME["settlement"]))
    unmatched = re.sub(r"[^(){}[\]]", "", text)
    while unmatched != (unmatched := re.sub(r"\(\)|\{\}|\[\]", "", unmatched)):
        pass
    assert not unmatched
    declared = re.findall(r"^(?:byte|#define) (\w+)", text, re.MULTILINE)
    assert len(declared) == len(set(declared))
    assert not KEYWORDS & set(declared)
    assert set(re.findall(r"[A-Za-z_]\w*", text)) - KEYWORDS - {"define", "protocol"} == set(declared)
    [size] = re.findall(r"^byte new\[(\d+)\]", text, re.MULTILINE)
    for option in text.split("::")[1:-1]:
        slots = re.findall(r"^ +new\[(\d+)\] = ", option, re.MULTILINE)
        assert slots == [str(slot) for slot in range(len(slots))]
        assert re.findall(r" = new\[(\d+)\]; new\[\1\] = 0;", option) == slots
        assert len(slots) <= int(size)


def test_what_never_changes_is_no_variable() -> None:
    """In a life of one request its generation is a constant; what changes is a byte."""
    lines = promela(machine("fix-a", "split")).splitlines()
    assert "#define gen 0  /* always first */" in lines
    assert "byte latch;  /* 0 none, 1 Failed, 2 Success */" in lines


def test_a_model_with_open_switches_is_refused() -> None:
    """Promela knows no switches: a design must have been chosen."""
    with pytest.raises(TypeError, match="only the model of one design"):
        promela(attrs.evolve(machine("latch", "cas"), model=build(SMALLEST)))


@needs_spin
@pytest.mark.parametrize(
    ("design", "level", "instance", "prop", "length"),
    [
        ("fix-a", "split", SMALLEST, "terminal-sticky", 15),
        ("latch", "cas", SMALLEST, "pages-held", None),
        ("seed-control", "locked", Instance(workers=1, chunks=2, requests=1), "settlement", 15),
    ],
)
def test_spin_finds_the_same(design: str, level: Atomicity, instance: Instance, prop: str, length: int | None) -> None:
    """As many states, as deep, and a shortest counterexample as long as those of the explicit search."""
    on = machine(design, level, instance)
    ours = explore(on, [BY_NAME[prop]])
    theirs = spin(promela(on, BY_NAME[prop]))
    assert (theirs.states, theirs.depth) == (ours.states, len(ours.levels) - 2)
    assert theirs.length == ours.length(prop) == length


def weaker_guard(text: str) -> str:
    """Pages may be released in any phase."""
    return text.replace("(scheduler == 0 && phase == 6) ->", "scheduler == 0 ->")


def other_merge(text: str) -> str:
    """Failed does not replace WaitingForInput."""
    return text.replace("_seen == 3 -> 1 : ", "_seen == 3 -> 3 : ")


def one_after_another(text: str) -> str:
    """Values are stored as soon as they are computed, the last one first; the others are computed from it."""

    def change(step: re.Match[str]) -> str:
        values = re.findall(r"^ +new\[\d+\] = (.*);", step[0], re.MULTILINE)
        targets = re.findall(r"^ +(\w+) = ", step[0], re.MULTILINE)
        return "".join(f"{target} = {value};\n" for target, value in [*zip(targets, values, strict=True)][::-1])

    return re.sub(r"^( +(new\[|\w+ = new).*\n)+", change, text, flags=re.MULTILINE)


@needs_spin
@pytest.mark.parametrize("wrong", [weaker_guard, other_merge, one_after_another])
def test_a_wrong_translation_is_noticed(wrong: Callable[[str], str]) -> None:
    """A guard, a merge or an order that is not the machine's gives another number of states."""
    on = machine("fix-a", "split")
    text = promela(on)
    assert wrong(text) != text
    assert spin(wrong(text)).states != explore(on, []).states


@needs_spin
@pytest.mark.parametrize("model", ["nonsense", "active proctype p() { assert(false); false }"])
def test_no_answer_is_no_figure(model: str) -> None:
    """A model that SPIN does not accept, or that stops where it should not, raises."""
    with pytest.raises(SpinFailed):
        spin(model)


def test_a_missing_spin_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is missing is said, and another program of that name is not mistaken for the model checker."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert missing() == "spin is not installed (Debian: apt-get install spin)"
    for tool in ("spin", "gcc"):
        (tmp_path / tool).write_text("#!/bin/sh\necho spin 2.0\n")
        (tmp_path / tool).chmod(0o755)
    assert missing() == f"{tmp_path / 'spin'} is not the model checker: it calls itself spin 2.0"


def test_the_benchmark_says_that_spin_is_missing() -> None:
    """Without SPIN it prints why, and exits with 4."""
    nowhere = os.environ | {"PATH": ""}
    done = subprocess.run([sys.executable, BENCH], env=nowhere, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (4, "")
    assert done.stdout == "not compared with SPIN: spin is not installed (Debian: apt-get install spin)\n"
