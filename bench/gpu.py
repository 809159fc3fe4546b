"""The kernels on a GPU: against their twins, their PTX proved, and events a second beside the device's own copies.

``python bench/gpu.py``; exit code 1 where a result differs from the twin or an obligation is not proved, 4 where there
is no GPU. It has not run on a GPU yet.

Each kernel runs on a million events over a million rooms, over eight and over one, and must leave what its twin leaves;
of ``write_status``, which takes the events in an order of its own, what it leaves must be possible. A figure is the
median of twenty public calls of 64 million events, checks of the input included, on rooms in no order (``check_log``
takes them room by room, so there they are sorted). Its share is of the bandwidth of a copy in the same run, and counts
the bytes of the events alone, not those of the words.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Final

import numpy as np

from kvlatch.reference.arrays import kernels
from kvlatch.reference.arrays.device import Array, NoDevice, module, to_host
from kvlatch.reference.arrays.kernels import ABSENT, FAILED, KERNELS, NEVER, SUCCESS

EVENTS: Final = 1_000_000
ROOMS: Final = (1_000_000, 8, 1)
"""Random, contended, and all events on one word."""
TIMED_EVENTS: Final = 2**26
BYTES: Final = {"write_status": 6, "fold_statuses": 5, "first_occurrence": 5, "check_log": 6}
"""Of one event, in the arrays that have one element an event."""


def events(rng: np.random.Generator, count: int, rooms: int, *, grouped: bool = True) -> dict[str, Array]:
    """A table with some statuses, and events, of which a thousandth was observed wrong; ``grouped``: room by room."""
    status_of = rng.integers(0, ABSENT + 1, rooms).astype(np.int32)
    room = rng.integers(0, rooms, count).astype(np.int32)
    if grouped:
        room = np.sort(room)
    incoming = rng.integers(0, 5, count).astype(np.uint8)
    observed = kernels.write_status(status_of.copy(), room, incoming)
    wrong = rng.random(count) < 0.001
    observed[wrong] = rng.integers(0, 5, int(wrong.sum()))
    return {"status_of": status_of, "room": room, "incoming": incoming, "observed": observed}


def run(kernel: str, given: dict[str, Array], xp: ModuleType) -> tuple[Array, Array | None]:
    """The words that a kernel leaves, and what it returns, on NumPy or on the GPU, as NumPy arrays."""
    status_of, room, incoming, observed = (xp.asarray(array.copy()) for array in given.values())
    returned = None
    match kernel:
        case "write_status":
            words = status_of
            returned = to_host(kernels.write_status(words, room, incoming))
        case "fold_statuses":
            words = kernels.keys(status_of)
            kernels.fold_statuses(words, room, incoming)
        case "first_occurrence":
            words = kernels.firsts(status_of)
            kernels.first_occurrence(words, room, incoming)
        case _:
            words = xp.full(len(status_of), NEVER, xp.uint64)
            kernels.check_log(words, status_of, room, incoming, observed)
    return to_host(words), returned


def agree(kernel: str, given: dict[str, Array], on_gpu: tuple[Array, Array | None]) -> bool:
    """The GPU leaves what the twin leaves; of ``write_status``, what it leaves and returns is possible."""
    words, stands = on_gpu
    expected, _ = run(kernel, given, np)
    if stands is None:
        return bool(np.array_equal(words, expected))
    rooms = len(words)
    failed, success = (
        np.bincount(given["room"][given["incoming"] == status], minlength=rooms) > 0 for status in (FAILED, SUCCESS)
    )
    open_ = ~np.isin(given["status_of"], (FAILED, SUCCESS)) & failed & success  # either may be the first
    final = np.where(open_, np.isin(words, (FAILED, SUCCESS)), words == expected)
    last = words[given["room"]]
    over = np.isin(stands, (FAILED, SUCCESS))
    told = np.where(
        over, stands == last, (stands >= given["incoming"]) & ~np.isin(given["incoming"], (FAILED, SUCCESS))
    )
    return bool(final.all() and told.all())


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
        given = events(rng, EVENTS, rooms)
        for kernel in KERNELS:
            same = agree(kernel, given, run(kernel, given, xp))
            fine &= same
            print(f"{kernel:<17} {EVENTS} events, {rooms} rooms: {'as the twin' if same else 'NOT as the twin'}")
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
        mixed, grouped = (
            {name: xp.asarray(array) for name, array in events(rng, TIMED_EVENTS, rooms, grouped=kind).items()}
            for kind in (False, True)
        )
        empty = xp.full(rooms, ABSENT, xp.int32)
        two = {"room": mixed["room"], "incoming": mixed["incoming"]}
        before_of = grouped.pop("status_of")
        started: dict[str, tuple[Array, Callable[[Array], object]]] = {
            "write_status": (empty, partial(kernels.write_status, **two)),
            "fold_statuses": (kernels.keys(empty), partial(kernels.fold_statuses, **two)),
            "first_occurrence": (kernels.firsts(empty), partial(kernels.first_occurrence, **two)),
            "check_log": (
                xp.full(rooms, NEVER, xp.uint64),
                partial(kernels.check_log, before_of=before_of, **grouped),
            ),
        }
        for kernel, (clean, call) in started.items():
            words = clean.copy()

            def once(call: Callable[[Array], object] = call, words: Array = words) -> None:
                call(words)

            def fresh(words: Array = words, clean: Array = clean) -> None:
                xp.copyto(words, clean)

            rate = TIMED_EVENTS / seconds(xp, once, fresh)
            share = rate * BYTES[kernel] / bandwidth
            print(f"{kernel:<17} {rooms:>9} rooms {rate / 1e9:8.2f} G events/s {share:7.1%} of the copy's bandwidth")


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
