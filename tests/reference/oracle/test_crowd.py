"""A thousand rooms in one life of a manager find what forgets the first of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvlatch.reference.oracle.crowd import ROOMS, crowd, numbered_anew, with_fewer_rooms
from kvlatch.reference.oracle.formulas import broken
from kvlatch.reference.oracle.moves import Call, Script, Seen, Step
from kvlatch.reference.oracle.wander import Run, breaking
from kvlatch.spec.status import KVPoll
from tests.reference.oracle.managers import Key, Right


class Told:
    """What a manager is given, in place of a probe."""

    def __init__(self) -> None:
        self.released: list[int] = []
        self.told: list[tuple[int, KVPoll]] = []

    def table(self) -> Any:
        table = type("Table", (dict,), {"peek": dict.get})
        return table()

    def release(self, _: int, request: int) -> None:
        self.released.append(request)

    def tell(self, _: int, request: int, status: KVPoll) -> None:
        self.told.append((request, status))


class Direct:
    """A player that calls a manager straight away, with no threads at all: one play at a time."""

    def __init__(self, make: type[Right]) -> None:
        self.make = make

    def begin(self) -> Direct:
        self.probe = Told()
        self.manager = self.make(self.probe)  # type: ignore[arg-type]  # it asks no more of it
        return self

    def step(self, step: Step, *, whole: bool = False) -> Seen:
        call = step.call or Call("tick", 1)
        self.probe.released, self.probe.told = [], []
        answer = self.answer(call)
        room: Any = call.room
        done = tuple(self.probe.released), tuple(self.probe.told)
        return Seen(self.manager.status(room), None, False, answer, *done)

    def answer(self, call: Call) -> Any:
        if call.event == "tick":
            return None
        details = {"start": (call.chunk, call.last), "finish": (call.chunk, call.last, True)}.get(call.event, ())
        return getattr(self.manager, call.event)(call.room, call.request, *details)

    def play(self, scripts: Sequence[Script]) -> list[Seen]:
        raise NotImplementedError  # a crowd goes call by call

    def close(self) -> None:
        pass


class KeepsAThousand(Right):
    """A table of tombstones with room for a thousand."""

    def clear(self, room: int, request: int) -> None:
        super().clear(room, request)
        self.order: list[Key] = [*getattr(self, "order", ()), (room, request)]
        if len(self.order) > 1_000:
            forgotten = self.order.pop(0)
            self.cleared.discard(forgotten)
            self.owner.pop(forgotten[0], None)


def test_a_right_manager_keeps_every_law_in_a_crowd() -> None:
    """Every room lives, and some live again, without a broken law."""
    runs = 0
    for run, _, _ in crowd(Direct(Right)):
        runs += 1
        assert broken(run.world) == []
    assert runs > 4 * ROOMS


def test_a_manager_that_forgets_the_first_of_a_thousand_is_found_with_fewer_rooms() -> None:
    """Late metadata makes an entry for a room that is over; a thousand rooms after it are needed."""
    last: Run | None = None
    for run, _, _ in crowd(Direct(KeepsAThousand)):
        last = run
        if "no-ghost" in broken(run.world):
            break
    assert last is not None
    made = with_fewer_rooms(Direct(KeepsAThousand), last.moves, "no-ghost")
    bounds, moves = numbered_anew(made)
    assert 1_000 < len(bounds.rooms) < ROOMS
    assert breaking(Direct(KeepsAThousand), bounds, moves, "no-ghost") == moves
