"""Every engine, on any division of a log into blocks, against a plain loop over a dict."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvlatch.reference.logs.laws import CODES, EVENTS, LIVE, SILENT, STATUSES, Laws
from kvlatch.reference.logs.rooms import REVIVED, Rooms, Tables
from tests.reference.arrays.cupy_facade import xp

LAWS = Laws.of()
TABLES = Tables.of(LAWS)

Events = list[tuple[int, int]]


@attrs.frozen
class Seen:
    """What an engine, or the plain loop, makes of a log."""

    broken: dict[int, tuple[int, str, int]]
    final: dict[str | None, int]
    pinned: list[tuple[int, str]]
    quiet: list[tuple[int, int]]


def plain(events: Events, first: int, before: int) -> Seen:
    """One event after the other."""
    known: dict[int, str | None] = {}
    revived: set[int] = set()
    broken: dict[int, tuple[int, str, int]] = {}
    last: dict[int, int] = {}
    for line, (room, code) in enumerate(events, first):
        event, was = EVENTS[code], known.setdefault(room, None)
        last[room] = line
        if event.observed is None and event.op not in ("create", "clear"):
            continue
        if was and room not in broken and LAWS.broken[STATUSES.index(was)][code]:
            broken[room] = (line, was, code)
        if event.op == "create" or event.observed not in LIVE:
            revived.discard(room)
        elif was in ("Failed", "Success"):
            revived.add(room)
        known[room] = event.after
    live = sorted(room for room, status in known.items() if status in LIVE)
    return Seen(
        broken,
        {status: list(known.values()).count(status) for status in (None, *STATUSES)},
        [(room, known[room] or "") for room in live if room in revived],
        [(room, last[room]) for room in live if room in revived or last[room] < before],
    )


def folded(rooms: Rooms, events: Events, first: int, cuts: Sequence[int], before: int) -> Seen:
    """What an engine makes of a log that is fed to it in pieces."""
    ids = np.array([room for room, _ in events], np.int64)
    codes = np.array([code for _, code in events], np.uint8)
    bounds = [0, *sorted(cut for cut in cuts if cut < len(events)), len(events)]
    broken = {}
    for low, high in pairwise(bounds):
        for found in rooms.feed(ids[low:high], codes[low:high], first + low):
            for room, line, state, code in zip(found.rooms, found.lines, found.before, found.codes, strict=True):
                assert int(room) not in broken
                broken[int(room)] = (int(line), status(int(state)), int(code))
    pinned = rooms.live(revived=True)
    quiet = rooms.live(revived=True, before=before)
    return Seen(
        broken,
        rooms.final(),
        [(int(room), status(int(state) & ~REVIVED)) for room, state in zip(*pinned[:2], strict=True)],
        [(int(room), int(line)) for room, _, line in zip(*quiet, strict=True)],
    )


def status(state: int) -> str:
    """The status that a state's bit stands for."""
    return {1 << bit: name for bit, name in enumerate(STATUSES)}[state]


def numpy_rooms(**options: Any) -> Rooms:
    return Rooms(TABLES, **options)


def device_rooms(**options: Any) -> Rooms:
    """The code that CuPy would run, on a NumPy that refuses what CuPy has not."""
    return Rooms(TABLES, xp, **options)


def fast_rooms(**options: Any) -> Rooms:
    pytest.importorskip("numba", reason="the engine `fast` is numba's")
    from kvlatch.reference.logs.fast import FastRooms

    return FastRooms(TABLES, **options)


ENGINES = (numpy_rooms, device_rooms, fast_rooms)
ids = st.sampled_from([0, 1, 2, 3, 2**31, 2**32 + 1, 2**63 - 1]) | st.integers(0, 2**63 - 1)
logs = st.lists(st.tuples(ids, st.integers(0, CODES - 1)), min_size=1, max_size=60)
few = st.lists(st.tuples(st.integers(0, 3), st.integers(0, CODES - 1)), min_size=1, max_size=60)
FAILED, REVIVING, SAME, CLEARED = (
    next(code for code, event in enumerate(EVENTS) if (event.op, event.observed) == (op, observed))
    for op, observed in (("abort", "Failed"), ("write", "Transferring"), ("poll", "Transferring"), ("clear", "Absent"))
)


@pytest.mark.parametrize("engine", ENGINES)
@given(
    events=logs | few,
    cuts=st.lists(st.integers(0, 60), max_size=5),
    block=st.integers(1, 64),
    before=st.integers(1, 70),
)
@example(events=[(7, FAILED), (7, REVIVING), (7, SAME)], cuts=[2], block=64, before=1)
@example(events=[(7, FAILED), (7, REVIVING), (7, CLEARED), (7, REVIVING)], cuts=[], block=64, before=1)
@example(events=[(7, FAILED), (8, FAILED), (7, REVIVING), (8, REVIVING), (7, FAILED)], cuts=[], block=2, before=1)
def test_any_division_into_blocks_gives_what_a_plain_loop_gives(
    engine: Callable[..., Rooms], events: Events, cuts: list[int], block: int, before: int
) -> None:
    """First violations, final statuses, pinned and quiet rooms do not depend on the engine or on the cuts."""
    seen = folded(engine(quiet=True, block=block), events, 2, cuts, before)
    assert seen == plain(events, 2, before)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_table_grows_and_keeps_what_is_known(engine: Callable[..., Rooms]) -> None:
    """Ten thousand rooms, more than the table starts with, in a random order, give what a plain loop gives."""
    random = np.random.default_rng(1)
    rooms = random.integers(0, 2**63 - 1, 10_000)[random.integers(0, 10_000, 40_000)].tolist()
    events = list(zip(rooms, random.integers(0, CODES, 40_000).tolist(), strict=True))
    seen = folded(engine(quiet=True, block=3_000), events, 2, [12_345], 20_000)
    expected = plain(events, 2, 20_000)
    assert len(expected.broken) > 1_000
    assert len(expected.quiet) > 1_000
    assert seen == expected


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("stride", [1, 1 << 20, 1 << 40])
def test_ids_at_any_stride_stay_apart(engine: Callable[..., Rooms], stride: int) -> None:
    """Rooms numbered in steps, small or large, are told apart: each ends as its own last event says."""
    rooms = engine()
    ids = np.arange(3_000, dtype=np.int64) * stride
    rooms.feed(ids, np.full(3_000, FAILED, np.uint8), 1)
    rooms.feed(ids[::3], np.full(1_000, CLEARED, np.uint8), 3_001)
    assert rooms.count == 3_000
    assert rooms.final() == {None: 0} | {name: {"Failed": 2_000, "Absent": 1_000}.get(name, 0) for name in STATUSES}


@pytest.mark.parametrize("engine", ENGINES)
def test_a_log_that_is_grouped_already_is_not_sorted_and_gives_the_same(engine: Callable[..., Rooms]) -> None:
    """The same events sorted by room break the same laws in the same rooms."""
    random = np.random.default_rng(2)
    rooms = np.sort(random.integers(0, 50, 2_000))
    events = list(zip(rooms.tolist(), random.integers(0, CODES, 2_000).tolist(), strict=True))
    assert folded(engine(quiet=True), events, 1, [500, 777], 1_000) == plain(events, 1, 1_000)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("ids", "codes", "message"),
    [
        ([-1], [0], "rooms are not negative"),
        ([1], [CODES], f"codes are below {CODES}"),
        ([1, 2], [0], "2 rooms and 1 codes"),
        ([1.0], [0], "rooms are int64 and codes uint8, not float64 and uint8"),
    ],
)
def test_bad_input_raises_before_anything_changes(
    engine: Callable[..., Rooms], ids: list[Any], codes: list[int], message: str
) -> None:
    """A negative room, a byte that is no event, or columns of two lengths are refused, and nothing was taken in."""
    rooms = engine()
    with pytest.raises(ValueError, match=message):
        rooms.feed(np.array(ids), np.array(codes, np.uint8), 1)
    assert rooms.count == 0


def test_the_compiled_loops_say_in_python_what_they_say_compiled() -> None:
    """Run as plain Python, the loops of the fast engine give the plain loop's answer too."""
    pytest.importorskip("numba", reason="the engine `fast` is numba's")
    from kvlatch.reference.logs import fast as log_fast

    random = np.random.default_rng(3)
    rooms = random.integers(0, 40, 400)
    codes = random.integers(0, CODES, 400).astype(np.uint8)
    keys, slots = np.full(64, -1, np.int64), np.empty(400, np.int32)
    with np.errstate(over="ignore"):  # the hash is a product modulo 2**64
        assert log_fast.find(rooms, keys, 58, 0, slots) == -1
        keys = np.full(128, -1, np.int64)
        count = log_fast.find(rooms, keys, 57, 0, slots)
    assert count == len(set(rooms.tolist()))
    assert keys[slots].tolist() == rooms.tolist()
    state, violated, hits, before = np.zeros(128, np.uint8), np.zeros(128, bool), np.empty(400, np.int64), codes.copy()
    last = np.zeros(128, np.uint64)
    found = log_fast.fold(slots, codes, 1, state, violated, last,
                          TABLES.left, TABLES.broken, TABLES.carry, hits, before)  # fmt: skip
    expected = plain(list(zip(rooms.tolist(), codes.tolist(), strict=True)), 1, 1)
    broken = {int(rooms[i]): (int(i) + 1, status(int(known)), int(codes[i]))
              for i, known in zip(hits[:found], before[:found], strict=True)}  # fmt: skip
    assert broken == expected.broken


def test_no_table_entry_speaks_of_a_byte_that_is_no_event() -> None:
    """Bytes from CODES on, and silent events, neither leave a state nor break a law."""
    for table in (TABLES.left, TABLES.broken, TABLES.carry):
        assert not table[SILENT:].any()
