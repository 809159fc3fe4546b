"""The kernels on a GPU: against their twins, their PTX proved, and events a second beside the device's own copies.

``python bench/gpu.py``; exit code 1 where a result differs from the twin or an obligation is not proved, 4 where there
is no GPU. It has not run on a GPU yet.

Each kernel runs on a million events and must leave what its twin leaves: writes to rooms in no order, one a room, as
the array manager gives them; log events room by room over a million rooms, over eight and over one. A figure is the
median of twenty public calls of 64 million events, checks of the input included. Its share is of the bandwidth of a
copy in the same run, and counts the bytes of the events alone, not those of the words.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Final

import numpy as np

from kvlatch.reference.arrays import kernels
from kvlatch.reference.arrays.device import Array, NoDevice, module, to_host
from kvlatch.reference.arrays.kernels import KEEPS, KERNELS, NOW
from kvlatch.reference.arrays.tables import ABSENT, NOTHING
from kvlatch.reference.logs.codes import SILENT
from kvlatch.reference.logs.rooms import Tables
from kvlatch.spec.merges import KEEP, first_terminal_wins, table

EVENTS: Final = 1_000_000
ROOMS: Final = (1_000_000, 8, 1)
"""Of the log check: random, contended, and all events on one word."""
TIMED_EVENTS: Final = 2**26
BYTES: Final = {"write_entry": 8, "mark_rooms": 5}
"""Of one event, in the arrays that have one element an event."""
LOOKED: Final = 0b11101


def inputs(rng: np.random.Generator, count: int, rooms: int) -> dict[str, list[Array]]:
    """The arrays of a public call of each kernel, the words first: the writes of a wave, and a log room by room."""
    rows = table(first_terminal_wins)
    merge = np.array([KEEPS if cell == KEEP else int(cell) for row in (*rows, rows[-1]) for cell in row], np.uint8)
    entries = rng.integers(0, ABSENT + 1, count).astype(np.uint32) | np.uint32(NOTHING << 16)
    room = rng.permutation(count).astype(np.int32)
    read, incoming = np.full(count, NOW, np.uint8), rng.integers(0, 5, count).astype(np.uint8)
    of_log = Tables.of()
    tables = [of_log.left, of_log.suspicious, of_log.again, of_log.clears]
    state = (1 << rng.integers(0, ABSENT + 1, rooms)).astype(np.uint8)
    grouped = np.sort(rng.integers(0, rooms, count).astype(np.int32))
    code = rng.integers(0, SILENT, count).astype(np.uint8)
    return {
        "write_entry": [entries, merge, room, read, incoming, np.zeros(count, np.uint8)],
        "mark_rooms": [np.zeros(rooms, np.uint32), state, *tables, grouped, code],
    }


def call(xp: ModuleType, kernel: str, given: list[Array]) -> Array:
    """The words that a public call leaves, on NumPy or on the GPU; those that are given stay as they are."""
    words, *others = (xp.asarray(array.copy()) for array in given)
    public(xp, kernel, words, others)
    return to_host(words)


def public(xp: ModuleType, kernel: str, words: Array, others: list[Array]) -> None:
    """One public call of a kernel."""
    if kernel == "write_entry":
        kernels.write_entry(xp, words, *others, tombstones=True)
    else:
        state, *tables, room, code = others
        kernels.mark_rooms(xp, words, state, (tables[0], tables[1], tables[2], tables[3]), room, code, LOOKED)


def agree(kernel: str, given: list[Array], words: Array) -> bool:
    """These are the words that the twin leaves."""
    return bool(np.array_equal(call(np, kernel, given), words))


def main() -> int:
    """Compare, prove, measure; the exit code."""
    try:
        xp = module("gpu")
    except NoDevice as error:
        print(f"not measured: {error}")
        return 4
    target = kernels.architecture()
    print(f"{xp.cuda.runtime.getDeviceProperties(0)['name'].decode()}, sm_{target}, CuPy {xp.__version__}")
    rng = np.random.default_rng(1)
    fine = True
    for rooms in ROOMS:
        for kernel, given in inputs(rng, EVENTS, rooms).items():
            same = agree(kernel, given, call(xp, kernel, given))
            fine &= same
            print(
                f"{kernel:<11} {EVENTS} events, {len(given[0])} rooms: {'as the twin' if same else 'NOT as the twin'}"
            )
    fine &= proved(target)
    measure(xp, rng)
    return 0 if fine else 1


def proved(architecture: int) -> bool:
    """Whether the PTX of this machine's NVRTC is proved; the findings are printed."""
    try:
        from kvlatch.proofs.ptx.kernels import exit_code, lines, prove_kernels
    except ImportError as error:
        print(f"not proved: {error}")
        return False
    findings = prove_kernels([architecture])
    print(*lines(findings), sep="\n")
    return exit_code(findings) == 0


def measure(xp: ModuleType, rng: np.random.Generator) -> None:
    """Print events a second of each kernel, beside a copy of the device's own memory."""
    source, target = xp.zeros(2**30, xp.uint8), xp.empty(2**30, xp.uint8)
    bandwidth = 2 * source.nbytes / seconds(xp, lambda: xp.copyto(target, source))
    print(f"copy on the device: {bandwidth / 1e9:.0f} GB/s, read and write")
    for rooms in (ROOMS[0], 1_000, 1):
        for kernel in KERNELS:
            words, *others = (xp.asarray(array) for array in inputs(rng, TIMED_EVENTS, rooms)[kernel])
            clean = words.copy()

            def once(kernel: str = kernel, words: Array = words, others: list[Array] = others) -> None:
                public(xp, kernel, words, others)

            def fresh(words: Array = words, clean: Array = clean) -> None:
                xp.copyto(words, clean)

            rate = TIMED_EVENTS / seconds(xp, once, fresh)
            share = rate * BYTES[kernel] / bandwidth
            print(
                f"{kernel:<11} {len(words):>9} rooms {rate / 1e9:8.2f} G events/s {share:7.1%} of the copy's bandwidth"
            )


def seconds(
    xp: ModuleType, call: Callable[[], None], before: Callable[[], None] = lambda: None, times: int = 20
) -> float:
    """The median time of a call on the GPU, by its own clock, after one call that does not count."""
    taken = []
    for _ in range(times + 1):
        before()
        start, end = xp.cuda.Event(), xp.cuda.Event()
        start.record()
        call()
        end.record()
        end.synchronize()
        taken.append(xp.cuda.get_elapsed_time(start, end) / 1e3)
    return float(np.median(taken[1:]))


if __name__ == "__main__":
    sys.exit(main())
