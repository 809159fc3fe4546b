"""The screen: every engine, on any division of a log into blocks, against a plain loop over a dict."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvlatch.reference.arrays.kernels import SUSPECT
from kvlatch.reference.logs.codes import CODES, EVENTS, SILENT
from kvlatch.reference.logs.events import STATUSES
from kvlatch.reference.logs.rooms import EMPTY, Rooms, Tables
from tests.reference.arrays.cupy_facade import xp

TABLES = Tables.of()
Events = list[tuple[int, int, float]]
"""Room, code and time."""
NAN = float("nan")


@attrs.frozen
class Seen:
    """What an engine, or the plain loop, makes of a log."""

    suspects: list[int]
    final: dict[str | None, int]
    looks: dict[str, int]


def plain(events: Events, quiet: float) -> Seen:
    """One event after the other."""
    state: dict[int, int] = {}
    suspects: set[int] = set()
    moved: dict[int, float] = {}
    clock: dict[int, float] = {}
    past: dict[int, set[str]] = {}
    for room, code, time in events:
        event, known = EVENTS[code], state.setdefault(room, 0x40)
        now = int(TABLES.left[code]) if code < SILENT else known
        history = past.setdefault(room, set())
        if time == time:
            if time < clock.get(room, time):
                suspects.add(room)
            clock[room] = time
            if now != known or event.op != "poll":
                moved[room] = max(time, moved.get(room, time))
        if code >= SILENT:
            continue
        if known & int(TABLES.suspicious[code]):
            suspects.add(room)
        name = next((status for bit, status in enumerate(STATUSES) if known == 1 << bit), "")
        history |= {name} | ({"clear"} if event.op == "clear" else set())
        history |= {"again"} if event.op == "create" and name == "Absent" else set()
        state[room] = now
    names: dict[int, str | None] = {1 << bit: status for bit, status in enumerate(STATUSES)}
    last = {room: names.get(known) for room, known in state.items()}
    for room, status in last.items():
        if status not in (None, "Absent") and moved.get(room, -np.inf) <= quiet:
            suspects.add(room)
    mine = [room for room in state if room not in suspects]
    settled = [room for room in mine if "clear" in past[room] and last[room] == "Absent"]
    ended = {*settled, *(room for room in mine if last[room] in ("Failed", "Success"))}
    waited = {"WaitingForInput", "Transferring"}
    looks = {
        "terminal-sticky": sum(bool(past[room] & {"Failed", "Success"}) for room in mine),
        "no-resurrection": sum("Failed" in past[room] for room in mine),
        "success-not-overwritten": sum("Success" in past[room] for room in mine),
        "room-reusable": sum("again" in past[room] for room in mine),
        "no-ghost": sum("clear" in past[room] for room in mine),
        "settlement": len(settled),
        "no-pin": sum(bool(past[room] & waited) and room in moved for room in ended),
    }
    final = {status: sum(last[room] == status for room in mine) for status in (None, *STATUSES)}
    return Seen(sorted(suspects), final, {law: count for law, count in looks.items() if count})


def folded(rooms: Rooms, events: Events, cuts: Sequence[int], quiet: float) -> Seen:
    """What an engine makes of a log that is fed to it in pieces."""
    ids = np.array([room for room, _, _ in events], np.int64)
    codes = np.array([code for _, code, _ in events], np.uint8)
    times = np.array([time for _, _, time in events], np.float64)
    bounds = [0, *sorted(cut for cut in cuts if cut < len(events)), len(events)]
    for low, high in pairwise(bounds):
        rooms.feed(ids[low:high], codes[low:high], times[low:high])
    rooms.silent_since(quiet)
    return Seen(rooms.suspects().tolist(), rooms.final(), rooms.looks())


def numpy_rooms(**options: Any) -> Rooms:
    return Rooms(TABLES, **options)


def device_rooms(**options: Any) -> Rooms:
    """The code that CuPy would run, on a NumPy that refuses what CuPy has not: no GPU has run it."""
    return Rooms(TABLES, xp, **options)


def fast_rooms(**options: Any) -> Rooms:
    pytest.importorskip("numba", reason="the engine `fast` is numba's")
    from kvlatch.reference.logs.fast import FastRooms

    return FastRooms(TABLES, **options)


ENGINES = (numpy_rooms, device_rooms, fast_rooms)
ids = st.sampled_from([0, 1, 2, 3, 2**31, 2**32 + 1, 2**63 - 1, -(2**63)]) | st.integers(0, 2**63 - 1)
clock = st.sampled_from([0.0, 1.0, 2.0, 3.0, NAN])
codes = st.integers(0, CODES - 1)
logs = st.lists(st.tuples(ids, codes, clock), min_size=1, max_size=60)
few = st.lists(st.tuples(st.integers(0, 3), codes, clock), min_size=1, max_size=60)
FAILED, REVIVING, CLEARED = (
    next(code for code, event in enumerate(EVENTS) if (event.op, event.status) == (op, observed))
    for op, observed in (("abort", "Failed"), ("write", "Transferring"), ("clear", "Absent"))
)


@pytest.mark.parametrize("engine", ENGINES)
@given(
    events=logs | few,
    cuts=st.lists(st.integers(0, 60), max_size=5),
    block=st.integers(1, 64),
    quiet=st.sampled_from([-1.0, 1.0, 5.0]),
)
@example(events=[(7, FAILED, 0.0), (8, FAILED, 1.0), (7, REVIVING, 2.0), (8, CLEARED, 0.0)], cuts=[], block=2, quiet=9)
def test_any_division_into_blocks_gives_what_a_plain_loop_gives(
    engine: Callable[..., Rooms], events: Events, cuts: list[int], block: int, quiet: float
) -> None:
    """Suspects, final statuses and looks do not depend on the engine or on the cuts."""
    assert folded(engine(timed=True, block=block), events, cuts, quiet) == plain(events, quiet)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_table_grows_and_keeps_what_is_known(engine: Callable[..., Rooms]) -> None:
    """Ten thousand rooms, more than the table starts with, in a random order, give what a plain loop gives."""
    random = np.random.default_rng(1)
    rooms = random.integers(0, 2**63 - 1, 10_000)[random.integers(0, 10_000, 40_000)].tolist()
    times = np.sort(random.random(40_000)).tolist()
    events = list(zip(rooms, random.integers(0, CODES, 40_000).tolist(), times, strict=True))
    expected = plain(events, 0.5)
    assert len(expected.suspects) > 1_000
    assert folded(engine(timed=True, block=3_000), events, [12_345], 0.5) == expected


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("stride", [1, 1 << 20, 1 << 40])
def test_ids_at_any_stride_stay_apart(engine: Callable[..., Rooms], stride: int) -> None:
    """Rooms numbered in steps, small or large, are told apart: each ends as its own last event says."""
    rooms = engine()
    ids = np.arange(3_000, dtype=np.int64) * stride
    rooms.feed(ids, np.full(3_000, FAILED, np.uint8))
    rooms.feed(ids[::3], np.full(1_000, CLEARED, np.uint8))
    assert rooms.count == 3_000
    assert rooms.final() == {None: 0} | {name: {"Failed": 2_000, "Absent": 1_000}.get(name, 0) for name in STATUSES}


@pytest.mark.parametrize("engine", ENGINES)
def test_the_room_with_the_key_of_free_slots_is_always_suspect(engine: Callable[..., Rooms]) -> None:
    """2**64 - 1 is no room of the table, and is not lost."""
    rooms = engine()
    rooms.feed(np.array([5, EMPTY, -3], np.int64), np.full(3, FAILED, np.uint8))
    assert rooms.suspects().tolist() == [EMPTY]
    assert rooms.count == 2


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("ids", "codes", "message"),
    [
        ([1], [CODES], f"codes are below {CODES}"),
        ([1, 2], [0], "2 rooms and 1 codes"),
        ([1.0], [0], "rooms are int64 and codes uint8, not float64 and uint8"),
    ],
)
def test_bad_input_raises_before_anything_changes(
    engine: Callable[..., Rooms], ids: list[Any], codes: list[int], message: str
) -> None:
    """A byte that is no event, or columns of two lengths, are refused, and nothing was taken in."""
    rooms = engine()
    with pytest.raises(ValueError, match=message):
        rooms.feed(np.array(ids), np.array(codes, np.uint8))
    assert rooms.count == 0


def test_the_compiled_loops_say_in_python_what_they_say_compiled() -> None:
    """Run as plain Python, the loops of the fast engine find what they find compiled."""
    pytest.importorskip("numba", reason="the engine `fast` is numba's")
    from kvlatch.reference.logs import fast

    random = np.random.default_rng(3)
    rooms = random.integers(0, 40, 400)
    codes, times = random.integers(0, CODES, 400).astype(np.uint8), random.random(400)
    keys, slots = np.full(64, EMPTY, np.int64), np.empty(400, np.int32)
    with np.errstate(over="ignore"):  # the hash is a product modulo 2**64
        assert fast.find(rooms, keys, 58, 0, slots) == -1
        keys = np.full(128, EMPTY, np.int64)
        count = fast.find(rooms, keys, 57, 0, slots)
    assert count == len(set(rooms.tolist()))
    assert keys[slots].tolist() == rooms.tolist()
    compiled = fast_rooms(timed=True)
    compiled.feed(rooms, codes, times)
    one, other = (np.full(128, -np.inf), np.full(128, -np.inf))
    state, marks = np.full(128, 0x40, np.uint8), np.zeros(128, np.uint32)
    fast.fold(slots, codes, times, state, marks, one, other,
              TABLES.left, TABLES.suspicious, TABLES.again, TABLES.clears, TABLES.polls)  # fmt: skip
    assert sorted(keys[marks >= SUSPECT].tolist()) == compiled.suspects().tolist()
    assert sorted(marks[keys != EMPTY].tolist()) == sorted(compiled.marks[compiled.keys != EMPTY].tolist())
