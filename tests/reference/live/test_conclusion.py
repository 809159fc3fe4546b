"""The conclusion of a storm, rule by rule, on records made by hand."""

from __future__ import annotations

import attrs
import pytest

from kvlatch.reference.live.conclusion import Refused, alone, compare, fisher, same_build
from kvlatch.reference.live.records import Build, Counts, Death, Phase, Role, Run

COUNTS = Counts(
    sent=100, completed=30, failed=0, aborted=70, unaccounted=0, pinned=0, hits=30, lost_failures=0, ghosts=0,
    released_early=0, wrong_digests=0,
)  # fmt: skip


def run(role: Role, pinned: int, hits: int | None = 30, mark: str = "") -> Run:
    """A run of a role's build with these figures."""
    mark = mark or role
    names = ("baseline", "storm", "drain")
    phases = tuple(Phase(name, float(at), at + 1.0, mark) for at, name in enumerate(names))  # type: ignore[arg-type]
    return Run(
        role=role, repetition=1, build=Build(f"{role} build", None, None, mark), phases=phases, gauge=(), requests=(),
        counts=attrs.evolve(COUNTS, pinned=pinned, hits=hits), metric=None, idle=0.0, longest=1.0, deadline=3.0,
        drained=None, pinned=(), log=None,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("table", "p"),
    [
        ((4, 4, 0, 4), 1 / 70),
        ((3, 4, 0, 4), 1 / 14),
        ((3, 3, 0, 3), 1 / 20),
        ((1, 1, 0, 1), 1 / 2),
        ((0, 4, 0, 4), 1.0),
        ((4, 4, 4, 4), 1.0),
        ((3, 4, 1, 4), 17 / 70),  # the lady tasting tea (Fisher, 1935)
    ],
)
def test_fisher_counts_tables(table: tuple[int, int, int, int], p: float) -> None:
    """The test gives the share of tables with these sums that are as extreme, or more."""
    assert fisher(*table) == pytest.approx(p)


@pytest.mark.parametrize(
    ("control", "treatment", "conclusion"),
    [
        ([3, 1, 2, 4], [0, 0, 0, 0], "treatment fixes it"),
        ([3, 1, 2, 4, 1, 1, 2, 2], [0, 0, 0, 0, 0, 0, 0, 1], "treatment helps"),
        ([3, 1, 0, 4], [0, 0, 0, 0], "inconclusive"),
        ([3], [0], "inconclusive"),
        ([0, 0, 0, 0], [0, 0, 0, 0], "no difference"),
        ([3, 1, 2, 4], [1, 2, 1, 1], "no difference"),
        ([0, 0, 0, 0], [1, 2, 1, 1], "treatment is worse"),
    ],
)
def test_two_builds_are_compared_by_the_runs_that_pinned(
    control: list[int], treatment: list[int], conclusion: str
) -> None:
    """A conclusion needs a difference that chance rarely makes; the sentence has the facts."""
    found, sentence, p = compare([run("control", n) for n in control], [run("treatment", n) for n in treatment])
    assert found == conclusion
    assert p is not None
    for fact in (f"in {sum(n > 0 for n in control)} of {len(control)} runs", f"of {len(treatment)}"):
        assert fact in sentence


@pytest.mark.parametrize(("hits", "said"), [(0, "no abort"), (1, "only 4 aborts"), (4, "only 16 aborts"), (5, None)])
def test_a_clean_build_is_cleared_by_hits_alone(hits: int, said: str | None) -> None:
    """However clean the treatment is: where the race hardly fired, nothing is concluded. Twenty hits are enough."""
    found = compare([run("control", 3)] * 4, [run("treatment", 0, hits)] * 4)
    if said is None:
        assert found[0] == "treatment fixes it"
    else:
        assert found == ("inconclusive", f"Inconclusive: {said} landed inside the window on treatment build.", None)


def test_a_build_that_pinned_was_hit() -> None:
    """Of the control it is the pins that count; if it has none either, both need their hits."""
    assert compare([run("control", 3, 1)] * 4, [run("treatment", 0)] * 4)[0] == "treatment fixes it"
    conclusion, sentence, _ = compare([run("control", 0, 0)], [run("treatment", 0, 1)])
    assert conclusion == "inconclusive"
    assert "no abort landed inside the window on control build and a single abort" in sentence


def test_a_deployment_whose_hits_are_unknown_is_judged_by_its_queue() -> None:
    """What cannot be counted is not taken for 0."""
    conclusion, sentence, _ = compare([run("control", 3, None)] * 4, [run("treatment", 0, None)] * 4)
    assert conclusion == "treatment fixes it"
    assert "window" not in sentence


def test_like_is_not_compared_with_like() -> None:
    """Two builds with one fingerprint are one build, whatever they are called."""
    with pytest.raises(Refused, match=r"are the same build \(x\): there is nothing to compare"):
        compare([run("control", 3, mark="x")], [run("treatment", 0, mark="x")])


def test_a_build_that_changes_is_not_judged() -> None:
    """Neither between two runs nor between two phases of one."""
    with pytest.raises(Refused, match="changed while it was stormed"):
        same_build([run("alone", 0, mark="x"), run("alone", 0, mark="y")])
    one = run("alone", 0, mark="x")
    moved = attrs.evolve(one, phases=(*one.phases[:2], attrs.evolve(one.phases[2], fingerprint="z")))
    with pytest.raises(Refused, match=r"x and z"):
        same_build([moved])


@pytest.mark.parametrize(
    ("pinned", "hits", "conclusion"),
    [(2, 30, "pins"), (2, 0, "pins"), (0, 20, "drains"), (0, 19, "inconclusive"), (0, None, "drains")],
)
def test_one_build_by_itself(pinned: int, hits: int | None, conclusion: str) -> None:
    """It pins, or drains, or the race never fired."""
    found, sentence = alone([run("alone", pinned, hits)])
    assert found == conclusion
    assert "alone build" in sentence


def upstream(role: Role, deaths: int = 0, **counts: int) -> Run:
    """A run of published code with these figures."""
    of = run(role, 0, hits=counts.pop("hits", 0))
    return attrs.evolve(
        of,
        build=attrs.evolve(of.build, published=True),
        counts=attrs.evolve(of.counts, **{"leaks": 0, "unsettled": 0, "ghosts": 0, "aborted": 70, **counts}),
        deaths=(Death("prefill", "bootstrap", "AssertionError: foreign", "nixl/conn.py:2349"),) * deaths,
    )


def test_published_code_is_compared_kind_by_kind() -> None:
    """A fix is not denied for a fault that it leaves; what it leaves, and what nobody can tell apart, is named."""
    control = [upstream("control", lost_failures=3, ghosts=2, leaks=1), *[upstream("control", lost_failures=1)] * 3]
    treatment = [upstream("treatment", leaks=1)] * 4
    conclusion, sentence, p = compare(control, treatment)
    assert conclusion == "treatment helps"
    assert p == pytest.approx(1 / 70)
    assert "fewer: lost failures 6 in 4 of 4 runs against 0 in 0 of 4 runs (p = 0.014)" in sentence
    assert "not told apart: ghosts 2 in 1 of 4 runs against 0 in 0 of 4 runs" in sentence
    assert compare(control, [upstream("treatment")] * 4)[0] == "treatment fixes it"
    conclusion, sentence, _ = compare([upstream("control")] * 4, [upstream("treatment", deaths=1)] * 4)
    assert conclusion == "treatment is worse"
    assert "more: dead threads 0 in 0 of 4 runs against 4 in 4 of 4 runs" in sentence
    assert compare([upstream("control")] * 4, [upstream("treatment")] * 4)[0] == "no difference"


def test_published_code_by_itself() -> None:
    """Whatever is left of a request is said, and who died; a clean build needs clients that hung up, not hits."""
    left = [upstream("alone", deaths=1, unaccounted=20, unsettled=2), upstream("alone", ghosts=1)]
    conclusion, sentence = alone(left)
    assert conclusion == "leaves"
    assert sentence == (
        "alone build left 2 requests that an engine still holds, 20 requests without an ending, 1 ghost, "
        "1 dead thread; prefill's bootstrap thread died of AssertionError: foreign (nixl/conn.py:2349)."
    )
    assert alone([upstream("alone")])[0] == "drains"
    assert alone([upstream("alone", aborted=19)]) == (
        "inconclusive",
        "Inconclusive: only 19 clients of alone build hung up.",
    )
