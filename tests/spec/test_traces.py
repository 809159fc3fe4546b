"""Traces: what is written is read again, here and by a reader that is not ours, and no false step gets through."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import itf_py
import pytest

from kvlatch.spec.designs import DESIGNS
from kvlatch.spec.model import Action, Instance, Machine
from kvlatch.spec.properties import BY_NAME
from kvlatch.spec.terms import State
from kvlatch.spec.traces import Run, Trace, TraceError, read, verify, write

SEED = DESIGNS["seed-control"]
WORKER = {"worker": 0}
CHUNK_0 = {"worker": 0, "chunk": 0}
RESURRECTION: list[tuple[str, dict[str, int]]] = [
    ("create", {}),
    ("hear_metadata", {}),
    ("write_w", {}),
    ("admit", {}),
    ("enqueue", {"chunk": 0}),
    ("take", CHUNK_0),
    ("check_status", CHUNK_0),
    ("check_infos", CHUNK_0),
    ("hear_abort", {}),
    ("write_f", {}),
    ("write_t", WORKER),
]
STICKY = [*RESURRECTION, ("enqueue", {"chunk": 1})]
PINNED = [*RESURRECTION, ("post", WORKER), ("complete", CHUNK_0), ("abort_pop", {}), ("enqueue", {"chunk": 1})]


def play(steps: list[tuple[str, dict[str, int]]], prop: str | None) -> Trace:
    """A trace of ``seed-control``, locked, made without any engine."""
    machine = Machine.of(SEED, "locked", "orderly", Instance())
    run: list[tuple[Action | None, State]] = [(None, machine.initial())]
    for name, arguments in steps:
        action = machine.model.action(name, arguments)
        assert action is not None
        run.append((action, machine.step(run[-1][1], action)))
    return Trace.of(SEED, "locked", "orderly", Instance(), BY_NAME[prop] if prop else None, run)


@pytest.fixture(scope="module")
def sticky() -> Trace:
    return play(STICKY, "terminal-sticky")


@pytest.fixture(scope="module")
def lasso() -> Trace:
    return play(PINNED, "settlement")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "t.itf.json"


def check(path: Path) -> Run:
    return verify(read(path))


# --- Round trip -----------------------------------------------------------------------------------


@pytest.mark.parametrize("prop", ["terminal-sticky", None])
def test_what_is_written_is_read_again_and_verified(path: Path, prop: str | None) -> None:
    trace = play(STICKY, prop)
    write(trace, path)
    assert read(path) == trace
    run = check(path)
    assert [action.name for action in run.actions] == [name for name, _ in STICKY]
    assert len(run.states) == len(trace.steps) == 13


def test_liveness_is_a_lasso(lasso: Trace, path: Path) -> None:
    write(lasso, path)
    assert json.loads(path.read_text())["loop"] == 15
    assert read(path) == lasso
    verify(lasso)


def test_the_file_is_plain_itf(sticky: Trace, path: Path) -> None:
    write(sticky, path)
    document = json.loads(path.read_text())
    assert document.keys() == {"#meta", "vars", "states"}
    assert all(isinstance(value, str) for value in document["#meta"].values())
    assert (
        document["#meta"]["description"] == "seed-control, locked, orderly network: 12 steps that break terminal-sticky"
    )
    for number, state in enumerate(document["states"]):
        meta = state.pop("#meta")
        assert meta.pop("index") == number
        assert all(isinstance(value, str) for value in meta.values())
        assert list(state) == document["vars"]
        picks = state.pop("mbt::nondetPicks")
        assert all(value.keys() == {"#bigint"} for value in picks.values())
        assert all(isinstance(value, str) for value in state.values())


def test_another_reader_agrees(lasso: Trace, path: Path) -> None:
    write(lasso, path)
    theirs = itf_py.trace_from_json(json.loads(path.read_text()))
    assert theirs.loop == lasso.loop
    assert len(theirs.states) == len(lasso.steps)
    for state, step in zip(theirs.states, lasso.steps, strict=True):
        values = dict(state.values)
        assert values.pop("mbt::actionTaken") == (step.action or "init")
        assert values.pop("mbt::nondetPicks")._asdict() == step.arguments
        assert values == step.state


def test_what_another_writer_makes_of_it_is_still_the_trace(sticky: Trace, path: Path) -> None:
    """itf-py writes ``"loop": null`` and ``"params"``."""
    write(sticky, path)
    theirs = itf_py.trace_from_json(json.loads(path.read_text()))
    path.write_text(json.dumps(itf_py.trace_to_json(theirs)))
    assert read(path) == sticky


def test_a_design_of_ones_own_is_verified_with_its_row(sticky: Trace) -> None:
    mine = attrs.evolve(SEED, name="mine")
    own = attrs.evolve(sticky, design="mine")
    assert len(verify(own, mine).actions) == 12
    with pytest.raises(TraceError, match=r"about design 'mine', not 'seed-control'"):
        verify(own, SEED)


def test_a_fixed_design_does_not_have_the_trace(sticky: Trace) -> None:
    claim = attrs.evolve(sticky, design="fix-a")
    with pytest.raises(TraceError, match=r"step 11: status is recorded as 'Transferring', by the spec it is 'Failed'"):
        verify(claim)


# --- Nothing half written -------------------------------------------------------------------------


def test_a_failed_write_leaves_what_was_there(sticky: Trace, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_text("before")

    def full(self: Path, *_: Any, **__: Any) -> int:
        self.touch()
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        with pytest.raises(TraceError, match="No space left on device"):
            write(sticky, path)
    assert path.read_text() == "before"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
    ("name", "message"),
    [("t.json", r"the name of a trace ends in \.itf\.json"), ("none/t.itf.json", "No such file or directory")],
)
def test_it_cannot_be_written_there(sticky: Trace, tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        write(sticky, tmp_path / name)
    assert not list(tmp_path.iterdir())


# --- Errors: one line each, which says where and why ----------------------------------------------

Change = Callable[[dict[str, Any]], object]


def meta(**values: str) -> Change:
    return lambda document: document["#meta"].update(values)


def state(number: int, values: dict[str, Any]) -> Change:
    return lambda document: document["states"][number].update(values)


def without(number: int, name: str) -> Change:
    return lambda document: document["states"][number].pop(name)


def skip(number: int) -> Change:
    return lambda document: document["states"].pop(number)


ERRORS: dict[str, tuple[Change, str]] = {
    "no meta": (lambda d: d.pop("#meta"), "the trace lacks '#meta'"),
    "no design": (lambda d: d["#meta"].pop("design"), "the #meta of the trace lacks 'design'"),
    "no states": (lambda d: d.pop("states"), "the trace lacks 'states'"),
    "empty": (lambda d: d["states"].clear(), "a trace has at least one state, and this one has none"),
    "states are text": (lambda d: d.update(states="x"), "the trace: 'states' is not a list"),
    "state is text": (lambda d: d["states"].insert(2, "x"), "state 2 is not an object"),
    "workers": (meta(workers="many"), "workers is 'many', which is not a number"),
    "size": (meta(chunks="9"), "an instance has 1 to 8 workers, 1 to 4 chunks"),
    "no chunk": (meta(chunks="0"), "the #meta of the trace has no chunks: a run needs one at least"),
    "loop": (lambda d: d.update(loop="end"), "loop is 'end', which is not the number of a state"),
    "loops": (lambda d: d.update(loop=3), "loop is 3: only the last state, 12, can be polled for ever"),
    "safety loops": (lambda d: d.update(loop=12), "step 12: a trace loops if its property is about liveness"),
    "lacks": (without(3, "status"), "state 3 lacks variable 'status'"),
    "lacks everywhere": (lambda d: d["vars"].remove("status"), "state 0 lacks variable 'status'"),
    "has": (lambda d: (d["vars"].append("x"), [s.update(x="1") for s in d["states"]]), "state 0 has variable 'x'"),
    "kind": (state(3, {"status": 3}), "state 3: variable 'status' is not a string"),
    "no action": (without(3, "mbt::actionTaken"), "state 3 lacks variable 'mbt::actionTaken'"),
    "argument": (
        state(5, {"mbt::nondetPicks": {"chunk": 0}}),
        "state 5: argument 'chunk' is not an integer, which is written",
    ),
    "number": (
        state(5, {"mbt::nondetPicks": {"chunk": {"#bigint": "0x"}}}),
        "state 5: argument 'chunk' is '0x', which is not a number",
    ),
    "unknown design": (meta(design="fix-c"), "unknown design 'fix-c'; did you mean 'fix-"),
    "unknown property": (meta(property="no-pins"), "unknown property 'no-pins'; did you mean 'no-pin'?"),
    "unknown atomicity": (meta(atomicity="cas"), "unknown atomicity of seed-control 'cas'; known: locked, split"),
    "unknown network": (meta(network="tidy\n"), r"unknown network 'tidy\\n'; known: orderly, lossy, early, "),
    "begins": (skip(0), "step 0: a run begins with 'init', not with 'create'"),
    "unknown action": (
        state(3, {"mbt::actionTaken": "write_x"}),
        "step 3: unknown action 'write_x'; did you mean 'write_",
    ),
    "another atomicity": (
        state(3, {"mbt::actionTaken": "write_w.read"}),
        r"step 3: unknown action 'write_w\.read'; did you mean 'write_w'\?",
    ),
    "arguments": (
        state(5, {"mbt::nondetPicks": {"chunk": {"#bigint": "7"}}}),
        r"step 5: this instance has no enqueue with arguments \{'chunk': 7\}",
    ),
    "thread": (
        state(10, {"#meta": {"thread": "worker 0"}}),
        "step 10: write_f is a step of bootstrap, not of 'worker 0'",
    ),
    "not enabled": (
        skip(3),
        "impossible step 3: admit is not enabled because it needs status = WaitingForInput, and status is Boot",
    ),
    "thread busy": (
        skip(2),
        "impossible step 2: write_w is not enabled because it needs bootstrap = registered, and bootstrap is idle",
    ),
    "differs": (
        state(10, {"status": "Success"}),
        "step 10: status is recorded as 'Success', by the spec it is 'Failed'",
    ),
    "no such label": (
        state(0, {"status": "A\nB"}),
        r"step 0: status is recorded as 'A\\nB', by the spec it is 'Absent'",
    ),
    "not bad": (skip(12), "step 11: the last state does not break terminal-sticky"),
    "not that": (meta(property="no-ghost"), "step 12: the last state does not break no-ghost"),
    "no lasso": (meta(property="settlement"), "step 12: a trace loops if its property is about liveness"),
}


@pytest.mark.parametrize(("change", "message"), ERRORS.values(), ids=ERRORS)
def test_what_is_wrong_is_one_line(sticky: Trace, path: Path, change: Change, message: str) -> None:
    write(sticky, path)
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    with pytest.raises(TraceError, match=message) as caught:
        check(path)
    assert "\n" not in str(caught.value)


def test_a_lasso_ends_where_nothing_fair_is_left(sticky: Trace) -> None:
    early = attrs.evolve(sticky, prop="settlement", loop=12)
    with pytest.raises(TraceError, match=r"step 12: this is not the end: .* is fair and enabled, so it will be taken"):
        verify(early)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{\n  1", "not JSON: line 2, column 3: "),
        (b"[]", "not a trace: a trace is a JSON object"),
        (b"\xff", "not UTF-8: byte 0"),
        (b"[" * 100_000, "not JSON that a trace would have"),
        (b"1" * 10_000, "not JSON that a trace would have"),
    ],
)
def test_it_is_not_even_a_trace(path: Path, content: bytes, message: str) -> None:
    path.write_bytes(content)
    with pytest.raises(TraceError, match=message) as caught:
        read(path)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"{path}: ")


def test_there_is_no_such_file(path: Path) -> None:
    with pytest.raises(TraceError, match="No such file or directory"):
        read(path)
