"""The kernels without a GPU: twins against the spec, PTX under every schedule, and g++ with the thread sanitizer.

What the solvers say of the PTX is in ``tests/proofs/ptx/test_kernels.py``. ``CAUGHT`` says who catches which bug.
"""

from __future__ import annotations

import importlib.util
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import permutations, product
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Self
from unittest.mock import patch

import attrs
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlatch.proofs.ptx import reader as ptx
from kvlatch.proofs.ptx.planted import PLANTED
from kvlatch.reference.arrays import core, kernels
from kvlatch.reference.arrays.kernels import AGAIN, CLEARED, KEEPS, KERNELS, NOW, SOURCE, SUSPECT, compiled
from kvlatch.reference.arrays.manager import Batch as BatchOfManager
from kvlatch.reference.arrays.manager import Manager, Operation
from kvlatch.reference.arrays.tables import ABSENT, NOTHING, TOMBSTONE
from kvlatch.reference.logs import rooms
from kvlatch.reference.logs.codes import SILENT, encode
from kvlatch.reference.logs.events import TABLE_OPS
from kvlatch.spec.designs import DESIGNS
from kvlatch.spec.merges import KEEP, Merge, failure_overrides, first_terminal_wins, table
from kvlatch.spec.status import TERMINAL
from tests.reference.arrays import cupy_facade, simt

Array = npt.NDArray[Any]
BY_NAME: Final = {planted.name: planted for planted in PLANTED}

CAUGHT: Final = {
    "atomic-max": {"simt", "host"},
    "lost-update": {"simt", "host"},
    "no-retry": {"simt"},
    "stale-retry": {"simt"},
    "second-write": set(),
    "wrong-row": {"simt", "host"},
    "stale-read": {"simt", "host"},
    "tombstone-revived": {"simt", "host"},
    "other-request": {"simt", "host"},
    "last-terminal": {"simt"},
    "wrong-report": {"simt", "host"},
    "plain-load": {"host"},
    "off-by-one": {"simt"},
    "no-bound": {"simt"},
    "narrow-index": set(),
    "byte-offset": {"simt"},
    "lost-mark": {"simt", "host"},
    "before-first": {"simt"},
    "other-room": {"simt", "host"},
    "own-state": {"simt", "host"},
    "no-suspicion": {"simt", "host"},
}
"""Who catches each planted bug, besides the solvers, which catch them all: the PTX under schedules (``simt``), and g++
with the thread sanitizer and a comparison of results (``host``). A bug may be caught by luck where it is not listed."""


# --------------------------------------------------------------------------------------------------------------------
# Batches, and what may come of them


@attrs.frozen
class Entry:
    """What the table says of a room."""

    status: int
    stamp: int = 0
    first: int = NOTHING

    @property
    def word(self) -> int:
        """As the kernels have it."""
        return self.status | self.stamp << 8 | self.first << 16


@attrs.frozen
class Batch:
    """Events over a few rooms, those of a room together. For the manager each is a write, for the log check a code."""

    entries: tuple[Entry, ...]
    room: tuple[int, ...]
    incoming: tuple[int, ...]
    request: tuple[int, ...] = ()
    read: tuple[int, ...] = ()
    merge: Merge = first_terminal_wins
    tombstones: bool = True
    code: tuple[int, ...] = ()

    def arguments(self, kernel: str) -> list[Any]:
        """What the CUDA kernel is given, as new arrays."""
        count, events = len(self.entries), len(self.room)
        room = np.array(self.room, np.int32)
        if kernel == "mark_rooms":
            state = np.array([1 << entry.status if entry.status < ABSENT else 0x40 for entry in self.entries], np.uint8)
            tables = [getattr(LOG, name).copy() for name in ("left", "suspicious", "again", "clears")]
            code = np.array(self.code or self.incoming, np.uint8)
            return [np.zeros(count, np.uint32), state, *tables, room, code, LOOKED, events]
        words = np.array([entry.word for entry in self.entries], np.uint32)
        given_ = (self.read or (NOW,) * events, self.incoming, self.request or (0,) * events)
        columns = [np.array(column, np.uint8) for column in given_]
        return [words, MERGES[self.merge], room, *columns, np.full(events, 99, np.uint8), int(self.tombstones), events]

    def in_order(self, order: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """By the spec's table: every room's entry after all events, and what stood right after each."""
        entries, stands = list(self.entries), [99] * len(order)
        for event in order:
            entry, request = entries[self.room[event]], (self.request or (0,) * len(order))[event]
            read = (self.read or (NOW,) * len(order))[event]
            stored = TABLES[self.merge][min(entry.status if read == NOW else read, ABSENT)][self.incoming[event]]
            over = request < entry.stamp or (request == entry.stamp and entry.status == TOMBSTONE)
            if stored != KEEP and not (self.tombstones and over):
                first = int(stored) if entry.first == NOTHING and stored in TERMINAL else entry.first
                entry = Entry(int(stored), request if self.tombstones else entry.stamp, first)
            entries[self.room[event]] = entry
            stands[event] = entry.status
        return tuple(entry.word for entry in entries), tuple(stands)

    def marks(self) -> list[int]:
        """What is remembered of each room, event by event."""
        marks = [0] * len(self.entries)
        _, state, *_ = self.arguments("mark_rooms")
        for room, code in zip(self.room, self.code or self.incoming, strict=True):
            before = int(state[room])
            marks[room] |= before & LOOKED
            marks[room] |= SUSPECT if before & LOG.suspicious[code] else 0
            marks[room] |= AGAIN if before & LOG.again[code] else 0
            marks[room] |= CLEARED if LOG.clears[code] else 0
            state[room] = LOG.left[code]
        return marks

    def allows(self, kernel: str, after: Sequence[Any]) -> bool:
        """The arrays are what some order of the events gives; for marks the order makes no difference."""
        if kernel == "mark_rooms":
            return bool(after[0].tolist() == self.marks())
        got = tuple(after[0].tolist()), tuple(after[6].tolist())
        return any(self.in_order(order) == got for order in permutations(range(len(self.room))))


LOG: Final = rooms.Tables.of()
LOOKED: Final = 0b11101  # both terminal statuses, WaitingForInput and Transferring
TABLES: Final[dict[Merge, Any]] = {merge: table(merge) for merge in (first_terminal_wins, failure_overrides)}
MERGES: Final[dict[Merge, Array]] = {
    merge: np.array([KEEPS if cell == KEEP else int(cell) for row in (*rows, rows[-1]) for cell in row], np.uint8)
    for merge, rows in TABLES.items()
}


@st.composite
def batches(draw: st.DrawFn, events: int = 6) -> Batch:
    """Batches of either kind of table, whose writes read as they store or have read before."""
    number = st.integers
    entry = st.builds(Entry, number(0, TOMBSTONE), number(0, 1), st.sampled_from([0, 4, NOTHING]))
    entries = tuple(draw(st.lists(entry, min_size=1, max_size=3)))
    room = tuple(sorted(draw(st.lists(number(0, len(entries) - 1), max_size=events))))

    def column(*values: int) -> tuple[int, ...]:
        chosen = st.sampled_from(values)
        return tuple(draw(st.lists(chosen, min_size=len(room), max_size=len(room))))

    merge = draw(st.sampled_from(list(MERGES)))
    reads = column(NOW, NOW, *range(TOMBSTONE + 1))
    return Batch(entries, room, column(*range(5)), column(0, 1), reads, merge, draw(st.booleans()), column(*CODES_HERE))


CODES_HERE: Final = tuple(range(SILENT))


# --------------------------------------------------------------------------------------------------------------------
# The twins


def _four(tables: Sequence[Any]) -> tuple[Any, Any, Any, Any]:
    left, suspicious, again, clears = tables
    return left, suspicious, again, clears


def twin(kernel: str, arguments: Sequence[Any]) -> Any:
    """Call the function of a kernel with what the CUDA kernel is given."""
    if kernel == "mark_rooms":
        marks, state, *tables, room, code, looked, _ = arguments
        return kernels.mark_rooms(np, marks, state, _four(tables), room, code, looked)
    *arrays, _, tombstones, _ = arguments
    return kernels.write_entry(np, *arrays, tombstones=bool(tombstones))


@given(batches(12))
def test_the_twin_of_write_entry_is_the_spec_room_by_room(batch: Batch) -> None:
    """The table and what stands after each write are those of the spec's table; the twin takes one write a room."""
    first = [batch.room.index(room) for room in sorted(set(batch.room))]
    columns: dict[str, Any] = {
        name: tuple(getattr(batch, name)[at] for at in first) for name in ("room", "incoming", "request", "read")
    }
    one = attrs.evolve(batch, **columns, code=())
    arguments = one.arguments("write_entry")
    stands = twin("write_entry", arguments)
    assert (tuple(arguments[0].tolist()), tuple(stands.tolist())) == one.in_order(range(len(first)))


@given(batches(12))
def test_the_twin_of_mark_rooms_is_a_plain_loop(batch: Batch) -> None:
    """Marks of a room are those that its events set one after the other."""
    arguments = batch.arguments("mark_rooms")
    twin("mark_rooms", arguments)
    assert arguments[0].tolist() == batch.marks()


GOOD: Final = Batch((Entry(1), Entry(ABSENT)), (0, 0, 1), (0, 3, 1))


@pytest.mark.parametrize(
    ("kernel", "number", "value", "words"),
    [
        ("write_entry", 0, np.zeros(2, np.int64), "entry_of is an array of int64, not of uint32"),
        ("write_entry", 0, np.zeros((2, 1), np.uint32), "not a contiguous array of one dimension"),
        ("write_entry", 0, np.zeros(4, np.uint32)[::2], "not a contiguous array of one dimension"),
        ("write_entry", 0, np.array([7, 1], np.uint32), "entry_of has an element that is not valid: number 0"),
        ("write_entry", 0, np.array([1 | 2 << 16, 1], np.uint32), "entry_of has an element that is not valid"),
        ("write_entry", 1, np.zeros(30, np.uint8), "merge has 30 cells, not 35"),
        ("write_entry", 1, np.full(35, 5, np.uint8), "merge has an element that is not valid"),
        ("write_entry", 2, np.array([0, 0, 2], np.int32), "room has a number that is not from 0 to 1"),
        ("write_entry", 2, np.array([0, 0, -1], np.int32), "room has a number that is not from 0 to 1"),
        ("write_entry", 3, np.array([0, 8, 1], np.uint8), "read has an element that is not valid: number 1"),
        ("write_entry", 4, np.array([0, 5, 1], np.uint8), "incoming has an element that is not valid: number 1"),
        ("write_entry", 4, np.array([0], np.uint8), "incoming has 1 events and room 3"),
        ("write_entry", 5, np.array([0, 0, 2], np.uint8), "request has an element that is not valid: number 2"),
        ("write_entry", 0, [0, 1], "entry_of is not an array of numpy: list"),
        ("mark_rooms", 1, np.zeros(3, np.uint8), "a state is missing for some room"),
        ("mark_rooms", 2, np.zeros(200, np.uint8), "a table does not have 256 elements"),
        ("mark_rooms", 7, np.array([0, 0], np.uint8), "code has 2 events and room 3"),
    ],
)
def test_bad_input_raises_before_anything_changes(kernel: str, number: int, value: Any, words: str) -> None:
    """What is wrong with an array is said by its name, and no array has changed."""
    arguments = GOOD.arguments(kernel)
    arguments[number] = value
    before = [np.copy(argument) for argument in arguments]
    with pytest.raises((TypeError, ValueError), match=words):
        twin(kernel, arguments)
    assert all(np.array_equal(a, b) for a, b in zip(arguments, before, strict=True))


def test_arrays_that_overlap_are_refused() -> None:
    """The proofs take arrays for disjoint, so a table that is also the list of rooms is refused."""
    arguments = GOOD.arguments("write_entry")
    arguments[2] = arguments[0].view(np.int32)[:1]
    arguments[3:6] = [column[:1] for column in arguments[3:6]]
    with pytest.raises(ValueError, match="entry_of and room overlap in memory"):
        twin("write_entry", arguments)


@given(batches(12))
def test_the_twins_use_nothing_that_cupy_lacks(batch: Batch) -> None:
    """They give the same on a device that refuses what CuPy refuses."""
    xp: Any = cupy_facade.xp
    here = batch.arguments("mark_rooms")
    arrays: list[Any] = [a if isinstance(a, int) else xp.asarray(a) for a in here]
    marks, state, *tables, room, code, looked, _ = arrays
    kernels.mark_rooms(xp, marks, state, _four(tables), room, code, looked)
    assert marks.get().tolist() == batch.marks()


def test_the_manager_and_the_log_check_go_through_this_face(monkeypatch: pytest.MonkeyPatch) -> None:
    """No status is written, and no room marked, by anything else."""
    asked = []
    for module, name in ((core, "write_entry"), (rooms, "mark_rooms")):
        kernel = getattr(kernels, name)

        def counted(*given_: Any, kernel: Any = kernel, **named: Any) -> Any:
            asked.append(kernel.__name__)
            return kernel(*given_, **named)

        monkeypatch.setattr(module, name, counted)
    manager = Manager(DESIGNS["latch"], "locked", rooms=3)
    manager.apply(BatchOfManager.of(np, Operation.create, room=[0, 1, 2]))
    assert manager.poll().tolist() == [1, 1, 1]
    screen = rooms.Rooms(LOG)
    screen.feed(np.array([7, 7]), np.array(_codes(("write", 0, 0), ("write", 3, 3)), np.uint8))
    assert screen.suspects().tolist() == [7]
    assert asked == list(KERNELS)


# --------------------------------------------------------------------------------------------------------------------
# Compiling


def test_without_nvrtc_the_reason_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where CuPy is not installed, compiling says what to install."""
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setitem(sys.modules, "cupy.cuda", None)
    with pytest.raises(kernels.CannotCompile, match="pip install 'kvlatch"):
        compiled.__wrapped__(90)


@pytest.fixture(scope="module")
def nvrtc() -> None:
    """Skip where NVRTC is not installed, and say so."""
    try:
        compiled(90)
    except kernels.CannotCompile as error:
        pytest.skip(str(error))


needs_nvrtc = pytest.mark.usefixtures("nvrtc")


@needs_nvrtc
def test_what_nvrtc_refuses_is_told() -> None:
    """A source that does not compile raises with NVRTC's own message."""
    with pytest.raises(kernels.CannotCompile, match="is undefined"):
        compiled(90, "__global__ void broken() { nothing(); }")


# --------------------------------------------------------------------------------------------------------------------
# The PTX, under schedules


@cache
def _ptx(planted: str | None = None, architecture: int = 90) -> dict[str, ptx.Kernel]:
    source = BY_NAME[planted].source() if planted else None
    return ptx.read(compiled(architecture, source).ptx)


def _outcome(kernel: ptx.Kernel, batch: Batch, choose: simt.Choose) -> list[Any]:
    arguments = batch.arguments(kernel.name)
    simt.launch(kernel, arguments, -(-len(batch.room) // 4), 4, choose)
    return arguments


@needs_nvrtc
def test_two_writes_in_every_interleaving() -> None:
    """Two threads on one room: what comes of all schedules is just what comes of the two orders of the spec's steps."""
    kernel = _ptx()["write_entry"]
    schedules = 0
    for status, first, second in product(range(TOMBSTONE + 1), range(5), range(5)):
        batch = Batch((Entry(status),), (0, 0), (first, second), (1, second % 2))
        found: set[object] = set()

        def run(choose: simt.Choose, batch: Batch = batch, found: set[object] = found) -> None:
            after = _outcome(kernel, batch, choose)
            found.add((tuple(after[0].tolist()), tuple(after[6].tolist())))

        schedules += simt.schedules(run)
        assert found == {batch.in_order((0, 1)), batch.in_order((1, 0))}
    assert schedules > 1_000


@needs_nvrtc
@settings(max_examples=40)
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("architecture", [90, 100])
@given(batch=batches(), choices=st.lists(st.integers(0, 7), min_size=1))
def test_any_schedule_gives_what_some_order_gives(
    kernel: str, architecture: int, batch: Batch, choices: list[int]
) -> None:
    """Whatever order Hypothesis lets the threads go on in, the arrays are those of the twin in some order of events."""
    assert batch.allows(kernel, _outcome(_ptx(architecture=architecture)[kernel], batch, _cycle(choices)))


def _cycle(choices: Sequence[int]) -> simt.Choose:
    turn = 0

    def choose(of: int) -> int:
        nonlocal turn
        turn += 1
        return choices[turn % len(choices)] % of

    return choose


def _caught_by_simt(planted: str) -> bool:
    """Some small batch, in some of many schedules, faults or gives what no order gives."""
    name = BY_NAME[planted].kernel
    rng = random.Random(1)  # noqa: S311  # chooses examples, not secrets
    for _ in range(400):
        entries = tuple(
            Entry(rng.randrange(TOMBSTONE + 1), rng.randrange(2), rng.choice((0, 4, NOTHING))) for _ in range(2)
        )
        room = tuple(sorted(rng.randrange(2) for _ in range(rng.randrange(1, 4))))

        def column(*values: int, room: tuple[int, ...] = room) -> tuple[int, ...]:
            return tuple(rng.choice(values) for _ in room)

        reads = column(NOW, NOW, NOW, *range(TOMBSTONE + 1))
        batch = Batch(entries, room, column(*range(5)), column(0, 1), reads, code=column(*CODES_HERE))
        try:
            if not batch.allows(name, _outcome(_ptx(planted)[name], batch, rng.randrange)):
                return True
        except simt.Fault:
            return True
    return False


@needs_nvrtc
@pytest.mark.parametrize("planted", [name for name, by in CAUGHT.items() if "simt" in by])
def test_schedules_catch_a_planted_bug(planted: str) -> None:
    """The bug shows in an outcome that no order of events explains, in a fault, or in a thread without end."""
    assert _caught_by_simt(planted)


def test_the_table_of_who_catches_what_is_complete() -> None:
    """Every planted bug has its line."""
    assert list(CAUGHT) == [planted.name for planted in PLANTED]


# --------------------------------------------------------------------------------------------------------------------
# Launching, on a device that is the interpreter


class DeviceArray(np.ndarray[Any, np.dtype[Any]]):
    """An array that passes for one of CuPy."""


class Device:
    """The current GPU, or any other: there is one."""

    id = 0
    compute_capability = "90"

    def __init__(self, number: int = 0) -> None:
        assert number == 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass


@attrs.frozen
class DeviceKernel:
    """A kernel that the interpreter runs, on what ``kernels.py`` gives to the GPU."""

    kernel: ptx.Kernel

    def compile(self) -> None:
        """Nothing is left to do."""

    def __call__(self, grid: tuple[int], block: tuple[int], arguments: tuple[Any, ...]) -> None:
        assert {type(a) for a in arguments} <= {DeviceArray, np.int64}
        given_ = [int(a) if isinstance(a, np.int64) else a.view(np.ndarray) for a in arguments]
        simt.launch(self.kernel, given_, grid[0], block[0], lambda of: of - 1)


class DeviceModule:
    """A module loaded from a file, which must hold what NVRTC has assembled."""

    def __init__(self, path: str) -> None:
        assert Path(path).read_bytes() == compiled(90).cubin

    def get_function(self, name: str) -> DeviceKernel:
        return DeviceKernel(_ptx()[name])


@contextmanager
def device() -> Iterator[Any]:
    """CuPy, as far as the launches use it."""
    fake: Any = ModuleType("cupy")
    fake.ndarray, fake.RawModule = DeviceArray, DeviceModule
    fake.may_share_memory, fake.uint8 = np.may_share_memory, np.uint8
    fake.empty = lambda length, dtype: np.empty(length, dtype).view(DeviceArray)
    fake.concatenate = np.concatenate
    fake.cuda = ModuleType("cupy.cuda")
    fake.cuda.Device = Device
    kernels._loaded.cache_clear()
    with patch.dict(sys.modules, cupy=fake):
        yield fake
    kernels._loaded.cache_clear()


@needs_nvrtc
@settings(max_examples=10)
@pytest.mark.parametrize("kernel", KERNELS)
@given(batch=batches())
def test_the_launch_hands_over_what_the_kernel_takes(kernel: str, batch: Batch) -> None:
    """Grid, order and types of the arguments fit the PTX: on a device that interprets it, kernel and twin agree."""
    given_ = [a if isinstance(a, int) else a.view(DeviceArray) for a in batch.arguments(kernel)]
    with device() as cupy:
        if kernel == "mark_rooms":
            marks, state, *tables, room, code, looked, _ = given_
            kernels.mark_rooms(cupy, marks, state, _four(tables), room, code, looked)
        else:
            *arrays, _, tombstones, _ = given_
            given_[6] = kernels.write_entry(cupy, *arrays, tombstones=bool(tombstones))
    assert batch.allows(kernel, [a if isinstance(a, int) else a.view(np.ndarray) for a in given_])


@needs_nvrtc
def test_arrays_in_two_memories_are_refused() -> None:
    """A table on the device and events that are not: TypeError, before anything is launched."""
    words, *others = GOOD.arguments("write_entry")[:6]
    with device() as cupy, pytest.raises(TypeError, match="merge is not an array of cupy: ndarray"):
        kernels.write_entry(cupy, words.view(DeviceArray), *others, tombstones=True)


# --------------------------------------------------------------------------------------------------------------------
# The bench


def _bench() -> Any:
    spec = importlib.util.spec_from_file_location("bench_gpu", BENCH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


BENCH: Final = Path(__file__).parents[3] / "bench" / "gpu.py"


def test_the_bench_accepts_what_a_gpu_may_leave_and_nothing_else() -> None:
    """What the twins leave is accepted, from the public calls that it times; one wrong word is not."""
    bench = _bench()
    for kernel, given_ in bench.inputs(np.random.default_rng(1), 2_000, 50).items():
        left = bench.call(np, kernel, given_)
        assert bench.agree(kernel, given_, left)
        wrong = left.copy()
        wrong[0] ^= 1
        assert not bench.agree(kernel, given_, wrong)


def test_the_bench_says_that_there_is_no_gpu() -> None:
    """Where CuPy has no device, one line and exit 4."""
    done = subprocess.run(
        [sys.executable, str(BENCH)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
    )
    assert (done.returncode, done.stdout.count("\n"), done.stderr) == (4, 1, "")
    assert done.stdout.startswith("not measured: no GPU to use: ")


# --------------------------------------------------------------------------------------------------------------------
# The source, compiled by g++ for CPU threads


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kernels and all planted ones in one program, under the thread sanitizer."""
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed")
    folder = tmp_path_factory.mktemp("host")
    variants = {"kernels": SOURCE.read_text(encoding="utf-8")} | {p.name: p.source() for p in PLANTED}
    parts = ['#include <string>\n#include "host_shim.h"\n']
    calls = []
    for name, text in variants.items():
        space = name.replace("-", "_")
        parts.append(f"namespace {space} {{\n{text.replace(EXTERN, '')}}}\n")
        calls += [
            f'if (name == "{name}/{kernel}") return launch({space}::{kernel}, events, threads);\n' for kernel in KERNELS
        ]
    parts.append(f"{MAIN} {''.join(calls)} return 99; }}\n")
    (folder / "host.cpp").write_text("".join(parts), encoding="utf-8")
    command = ["g++", "-std=c++20", "-O1", "-fsanitize=thread", "--param=tsan-distinguish-volatile=1"]
    here = Path(__file__).parent
    subprocess.run([*command, f"-I{here}", "host.cpp", "-o", "host"], cwd=folder, check=True, timeout=120)
    if _host(folder / "host", "kernels", "write_entry", GOOD, 1) is None:
        pytest.skip("programs under the thread sanitizer do not start here")
    return folder / "host"


EXTERN: Final = 'extern "C" '
MAIN: Final = """int main(int, char **given) {
const std::string name = given[1];
const unsigned events = std::stoul(given[2]), threads = std::stoul(given[3]);
"""


def _host(program: Path, variant: str, kernel: str, batch: Batch, threads: int) -> list[Any] | None:
    """The arrays after a run on that many CPU threads; None if the sanitizer found a race or the run failed."""
    arguments = batch.arguments(kernel)
    given_ = (str(a) if isinstance(a, int) else f"{len(a)} {' '.join(map(str, a.tolist()))}" for a in arguments)
    command = [str(program), f"{variant}/{kernel}", str(len(batch.room)), str(threads)]
    done = subprocess.run(command, input="\n".join(given_), capture_output=True, text=True, check=False, timeout=60)
    if done.returncode:
        return None
    lines = iter(done.stdout.splitlines())
    return [a if isinstance(a, int) else np.array(next(lines).split(), a.dtype) for a in arguments]


def _crowd() -> Batch:
    """A hundred rooms, five events each, which CPU threads take in turn: 0, 1, 2, 3, 0; then 1, 2, 3, 0, 1; and so on.

    Whichever thread is first, there are rooms in which another one still has something to write after it.
    """
    room = tuple(event // 5 for event in range(500))
    incoming = tuple(1 + event % 5 % 3 for event in range(500))
    codes = tuple(CODES_HERE[event * 7 % len(CODES_HERE)] for event in range(500))
    return Batch((Entry(ABSENT),) * 100, room, incoming, code=codes)


@pytest.mark.parametrize("kernel", KERNELS)
def test_no_race_among_cpu_threads(program: Path, kernel: str) -> None:
    """The thread sanitizer reports nothing about the source as it is, and the arrays end as those of the twin."""
    batch = _crowd()
    after = _host(program, "kernels", kernel, batch, 4)
    assert after is not None
    expected = batch.marks() if kernel == "mark_rooms" else list(batch.in_order(range(500))[0])
    assert after[0].tolist() == expected


@pytest.mark.parametrize("planted", [name for name, by in CAUGHT.items() if "host" in by])
def test_cpu_threads_catch_a_planted_bug(program: Path, planted: str) -> None:
    """The sanitizer reports a race, or a run on one thread does not end as the twin."""
    name = BY_NAME[planted].kernel
    small = Batch(
        (Entry(0, 1, 0), Entry(4, 0, 4), Entry(2, 1), Entry(ABSENT), Entry(TOMBSTONE, 1), Entry(TOMBSTONE)),
        (0, 1, 2, 2, 2, 3, 4, 5), (3, 0, 4, 0, 3, 1, 1, 2), (1, 0, 0, 1, 1, 0, 1, 1),
        (NOW, NOW, NOW, NOW, 2, NOW, NOW, 3),
        code=_codes(("write", 3, 3), ("write", 0, 0), ("create", 5, 1), ("clear", 5, 5), ("create", 5, 1),
                    ("poll", 5, 0), ("write", 0, 0), ("write", 3, 3)),
    )  # fmt: skip
    alone = _host(program, planted, name, small, 1)
    crowded = _host(program, planted, name, _crowd(), 4) if alone is not None else None
    assert alone is None or not _as_in_order(name, small, alone) or crowded is None


def _codes(*events: tuple[str, int, int]) -> tuple[int, ...]:
    return tuple(int(encode(TABLE_OPS.index(op), incoming, observed)) for op, incoming, observed in events)


def _as_in_order(kernel: str, batch: Batch, after: Sequence[Any]) -> bool:
    """The arrays are those of the events in their order."""
    if kernel == "mark_rooms":
        return batch.allows(kernel, after)
    return (tuple(after[0].tolist()), tuple(after[6].tolist())) == batch.in_order(range(len(batch.room)))
