"""Traces played again: offline on a manager of our own making, and marked `network` on published wheels."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import attrs
import pytest

from kvlatch.commands.replay import CannotReplay, on_sglang, on_spec
from kvlatch.proofs.search import Search, explore
from kvlatch.reference.published.sglang import scripts as sglang
from kvlatch.reference.published.sglang.scripts import Observation, Step
from kvlatch.spec.designs import DESIGNS
from kvlatch.spec.merges import KEEP, Merge, failed_else_max, first_terminal_wins
from kvlatch.spec.model import Instance, Machine
from kvlatch.spec.properties import BY_NAME, PROPERTIES
from kvlatch.spec.schema import Atomicity, Network
from kvlatch.spec.status import ABSENT, KVPoll
from kvlatch.spec.traces import Trace, TraceError


@functools.cache
def search(design: str, atomicity: Atomicity, network: Network, instance: Instance) -> Search:
    return explore(Machine.of(DESIGNS[design], atomicity, network, instance), PROPERTIES)


@functools.cache
def found(
    design: str,
    atomicity: Atomicity,
    prop: str,
    network: Network = "orderly",
    instance: Instance = Instance(),  # noqa: B008 - frozen
) -> Trace:
    run = search(design, atomicity, network, instance).trace(prop)
    return Trace.of(DESIGNS[design], atomicity, network, instance, BY_NAME[prop], run)


LOCKED = found("seed-control", "locked", "terminal-sticky")
SPLIT = found("fix-a", "split", "terminal-sticky")


# --- On the spec ----------------------------------------------------------------------------------


def test_on_spec() -> None:
    """On the spec a replay counts the steps and says whether the property is broken; a false trace is refused."""
    result = on_spec(LOCKED)
    assert (result.steps, result.violated) == (12, True)
    assert result.sentence.startswith(
        "seed-control, locked: all 12 steps are as the spec says; terminal-sticky is broken"
    )
    assert result.as_json()["violated"] is True
    assert not on_spec(attrs.evolve(LOCKED, prop=None)).violated
    with pytest.raises(TraceError):
        on_spec(attrs.evolve(LOCKED, design="fix-a"))


# --- Offline: a table of our own in the place of upstream -----------------------------------------


@attrs.define
class Table:
    """Plays scripts as `sglang.run` would, with the merge that it is given, and keeps the last script."""

    merge: Merge
    script: Sequence[Step] = ()

    def run(
        self, version: str, backend: str, script: Sequence[Step], *, repeat: int, timeout: float
    ) -> list[list[Observation]]:
        self.script = script
        return [self.play(script) for _ in range(repeat)]

    def play(self, script: Sequence[Step]) -> list[Observation]:
        entry: KVPoll | None = None
        held: dict[str, KVPoll | None] = {}
        seen = []
        for step in script:
            writes = {"create": "Bootstrapping", "abort": "Failed", "write": step.status}
            if step.part == "finish":
                entry = held.pop(step.thread)
            elif step.op == "clear":
                entry = None
            elif step.op in writes:
                stored = self.merge(entry, KVPoll[writes[step.op] or ""])
                new = entry if stored == KEEP else KVPoll(stored)
                if step.part == "begin":
                    held[step.thread] = new
                else:
                    entry = new
            seen.append(Observation(ABSENT if entry is None else entry.name, False, None, False, None))
        return seen


@pytest.fixture
def upstream(monkeypatch: pytest.MonkeyPatch) -> Table:
    table = Table(failed_else_max)
    monkeypatch.setattr(sglang, "run", table.run)
    return table


def test_the_script_of_a_locked_trace(upstream: Table) -> None:
    """Each step that the table can see becomes one call, and the table is the trace's throughout."""
    result = on_sglang(LOCKED, "9", "own")
    assert upstream.script == [
        Step("scheduler", "create"),
        Step("bootstrap", "register"),
        Step("bootstrap", "write", status="WaitingForInput"),
        Step("scheduler", "poll"),
        Step("bootstrap", "write", status="Failed"),
        Step("worker 0", "write", status="Transferring"),
    ]
    assert (
        result.sentence == "sglang 9 own: the room was Failed and ends Transferring: terminal-sticky is broken, 1 of 1"
    )
    assert result.remarks == ["the table is the trace's in every step (1 of 1)"]


def test_the_script_of_a_split_trace(upstream: Table) -> None:
    """A split update becomes two calls of its thread, in the order of the trace."""
    upstream.merge = first_terminal_wins
    assert on_sglang(SPLIT, "9", "own", repeat=3).violations == 3
    assert upstream.script[-4:] == [
        Step("worker 0", "write", "begin", "Transferring"),
        Step("bootstrap", "write", "begin", "Failed"),
        Step("bootstrap", "write", "finish"),
        Step("worker 0", "write", "finish"),
    ]


def test_a_table_that_is_sticky_leaves_the_trace(upstream: Table) -> None:
    """Where the table differs from the trace, the property holds and the first difference is named."""
    upstream.merge = first_terminal_wins
    result = on_sglang(LOCKED, "9", "own", repeat=2)
    assert not result.violated
    assert result.sentence == (
        "sglang 9 own: the room was Failed and stays Failed: terminal-sticky holds on this trace, 2 of 2"
    )
    assert result.remarks == ["from step 11 on: Failed where the trace has Transferring (2 of 2)"]
    assert result.as_json()["plays"] == [attrs.asdict(result.plays[0]) | {"times": 2}]


def test_repetitions_may_differ_and_raise(upstream: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Repetitions that end differently, or raise, are counted and told apart."""

    def run(*arguments: Any, **options: Any) -> list[list[Observation]]:
        usual, other = upstream.run(*arguments, **options)
        other[-1] = attrs.evolve(other[-1], status="Failed", error="KeyError: 7")
        return [usual, other]

    monkeypatch.setattr(sglang, "run", run)
    result = on_sglang(LOCKED, "9", "own", repeat=2)
    assert result.sentence.endswith("terminal-sticky is broken, 1 of 2")
    assert "the room was Failed and ends Transferring (1) or was Failed and stays Failed (1)" in result.sentence
    assert result.remarks == [
        "from step 11 on: Failed where the trace has Transferring (1 of 2)",
        "step 11: KeyError: 7 (1 of 2)",
    ]


@pytest.mark.parametrize(
    ("design", "prop", "network", "instance"),
    [
        ("seed-control", "no-resurrection", "orderly", Instance()),
        ("seed-control", "success-not-overwritten", "orderly", Instance()),
        ("seed-control", "success-complete", "orderly", Instance(workers=2)),
        ("seed-control", "no-pin", "orderly", Instance()),
        ("seed-control", "no-ghost", "orderly", Instance()),
        ("seed-control", "room-reusable", "late", Instance(requests=2)),
    ],
)
def test_what_the_spec_breaks_the_same_merge_breaks(
    upstream: Table, design: str, prop: str, network: Network, instance: Instance
) -> None:
    """A counterexample of the spec is one for a table with the same merge, second requests included."""
    assert on_sglang(found(design, "locked", prop, network, instance), "9", "own").violated
    if network == "late":
        assert [step.op for step in upstream.script].count("create") == 2


@pytest.mark.parametrize("prop", ["settlement", "pages-held", "one-outcome"])
def test_what_is_not_about_the_table_is_refused(upstream: Table, prop: str) -> None:
    """A property that a table cannot show is refused before anything is run."""
    with pytest.raises(CannotReplay, match=f"{prop} is about .*, which this adapter cannot see") as caught:
        on_sglang(found("seed-control", "locked", prop), "9", "own")
    assert caught.value.exit_code == 2
    assert upstream.script == ()


def test_what_cannot_be_played_is_refused(upstream: Table) -> None:
    """A trace without a property, or of a compare-and-swap, is refused before anything is run."""
    with pytest.raises(CannotReplay, match="names no property"):
        on_sglang(attrs.evolve(LOCKED, prop=None), "9", "own")
    cas = attrs.evolve(DESIGNS["seed-control"], name="swapping", atomicities=("cas",))
    run = explore(Machine.of(cas, "cas", "orderly", Instance()), PROPERTIES).trace("terminal-sticky")
    trace = Trace.of(cas, "cas", "orderly", Instance(), BY_NAME["terminal-sticky"], run)
    with pytest.raises(CannotReplay, match="compares and swaps"):
        on_sglang(trace, "9", "own", design=cas)
    assert upstream.script == ()


# --- The published wheels -------------------------------------------------------------------------


@functools.cache
def reason_without_wheel(version: str) -> str | None:
    try:
        sglang.fetch(version)
    except sglang.CannotFetch as error:
        return str(error)
    return None


def skip_unless_fetched(version: str) -> None:
    if reason := reason_without_wheel(version):
        pytest.skip(reason)


@pytest.mark.network
@pytest.mark.parametrize(
    ("version", "ends", "verdict"),
    [
        ("0.5.15.post1", "ends Transferring", "terminal-sticky is broken, 1 of 1"),
        ("0.5.23", "stays Failed", "terminal-sticky holds on this trace, 1 of 1"),
    ],
)
def test_a_late_transferring(version: str, ends: str, verdict: str) -> None:
    """The incident, on two published wheels: the older one ends Transferring, the newest stays Failed."""
    skip_unless_fetched(version)
    result = on_sglang(LOCKED, version, "nixl")
    assert result.sentence == f"sglang {version} nixl: the room was Failed and {ends}: {verdict}"
    assert all(play.error is None for play in result.plays)


@pytest.mark.network
def test_without_a_lock_the_newest_version_resurrects_every_time() -> None:
    """Two threads of the newest wheel, one held at its store, lose the failure in each of 100 runs."""
    skip_unless_fetched("0.5.23")
    result = on_sglang(SPLIT, "0.5.23", "nixl", repeat=100)
    assert result.violations == 100
    assert result.remarks == ["the table is the trace's in every step (100 of 100)"]
