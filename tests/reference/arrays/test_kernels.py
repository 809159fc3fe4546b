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
from kvlatch.reference.arrays import kernels
from kvlatch.reference.arrays.kernels import ABSENT, KERNELS, NEVER, SOURCE, compiled
from kvlatch.spec.merges import KEEP, first_terminal_wins, table
from tests.reference.arrays import cupy_facade, simt

Array = npt.NDArray[Any]
BY_NAME: Final = {planted.name: planted for planted in PLANTED}

CAUGHT: Final = {
    "atomic-max": {"simt", "host"},
    "lost-update": {"simt", "host"},
    "no-retry": {"simt"},
    "stale-retry": {"simt"},
    "second-write": {"simt"},
    "wrong-cell": {"simt", "host"},
    "wrong-report": {"simt", "host"},
    "plain-load": {"host"},
    "off-by-one": {"simt"},
    "no-bound": {"simt"},
    "narrow-index": set(),
    "byte-offset": {"simt"},
    "position-zero": {"simt", "host"},
    "last-terminal": {"simt", "host"},
    "wrong-row": {"simt", "host"},
    "lost-first": {"simt", "host"},
    "before-first": {"simt"},
    "other-room": {"simt", "host"},
}
"""Who catches each planted bug, besides the solvers, which catch them all: the PTX under schedules (``simt``), and g++
with the thread sanitizer and a comparison of results (``host``). A bug may be caught by luck where it is not listed."""


# --------------------------------------------------------------------------------------------------------------------
# Batches, and what may come of them


@attrs.frozen
class Batch:
    """Events over a few rooms, those of a room together; ``observed`` is for the log check."""

    status_of: tuple[int, ...]
    room: tuple[int, ...]
    incoming: tuple[int, ...]
    observed: tuple[int, ...]
    start: int = 0

    def arguments(self, kernel: str) -> list[Any]:
        """What the CUDA kernel is given, as new arrays."""
        events = [np.array(self.room, np.int32), np.array(self.incoming, np.uint8)]
        table_ = np.array(self.status_of, np.int32)
        match kernel:
            case "write_status":
                return [table_, *events, np.full(len(self.room), 99, np.uint8), len(self.room)]
            case "fold_statuses":
                return [kernels.keys(table_), *events, self.start, len(self.room)]
            case "first_occurrence":
                return [kernels.firsts(table_), *events, self.start, len(self.room)]
        observed = np.array(self.observed, np.uint8)
        violations = np.full(len(table_), NEVER, np.uint64)
        return [violations, table_, *events, observed, self.start, len(self.room)]

    def in_order(self, order: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """By the spec's table: every room's status after all events, and what stood right after each."""
        status, stands = list(self.status_of), [99] * len(order)
        for event in order:
            room = self.room[event]
            stored = TABLE[status[room]][self.incoming[event]]
            status[room] = status[room] if stored == KEEP else int(stored)
            stands[event] = status[room]
        return tuple(status), tuple(stands)

    def allows(self, kernel: str, after: Sequence[Any]) -> bool:
        """The arrays are what some order of the events gives; but for ``write_status`` that is what any order gives."""
        if kernel == "write_status":
            got = tuple(after[0].tolist()), tuple(after[3].tolist())
            return any(self.in_order(order) == got for order in permutations(range(len(self.room))))
        twin = self.arguments(kernel)
        getattr(kernels, kernel)(*twin[:-1])
        return bool(np.array_equal(twin[0], after[0]))


TABLE: Final = table(first_terminal_wins)


@st.composite
def batches(draw: st.DrawFn, events: int = 6) -> Batch:
    """Batches in which about half of the observed statuses are right."""
    rooms = draw(st.integers(1, 3))
    status = tuple(draw(st.lists(st.integers(0, ABSENT), min_size=rooms, max_size=rooms)))
    room = tuple(sorted(draw(st.lists(st.integers(0, rooms - 1), max_size=events))))
    statuses = st.lists(st.integers(0, 4), min_size=len(room), max_size=len(room))
    incoming, noise = tuple(draw(statuses)), draw(statuses)
    right = Batch(status, room, incoming, ()).in_order(range(len(room)))[1]
    wrong = draw(st.lists(st.booleans(), min_size=len(room), max_size=len(room)))
    observed = tuple(n if w else r for n, w, r in zip(noise, wrong, right, strict=True))
    return Batch(status, room, incoming, observed, draw(st.integers(0, 2**58)))


# --------------------------------------------------------------------------------------------------------------------
# The twins


@given(batches(12))
def test_the_twin_of_write_status_is_the_spec_event_by_event(batch: Batch) -> None:
    """The table and what stands after each event are those of the spec's table, applied one by one."""
    status_of, room, incoming, *_ = batch.arguments("write_status")
    stands = kernels.write_status(status_of, room, incoming)
    assert (tuple(status_of.tolist()), tuple(stands.tolist())) == batch.in_order(range(len(batch.room)))


@given(batches(12), st.integers(0, 12))
def test_folds_and_first_positions_tell_the_status_at_any_event(batch: Batch, cut: int) -> None:
    """Keys give the last status, first positions that after each event, whichever way the log is cut in two."""
    key_of, room, incoming, start, _ = batch.arguments("fold_statuses")
    first_of = kernels.firsts(np.array(batch.status_of, np.int32))
    for part, first in ((slice(0, cut), start), (slice(cut, None), start + min(cut, len(batch.room)))):
        kernels.fold_statuses(key_of, room[part], incoming[part], first)
        kernels.first_occurrence(first_of, room[part], incoming[part], first)
    last, _ = batch.in_order(range(len(batch.room)))
    assert tuple(kernels.statuses(key_of).tolist()) == last
    for events in range(len(batch.room) + 1):
        prefix = attrs.evolve(batch, room=batch.room[:events], incoming=batch.incoming[:events])
        then = kernels.statuses_at(first_of, batch.start + events)
        assert tuple(then.tolist()) == prefix.in_order(range(events))[0]


@given(batches(12))
def test_the_twin_of_check_log_finds_the_first_event_that_is_not_the_merge(batch: Batch) -> None:
    """For each room, the first position at which what was observed is not the spec's merge of what was before."""
    violation_of, before_of, room, incoming, observed, start, _ = batch.arguments("check_log")
    kernels.check_log(violation_of, before_of, room, incoming, observed, start)
    expected = [NEVER] * len(batch.status_of)
    status = list(batch.status_of)
    for event, at in enumerate(batch.room):
        stored = TABLE[status[at]][batch.incoming[event]]
        if batch.observed[event] != (status[at] if stored == KEEP else stored):
            expected[at] = min(expected[at], batch.start + event + 1)
        status[at] = batch.observed[event]
    assert violation_of.tolist() == expected


def test_a_large_batch_stays_within_its_words() -> None:
    """A million events over two rooms and over a million: the twin agrees with the fold, whose keys are wider."""
    rng = np.random.default_rng(7)
    for rooms in (2, 1_000_000):
        room = rng.integers(0, rooms, 1_000_000).astype(np.int32)
        incoming = rng.integers(0, 5, 1_000_000).astype(np.uint8)
        status_of = np.full(rooms, ABSENT, np.int32)
        key_of = kernels.keys(status_of)
        kernels.write_status(status_of, room, incoming)
        kernels.fold_statuses(key_of, room, incoming)
        assert np.array_equal(kernels.statuses(key_of), status_of)


def _wrong(kernel: str, number: int, value: Array) -> list[Any]:
    arguments = GOOD.arguments(kernel)[:-1]
    arguments[number] = value
    return arguments[:3] if kernel == "write_status" else arguments


GOOD: Final = Batch((1, ABSENT), (0, 0, 1), (0, 3, 1), (0, 0, 1))


@pytest.mark.parametrize(
    ("kernel", "number", "value", "words"),
    [
        ("write_status", 0, np.zeros(2, np.int64), "status_of is an array of int64, not of int32"),
        ("write_status", 0, np.zeros((2, 1), np.int32), "not a contiguous array of one dimension"),
        ("write_status", 0, np.zeros(4, np.int32)[::2], "not a contiguous array of one dimension"),
        ("write_status", 0, np.array([1, 6], np.int32), "status_of has 6, which is not from 0 to 5"),
        ("write_status", 1, np.array([0, 0, 2], np.int32), "room has 2, which is not from 0 to 1"),
        ("write_status", 1, np.array([0, 0, -1], np.int32), "room has -1"),
        ("write_status", 2, np.array([0, 5, 1], np.uint8), "incoming has 5, which is not from 0 to 4"),
        ("write_status", 2, np.array([0], np.uint8), "incoming has 1 events and room 3"),
        ("write_status", 0, [0, 1], "neither a NumPy nor a CuPy array: list"),
        ("write_status", 1, [0, 0, 1], "neither a NumPy nor a CuPy array: list"),
        ("fold_statuses", 3, -1, "start is -1"),
        ("fold_statuses", 3, 2**59, "which is not from 0 to"),
        ("first_occurrence", 0, np.zeros(9, np.uint64), "first_of has 9 elements, which is not 5 a room"),
        ("check_log", 1, np.zeros(3, np.int32), "before_of has 3 rooms and violation_of 2"),
        ("check_log", 4, np.array([0, 0, 5], np.uint8), "observed has 5"),
    ],
)
def test_bad_input_raises_before_anything_changes(kernel: str, number: int, value: Any, words: str) -> None:
    """What is wrong with an array is said by its name, and no array has changed."""
    arguments = _wrong(kernel, number, value)
    before = [np.copy(argument) for argument in arguments]
    with pytest.raises((TypeError, ValueError), match=words):
        getattr(kernels, kernel)(*arguments)
    assert all(np.array_equal(a, b) for a, b in zip(arguments, before, strict=True))


def test_arrays_that_overlap_are_refused() -> None:
    """The proofs take arrays for disjoint, so a table that is also the list of rooms is refused."""
    both = np.zeros(3, np.int32)
    with pytest.raises(ValueError, match="status_of and room overlap in memory"):
        kernels.write_status(both, both, np.zeros(3, np.uint8))


def test_a_batch_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit, which the words of the twin have, a batch has to be split."""
    monkeypatch.setattr(kernels, "MOST_EVENTS", 2)
    with pytest.raises(ValueError, match="3 events are too many for one batch: split it into batches of 2"):
        kernels.write_status(*GOOD.arguments("write_status")[:3])


def test_keys_and_first_positions_use_nothing_that_cupy_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The array code around the kernels gives the same on a device that refuses what CuPy refuses."""
    status_of = np.arange(ABSENT + 1, dtype=np.int32)
    cupy = cupy_facade.xp
    monkeypatch.setattr(cupy, "ndarray", cupy_facade.DeviceArray, raising=False)
    with patch.dict(sys.modules, cupy=cupy), patch.object(kernels, "_statuses"):
        device = cupy.asarray(status_of)
        key_of, first_of = kernels.keys(device), kernels.firsts(device)
        tables = kernels.statuses(key_of).get(), kernels.statuses_at(first_of, 0).get()
    assert np.array_equal(key_of.get(), kernels.keys(status_of))
    assert np.array_equal(first_of.get(), kernels.firsts(status_of))
    assert all(np.array_equal(table_, status_of) for table_ in tables)


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
    kernel = _ptx()["write_status"]
    schedules = 0
    for status, first, second in product(range(ABSENT + 1), range(5), range(5)):
        batch = Batch((status,), (0, 0), (first, second), ())
        found: set[object] = set()

        def run(choose: simt.Choose, batch: Batch = batch, found: set[object] = found) -> None:
            table_, _, _, stands, _ = _outcome(kernel, batch, choose)
            found.add((tuple(table_.tolist()), tuple(stands.tolist())))

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
        status = tuple(rng.randrange(ABSENT + 1) for _ in range(2))
        room = tuple(sorted(rng.randrange(2) for _ in range(rng.randrange(1, 4))))
        incoming = tuple(rng.randrange(5) for _ in room)
        observed = Batch(status, room, incoming, ()).in_order(range(len(room)))[1]
        batch = Batch(status, room, incoming, observed)
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
def device() -> Iterator[None]:
    """CuPy, as far as the launches use it."""
    fake: Any = ModuleType("cupy")
    fake.ndarray, fake.RawModule = DeviceArray, DeviceModule
    fake.may_share_memory, fake.uint8 = np.may_share_memory, np.uint8
    fake.empty = lambda length, dtype: np.empty(length, dtype).view(DeviceArray)
    fake.cuda = ModuleType("cupy.cuda")
    fake.cuda.Device = Device
    kernels._loaded.cache_clear()
    with patch.dict(sys.modules, cupy=fake):
        yield
    kernels._loaded.cache_clear()


@needs_nvrtc
@settings(max_examples=10)
@pytest.mark.parametrize("kernel", KERNELS)
@given(batch=batches())
def test_the_launch_hands_over_what_the_kernel_takes(kernel: str, batch: Batch) -> None:
    """Grid, order and types of the arguments fit the PTX: on a device that interprets it, kernel and twin agree."""
    count = 3 if kernel == "write_status" else -1
    arguments = [a if isinstance(a, int) else a.view(DeviceArray) for a in batch.arguments(kernel)[:count]]
    with device():
        stands = getattr(kernels, kernel)(*arguments)
    assert batch.allows(kernel, [*(a if isinstance(a, int) else a.view(np.ndarray) for a in arguments), stands])


@needs_nvrtc
def test_arrays_in_two_memories_are_refused() -> None:
    """A table on the device and events that are not: TypeError, before anything is launched."""
    status_of, room, incoming, *_ = GOOD.arguments("write_status")
    with device(), pytest.raises(TypeError, match="NumPy and CuPy arrays are mixed"):
        kernels.write_status(status_of.view(DeviceArray), room, incoming)


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


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_bench_accepts_what_a_gpu_may_leave_and_nothing_else(kernel: str) -> None:
    """Events in another order are accepted, where the kernel has no order; one wrong word is not."""
    bench = _bench()
    given_ = bench.events(np.random.default_rng(1), 2_000, 50)
    words, stands = bench.run(kernel, given_, np)
    if stands is not None:
        order = np.random.default_rng(2).permutation(2_000)
        shuffled = given_ | {name: given_[name][order] for name in ("room", "incoming", "observed")}
        words, returned = bench.run(kernel, shuffled, np)
        stands = np.empty_like(returned)
        stands[order] = returned
    assert bench.agree(kernel, given_, (words, stands))
    wrong = words.copy()
    wrong[words.argmax()] -= 1
    assert not bench.agree(kernel, given_, (wrong, stands))


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
    if _host(folder / "host", "kernels", "write_status", GOOD, 1) is None:
        pytest.skip("programs under the thread sanitizer do not start here")
    return folder / "host"


EXTERN: Final = 'extern "C" '
MAIN: Final = """int main(int, char **given) {
const std::string name = given[1];
const unsigned events = std::stoul(given[2]), threads = std::stoul(given[3]);
"""


def _host(program: Path, variant: str, kernel: str, batch: Batch, threads: int) -> list[Any] | None:
    """The arrays after a run on so many CPU threads; None if the sanitizer has found a race, or the run has failed."""
    arguments = batch.arguments(kernel)
    given_ = (str(a) if isinstance(a, int) else f"{len(a)} {' '.join(map(str, a.tolist()))}" for a in arguments)
    command = [str(program), f"{variant}/{kernel}", str(len(batch.room)), str(threads)]
    done = subprocess.run(command, input="\n".join(given_), capture_output=True, text=True, check=False, timeout=60)
    if done.returncode:
        return None
    lines = iter(done.stdout.splitlines())
    return [a if isinstance(a, int) else np.array(next(lines).split(), a.dtype) for a in arguments]


def _crowd(kernel: str) -> Batch:
    """A hundred rooms, five events each, which CPU threads take in turn: 0, 1, 2, 3, 0; then 1, 2, 3, 0, 1; and so on.

    Whichever thread is first, there are rooms in which another one still has something to write after it.
    """
    room = tuple(event // 5 for event in range(500))
    incoming = tuple(1 + event % 5 % 3 if kernel == "write_status" else event // 5 % 5 for event in range(500))
    batch = Batch((ABSENT,) * 100, room, incoming, ())
    return attrs.evolve(batch, observed=batch.in_order(range(500))[1])


@pytest.mark.parametrize("kernel", KERNELS)
def test_no_race_among_cpu_threads(program: Path, kernel: str) -> None:
    """The thread sanitizer reports nothing about the source as it is, and the arrays end as those of the twin."""
    batch = _crowd(kernel)
    after = _host(program, "kernels", kernel, batch, 4)
    assert after is not None
    twin = batch.arguments(kernel)
    getattr(kernels, kernel)(*(twin[:3] if kernel == "write_status" else twin[:-1]))
    assert np.array_equal(after[0], twin[0])


@pytest.mark.parametrize("planted", [name for name, by in CAUGHT.items() if "host" in by])
def test_cpu_threads_catch_a_planted_bug(program: Path, planted: str) -> None:
    """The sanitizer reports a race, or a run on one thread does not end as the twin."""
    name = BY_NAME[planted].kernel
    small = Batch((0, 4, 2, ABSENT), (0, 1, 2, 2, 2, 3), (3, 0, 4, 0, 3, 1), (0, 4, 4, 4, 4, 1))
    alone = _host(program, planted, name, small, 1)
    crowded = _host(program, planted, name, _crowd(name), 4) if alone is not None else None
    assert alone is None or not _twin_agrees(name, small, alone) or crowded is None


def _twin_agrees(kernel: str, batch: Batch, after: Sequence[Any]) -> bool:
    """The arrays are those of the events in their order."""
    if kernel == "write_status":
        got = tuple(after[0].tolist()), tuple(after[3].tolist())
        return batch.in_order(range(len(batch.room))) == got
    return batch.allows(kernel, after)
