"""The CUDA kernels of ``kernels.cu``, loaded by CuPy, each beside its NumPy twin.

One function a kernel. Given NumPy arrays it runs the twin, given CuPy arrays it launches the kernel; both mean the
same, and neither starts before its input is found valid. *Valid* is what the proofs of the kernels take for granted
(``kvlatch.proofs.ptx.kernels``).

Arrays are one-dimensional and contiguous; all of one call lie in one memory and do not overlap. Throughout,

* ``room``, int32, has the room of each event, from 0; ``incoming``, uint8, the status that the event writes (a
  ``KVPoll``); the events are those of one batch, in their order;
* a status in a table, int32, is a ``KVPoll`` or :data:`ABSENT`;
* a position, uint64, counts events from 1: that of event ``i`` is ``start + i + 1``, so batches of one log follow one
  another with growing ``start``, and position 0 is left for what there was before.

The merge is first-terminal-wins, that of ``latch``. Nothing of CuPy is imported before it is needed. NVRTC compiles
without a GPU, so :func:`compiled` works wherever the ``gpu`` extra is installed.
"""

from __future__ import annotations

import sys
import tempfile
from functools import cache
from itertools import combinations
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import attrs
import numpy as np

from kvlatch.reference.arrays.device import Array
from kvlatch.spec.status import ABSENT as ABSENT_NAME
from kvlatch.spec.status import STATUS, KVPoll

KERNELS: Final = ("write_status", "fold_statuses", "first_occurrence", "check_log")
SOURCE: Final = Path(__file__).with_name("kernels.cu")
FAILED, BOOTSTRAPPING, WAITING, TRANSFERRING, SUCCESS = map(int, KVPoll)  # CuPy takes no enumerations
ABSENT: Final = STATUS.index(ABSENT_NAME)
"""A room without an entry, as a number beside those of ``KVPoll``."""
NEVER: Final = 2**64 - 1
"""The position of what has not happened."""
MOST_EVENTS: Final = 2**29
"""In one batch: two numbers of that size, and a status, fit into 64 bits."""
LAST: Final = 2**60
"""Above every position: a batch starts below the half of it."""
_THREADS: Final = 256
"""In one block."""


# --------------------------------------------------------------------------------------------------------------------
# The kernels


def write_status(status_of: Array, room: Array, incoming: Array) -> Array:
    """Write each event's status into the table ``status_of`` (int32, a status a room), in place.

    Returns what stands in the table right after each write, uint8 an event. The twin applies the events in their order;
    the kernel in one that the hardware chooses, so of Failed and Success to one live room either may come first.
    """
    _statuses(status_of, "status_of")
    xp = _valid({"status_of": status_of, "room": room, "incoming": incoming}, len(status_of))
    if xp is not np:
        stands = xp.empty(len(room), xp.uint8)
        launch("write_status", len(room), status_of, room, incoming, stands)
        return stands
    order = np.argsort(room, kind="stable")
    by_room = room[order]
    opens = np.append(True, by_room[1:] != by_room[:-1])[: len(room)]
    last = len(room) + 1
    stamps = _stamp(order.astype(np.uint64) + np.uint64(1), incoming[order], last)
    keys = np.maximum(stamps, _key(status_of[by_room], last))
    shift = np.uint64((last << 3).bit_length())
    group = np.cumsum(opens, dtype=np.uint64) << shift  # above the keys: a running maximum starts again with each room
    highest = np.maximum.accumulate(group | keys)
    stands = np.empty(len(room), np.uint8)
    stands[order] = _status(highest & ((np.uint64(1) << shift) - np.uint64(1)))
    status_of[room] = stands  # the last event of a room comes last here too
    return stands


def fold_statuses(key_of: Array, room: Array, incoming: Array, start: int = 0) -> None:
    """Raise each room's key (uint64, from :func:`keys`) to that of its status after all events, in place."""
    xp = _valid({"key_of": key_of, "room": room, "incoming": incoming}, len(key_of), start)
    if xp is not np:
        launch("fold_statuses", len(room), key_of, room, incoming, np.int64(start))
        return
    np.maximum.at(key_of, room, _stamp(_positions(room, start), incoming))


def first_occurrence(first_of: Array, room: Array, incoming: Array, start: int = 0) -> None:
    """Lower ``first_of`` (uint64[5 * rooms], from :func:`firsts`) to the first position of each status in each room.

    The element of a status ``s`` in a room ``r`` is ``5 * r + s``.
    """
    if len(first_of) % len(KVPoll):
        raise ValueError(f"first_of has {len(first_of)} elements, which is not {len(KVPoll)} a room")
    xp = _valid({"first_of": first_of, "room": room, "incoming": incoming}, len(first_of) // len(KVPoll), start)
    if xp is not np:
        launch("first_occurrence", len(room), first_of, room, incoming, np.int64(start))
        return
    np.minimum.at(first_of, len(KVPoll) * room.astype(np.int64) + incoming, _positions(room, start))


def check_log(
    violation_of: Array, before_of: Array, room: Array, incoming: Array, observed: Array, start: int = 0
) -> None:
    """Lower ``violation_of`` (uint64 a room, at first :data:`NEVER`) to the first position that breaks the merge.

    The events of a room stand together, in their order; ``observed``, uint8, is the status read after each, and
    ``before_of``, int32 a room, the status before the first.
    """
    _statuses(before_of, "before_of")
    if len(before_of) != len(violation_of):
        raise ValueError(f"before_of has {len(before_of)} rooms and violation_of {len(violation_of)}")
    arrays = {"violation_of": violation_of, "before_of": before_of, "room": room, "incoming": incoming}
    xp = _valid(arrays | {"observed": observed}, len(violation_of), start)
    if xp is not np:
        launch("check_log", len(room), violation_of, before_of, room, incoming, observed, np.int64(start))
        return
    opens = np.append(True, room[1:] != room[:-1])[: len(room)]
    current = np.where(opens, before_of[room], np.append(np.uint8(0), observed)[: len(room)])
    over = (current == FAILED) | (current == SUCCESS)
    replaced = (current == ABSENT) | (incoming == FAILED)
    expected = np.where(over, current, np.where(replaced, incoming, np.maximum(current, incoming)))
    wrong = observed != expected
    np.minimum.at(violation_of, room[wrong], _positions(room, start)[wrong])


# --------------------------------------------------------------------------------------------------------------------
# Keys and first positions


def keys(status_of: Array) -> Array:
    """The key of each status of a table: what :func:`fold_statuses` starts from."""
    _statuses(status_of, "status_of")
    return _key(status_of, LAST)


def statuses(key_of: Array) -> Array:
    """The table, int32, that has these keys."""
    return _status(key_of).astype(np.int32)


def firsts(status_of: Array) -> Array:
    """First positions, where all there is is a table: each status that it has came at position 0."""
    _statuses(status_of, "status_of")
    xp = _module(status_of)
    first_of = xp.full(len(KVPoll) * len(status_of), NEVER, xp.uint64)
    rooms = xp.flatnonzero(status_of != ABSENT)
    first_of[len(KVPoll) * rooms + status_of[rooms]] = 0
    return first_of


def statuses_at(first_of: Array, position: int) -> Array:
    """The table, int32, as it was after the event at a position."""
    xp = _module(first_of)
    first = first_of.reshape(-1, len(KVPoll))
    come = first <= xp.uint64(position)
    live = xp.zeros(len(first), xp.int32)
    for status in (BOOTSTRAPPING, WAITING, TRANSFERRING):
        live[come[:, status]] = status
    live[live == 0] = ABSENT
    terminal = xp.where(first[:, FAILED] < first[:, SUCCESS], xp.int32(FAILED), xp.int32(SUCCESS))
    return xp.where(come[:, FAILED] | come[:, SUCCESS], terminal, live)


def _stamp(position: Array, status: Array, last: int = LAST) -> Array:
    """The key of a status that comes at a position: see ``stamp`` in ``kernels.cu``."""
    word = status.astype(np.uint64)
    terminal = (status == FAILED) | (status == SUCCESS)
    return np.where(terminal, ((np.uint64(last) - position) << np.uint64(3)) | word, word)


def _key(status: Array, last: int) -> Array:
    """The key of a status that was there before all events."""
    xp = _module(status)
    word = status.astype(xp.uint64)
    terminal = (status == FAILED) | (status == SUCCESS)
    return xp.where(terminal, xp.uint64(last << 3) | word, xp.where(status == ABSENT, xp.uint64(0), word))


def _status(key: Array) -> Array:
    xp = _module(key)
    return xp.where(key == 0, xp.uint8(ABSENT), (key & xp.uint64(7)).astype(xp.uint8))


def _positions(room: Array, start: int) -> Array:
    return np.arange(start + 1, start + 1 + len(room), dtype=np.uint64)


# --------------------------------------------------------------------------------------------------------------------
# What is valid

_DTYPES: Final = {
    "status_of": np.int32, "before_of": np.int32, "key_of": np.uint64, "first_of": np.uint64, "violation_of": np.uint64,
    "room": np.int32, "incoming": np.uint8, "observed": np.uint8,
}  # fmt: skip
_PER_EVENT: Final = ("room", "incoming", "observed")


def _valid(arrays: dict[str, Array], rooms: int, start: int = 0) -> ModuleType:
    """The module of the arrays of one call, if they are valid; TypeError or ValueError if not."""
    modules = {_shaped(array, name) for name, array in arrays.items()}
    if len(modules) > 1:
        raise TypeError(f"{', '.join(arrays)} are not all in one memory: NumPy and CuPy arrays are mixed")
    xp = modules.pop()
    events = len(arrays["room"])
    for name in _PER_EVENT:
        if name in arrays and len(arrays[name]) != events:
            raise ValueError(f"{name} has {len(arrays[name])} events and room {events}")
    for one, other in combinations(arrays, 2):
        if xp.may_share_memory(arrays[one], arrays[other]):
            raise ValueError(f"{one} and {other} overlap in memory")
    if events > MOST_EVENTS:
        raise ValueError(f"{events} events are too many for one batch: split it into batches of {MOST_EVENTS}")
    if not 0 <= start < LAST // 2:
        raise ValueError(f"start is {start}, which is not from 0 to {LAST // 2 - 1}")
    _below(arrays["room"], rooms, "room")
    for name in _PER_EVENT[1:]:
        if name in arrays:
            _below(arrays[name], len(KVPoll), name)
    return xp


def _statuses(array: Array, name: str) -> None:
    """Check that an array is a table of statuses."""
    _shaped(array, name)
    _below(array, ABSENT + 1, name)


def _shaped(array: Array, name: str) -> ModuleType:
    """The module of an array, if it has the dtype and the shape of all arrays of its name."""
    xp, wanted = _module(array), _DTYPES[name]
    if array.dtype != wanted:
        raise TypeError(f"{name} is an array of {array.dtype}, not of {np.dtype(wanted)}")
    if array.ndim != 1 or not array.flags.c_contiguous:
        raise ValueError(f"{name} is not a contiguous array of one dimension")
    return xp


def _below(array: Array, limit: int, name: str) -> None:
    if not len(array):
        return
    low, high = int(array.min()), int(array.max())
    if low < 0 or high >= limit:
        raise ValueError(f"{name} has {low if low < 0 else high}, which is not from 0 to {limit - 1}")


def _module(array: Array) -> ModuleType:
    """CuPy for its arrays, NumPy for its own; TypeError for anything else."""
    cupy = sys.modules.get("cupy")  # whoever has an array of it has imported it
    if cupy is not None and isinstance(array, cupy.ndarray):
        return cupy
    if isinstance(array, np.ndarray):
        return np
    raise TypeError(f"neither a NumPy nor a CuPy array: {type(array).__name__}")


# --------------------------------------------------------------------------------------------------------------------
# Compiling and launching


class CannotCompile(Exception):
    """NVRTC is not here, or it refuses the source; the message says which."""


@attrs.frozen
class Compiled:
    """What one run of NVRTC made of a source: PTX, and the binary that was assembled from that same PTX."""

    architecture: int
    ptx: str
    cubin: bytes = attrs.field(repr=False)


@cache
def compiled(architecture: int, source: str | None = None) -> Compiled:
    """Compile ``kernels.cu``, or another source, for a compute capability (90 is 9.0); CannotCompile says why not."""
    try:
        from cupy.cuda import nvrtc

        nvrtc.getVersion()
    except (ImportError, RuntimeError) as error:
        raise CannotCompile(f"NVRTC is not installed, pip install 'kvlatch[gpu]': {error}") from error
    text = SOURCE.read_text(encoding="utf-8") if source is None else source
    program = nvrtc.createProgram(text, SOURCE.name, [], [])
    try:
        nvrtc.compileProgram(program, ("--std=c++17", f"--gpu-architecture=sm_{architecture}"))
        return Compiled(architecture, nvrtc.getPTX(program).decode(), nvrtc.getCUBIN(program))
    except nvrtc.NVRTCError as error:
        log = nvrtc.getProgramLog(program).strip() or str(error)
        raise CannotCompile(f"NVRTC cannot compile {SOURCE.name} for sm_{architecture}: {log}") from error
    finally:
        nvrtc.destroyProgram(program)


def architecture() -> int:
    """The compute capability of the current GPU, as :func:`compiled` takes it."""
    import cupy

    return int(cupy.cuda.Device().compute_capability)


@cache
def _loaded(device: int) -> dict[str, Any]:
    """The kernels on a GPU, of the very binary whose PTX is proved: from source, CuPy would compile once more."""
    import cupy

    with cupy.cuda.Device(device), tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled(architecture()).cubin)
        file.flush()
        module = cupy.RawModule(path=file.name)
        kernels = {name: module.get_function(name) for name in KERNELS}
        for kernel in kernels.values():
            kernel.compile()  # which reads the file, and else would happen at the first launch
    return kernels


def launch(name: str, events: int, *arguments: object) -> None:
    """Launch a kernel, one thread an event, on CuPy arrays that are valid: nothing is checked.

    ``arguments`` are the kernel's, without the number of events at their end; a number is an ``np.int64``.
    """
    import cupy

    if events:
        kernel = _loaded(cupy.cuda.Device().id)[name]
        kernel((-(-events // _THREADS),), (_THREADS,), (*arguments, np.int64(events)))
