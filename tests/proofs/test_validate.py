"""A log is a run of its own design, whatever a run does; and a line that no run explains is named."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Final

import pytest

from kvlatch.proofs import validate as validation
from kvlatch.proofs.search import explore
from kvlatch.proofs.validate import NEEDED, Refused, Run, Unjudged, validate
from kvlatch.reference.logs.events import OPS, Event
from kvlatch.reference.logs.runs import Recording
from kvlatch.spec.designs import DESIGNS, Design
from kvlatch.spec.model import Action, Machine
from kvlatch.spec.properties import BY_NAME
from kvlatch.spec.room import Instance
from kvlatch.spec.schema import Atomicity, Network
from kvlatch.spec.terms import State

WORKERS_AND_CHUNKS: Final = ((1, 1, 1), (1, 2, 1), (2, 2, 1), (1, 1, 2))
LEVELS: Final = [(name, level) for name, design in DESIGNS.items() for level in design.atomicities]
Steps = list[tuple[Action | None, State]]


def walk(machine: Machine, random: Random, steps: int) -> Steps:
    """A random run, in which mostly the server moves: then it comes further."""
    state = machine.initial()
    run: Steps = [(None, state)]
    while len(run) <= steps and (actions := machine.enabled(state)):
        fair = [action for action in actions if action.fair]
        action = random.choice(fair if fair and random.random() < 0.8 else actions)
        state = machine.step(state, action)
        run.append((action, state))
    return run


def logs(name: str, level: Atomicity, each: int) -> Iterator[Event]:
    """Logs of random runs of a design, a room each."""
    for number, (workers, chunks, requests) in enumerate(WORKERS_AND_CHUNKS):
        machine = Machine.of(DESIGNS[name], level, "disorderly", Instance(workers, chunks, requests))
        random = Random(f"{name} {level} {number}")  # noqa: S311  # chooses runs, no secret
        for run in range(each):
            yield from Recording(machine, number * each + run).events(walk(machine, random, random.randrange(10, 100)))


def counterexample(name: str, level: Atomicity, prop: str, network: Network = "orderly") -> list[Event]:
    """The log of a shortest run that breaks a property."""
    machine = Machine.of(DESIGNS[name], level, network, Instance(chunks=2))
    found = explore(machine, [BY_NAME[prop]], until=[prop])
    return list(Recording(machine, 7).events(found.trace(prop)))


def answer(events: Sequence[Event], design: Design, *levels: Atomicity) -> validation.Answer:
    """What is said of a log of one room, which says that it has every operation."""
    (only,) = validate(events, design, OPS, levels)
    return only.answer


@pytest.mark.parametrize(("name", "level"), LEVELS)
def test_a_run_is_never_refused_by_its_own_design(name: str, level: Atomicity) -> None:
    answers = [of_room.answer for of_room in validate(logs(name, level, 4), DESIGNS[name], OPS)]
    assert len(answers) == 16
    assert {type(one) for one in answers} <= {Run, Unjudged}
    assert sum(isinstance(one, Run) for one in answers) >= 15


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "level"), LEVELS)
def test_many_runs_are_never_refused_by_their_own_design(name: str, level: Atomicity) -> None:
    """More than 10,000 runs in all."""
    answers = [of_room.answer for of_room in validate(logs(name, level, 180), DESIGNS[name], OPS)]
    assert len(answers) == 720
    assert {type(one) for one in answers} <= {Run, Unjudged}
    assert sum(isinstance(one, Run) for one in answers) >= 680


def test_the_incident_is_a_run_of_its_build_and_not_of_fix_a() -> None:
    """Transferring is written over Failed: the line that shows it is the first that Fix A does not explain."""
    events = counterexample("seed-control", "locked", "terminal-sticky")
    assert isinstance(answer(events, DESIGNS["seed-control"]), Run)
    assert isinstance(answer(events, DESIGNS["fix-b"]), Run)
    assert isinstance(answer(events, DESIGNS["fix-a"], "split"), Run), "without a lock, Fix A does it too"
    keep_it: list[tuple[str, Atomicity]] = [
        ("fix-a", "locked"), ("fix-ab", "locked"), ("latch", "locked"), ("latch", "cas"),
    ]  # fmt: skip
    for name, level in keep_it:
        refused = answer(events, DESIGNS[name], level)
        assert isinstance(refused, Refused)
        assert events.index(refused.event) == refused.explained
    refused = answer(events, DESIGNS["fix-a"], "locked")
    assert isinstance(refused, Refused)
    assert (refused.event.op, refused.event.incoming, refused.event.status) == ("write", "Transferring", "Transferring")
    assert "worker 0 write Transferring" in refused.could


@pytest.mark.parametrize("op", ["take", "enqueue", "infos", "write", "tell", "hold", "post", "arrive", "clear"])
def test_a_line_that_is_missing_is_noticed(op: str) -> None:
    """A run without one of its lines is no run, once a later line depends on it."""
    events = settled("latch")
    without = list(events)
    without.remove(next(event for event in events if event.op == op))
    assert isinstance(answer(events, DESIGNS["latch"]), Run)
    assert isinstance(answer(without, DESIGNS["latch"]), Refused)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda event: event._replace(status="Failed") if event.incoming == "Transferring" else event,
        lambda event: event._replace(incoming="Failed") if event.op == "tell" else event,
        lambda event: event._replace(thread="worker 9") if event.op == "arrive" else event,
        lambda event: event._replace(chunk=1 - event.chunk) if event.op == "take" else event,
        lambda event: event._replace(op="fail") if event.op == "arrive" else event,
    ],
)
def test_a_line_that_says_something_else_is_refused(wrong: object) -> None:
    events = settled("latch")
    assert isinstance(answer([wrong(event) for event in events], DESIGNS["latch"]), Refused)  # type: ignore[operator]  # a lambda of the table above


def settled(name: str) -> list[Event]:
    """The log of a run in which both chunks are sent and decode is told Success."""
    machine = Machine.of(DESIGNS[name], "locked", "orderly", Instance(chunks=2))
    state, run = machine.initial(), [(None, machine.initial())]
    steps: Steps = [*run]
    for rule in (
        "create", "hear_metadata", "write_w", "admit", "enqueue", "enqueue",
        *("take", "check_status", "check_infos", "write_t", "post", "complete") * 2,
        "write_s", "tell_success", "conclude_pop", "settle_success", "clear_status", "clear_infos", "release",
    ):  # fmt: skip
        action = next(action for action in machine.enabled(state) if action.rule.name == rule)
        state = machine.step(state, action)
        steps.append((action, state))
    return list(Recording(machine, 7).events(steps))


def test_lines_of_other_threads_may_come_in_between() -> None:
    """A thread writes its line after what it has done: another's, about what came of it, can be earlier in the log."""
    events = settled("latch")
    at = next(i for i, event in enumerate(events) if event.op == "take")
    queued = next(i for i, event in enumerate(events) if event.op == "enqueue" and event.last)
    late = [*events[:queued], *events[queued + 1 : at + 1], events[queued], *events[at + 1 :]]
    assert isinstance(answer(late, DESIGNS["latch"]), Run)


def test_what_a_log_does_not_have_is_silent() -> None:
    """Without the optional operations a log is judged; without one of the others it is not, and the reason names it."""
    events = [event for event in settled("latch") if event.op in NEEDED]
    (kept,) = validate(events, DESIGNS["latch"], NEEDED)
    assert isinstance(kept.answer, Run)
    for op in NEEDED:
        (lacks,) = validate([event for event in events if event.op != op], DESIGNS["latch"])
        assert isinstance(lacks.answer, Unjudged)
        assert f"has no {op}" in lacks.answer.why


def test_rooms_that_cannot_be_judged_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    events = settled("latch")
    begun = [event for event in events if event.op != "create"]
    nameless = [event._replace(thread=None) for event in events]
    endless = [event._replace(last=False) for event in events]
    long = [event._replace(chunk=event.chunk and 4) for event in events]
    long[3:3] = [Event(0, 7, "enqueue", chunk=chunk, thread="scheduler") for chunk in (1, 2, 3)]
    for some, why in (
        (begun, "under way"), (nameless, "which thread"), (endless, "the last one"), (long, "at most 4"),
    ):  # fmt: skip
        said = answer(some, DESIGNS["latch"])
        assert isinstance(said, Unjudged)
        assert why in said.why
    monkeypatch.setattr(validation, "LIMIT", 3)
    validation._automaton.cache_clear()
    said = answer(events, DESIGNS["latch"])
    assert isinstance(said, Unjudged)
    assert "more than 3 states" in said.why
    validation._automaton.cache_clear()


def test_tables_are_judged_each_by_itself() -> None:
    """Two ranks with one room id are two rooms, and lines of theirs may be mixed."""
    events = settled("latch")
    both = [event._replace(rank=rank) for event in events for rank in ("0", "1")]
    answers = list(validate(both, DESIGNS["latch"], OPS))
    assert [(one.rank, type(one.answer)) for one in answers] == [("0", Run), ("1", Run)]
