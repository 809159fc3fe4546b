"""The CUDA kernels of ``kernels.cu``, loaded by CuPy, each beside its twin in array code.

One function a kernel. It takes the array module first, as all shared array code does: for CuPy it launches the kernel,
for NumPy it runs the twin. The array manager writes every status through :func:`write_entry`, the screen of the log
check marks its rooms through :func:`mark_rooms`. Neither starts before its input is found valid; *valid* is what the
proofs of the kernels take for granted (``kvlatch.proofs.ptx.kernels``).

Arrays are one-dimensional and contiguous; all of one call lie in one memory and do not overlap. ``room``, int32, has
the room of each event, from 0. A kernel takes its events in an order that the hardware chooses.

Nothing of CuPy is imported before it is needed. NVRTC compiles without a GPU, so :func:`compiled` works wherever the
``gpu`` extra is installed. Nothing here has run on a GPU.
"""

from __future__ import annotations

import tempfile
from functools import cache
from itertools import combinations
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import attrs
import numpy as np

from kvlatch.reference.arrays.device import Array, lookup
from kvlatch.reference.arrays.tables import ABSENT, NOTHING, TOMBSTONE, F, S
from kvlatch.spec.status import KVPoll

KERNELS: Final = ("write_entry", "mark_rooms")
SOURCE: Final = Path(__file__).with_name("kernels.cu")
KEEPS: Final = 255
"""In a merge table: the merge returns without a store."""
CELLS: Final = (TOMBSTONE + 1) * len(KVPoll)
"""Of a merge table: a row for each status, Absent and Tombstone included, a column for each that is written."""
NOW: Final = 7
"""What a write has read: nothing yet, it reads and stores in one step."""
SUSPECT: Final = 0x100
"""A mark of a room: it may have broken a law. The lower eight are its history."""
AGAIN: Final = 0x80
"""A mark: the id was used a second time. The lower seven are statuses after which the room was looked at ..."""
CLEARED: Final = 1 << ABSENT
"""... but for this one: it has been cleared."""
_THREADS: Final = 256
"""In one block."""


# --------------------------------------------------------------------------------------------------------------------
# The kernels


def write_entry(
    xp: ModuleType,
    entry_of: Array,
    merge: Array,
    room: Array,
    read: Array,
    incoming: Array,
    request: Array,
    *,
    tombstones: bool,
) -> Array:
    """Write each event's status into the entry of its room, in place; what stands there right after, uint8 an event.

    ``entry_of``, uint32 a room, is an entry in one word: its lowest byte is the status (``KVPoll``, ABSENT or
    TOMBSTONE), the next the request that it belongs to, the third the first terminal status or NOTHING. ``merge``,
    uint8[CELLS], says what is stored: row by row, one for each status that an entry can have. ``read``, uint8, is the
    status that a split update has read before, else NOW; ``incoming``, uint8, the status to write (a ``KVPoll``);
    ``request``, uint8, the request that writes, 0 or 1. With ``tombstones`` a write about a request that is over
    changes nothing. The twin takes one event a room.
    """
    arrays = {"entry_of": entry_of, "merge": merge, "room": room, "read": read, "incoming": incoming}
    _valid(xp, arrays | {"request": request}, len(entry_of))
    if len(merge) != CELLS:
        raise ValueError(f"merge has {len(merge)} cells, not {CELLS}")
    entry = entry_of[room]
    status, stamp, first = entry & 255, (entry >> 8) & 255, entry >> 16
    _sound(
        xp,
        entry_of=(status <= TOMBSTONE) & (stamp <= 1) & ((first == F) | (first == S) | (first == NOTHING)),
        merge=(merge < len(KVPoll)) | (merge == KEEPS),
        read=read <= NOW,
        incoming=incoming < len(KVPoll),
        request=request <= 1,
    )
    if _is_cupy(xp):
        stands = xp.empty(len(room), xp.uint8)
        arguments = (entry_of, merge, room, read, incoming, request, stands, np.int64(tombstones))
        launch("write_entry", len(room), *arguments)
        return stands
    merged = merge[xp.where(read == NOW, status, read).astype(xp.int64) * len(KVPoll) + incoming]
    stores = merged != KEEPS
    if tombstones:
        stores &= (request > stamp) | ((request == stamp) & (status != TOMBSTONE))
        stamp = request
    first = xp.where((first == NOTHING) & ((merged == F) | (merged == S)), merged, first)
    word = merged.astype(xp.uint32) | (stamp.astype(xp.uint32) << 8) | (first.astype(xp.uint32) << 16)
    entry = xp.where(stores, word, entry)
    entry_of[room] = entry
    return (entry & 255).astype(xp.uint8)


def mark_rooms(
    xp: ModuleType,
    marks_of: Array,
    state_of: Array,
    tables: tuple[Array, Array, Array, Array],
    room: Array,
    code: Array,
    looked: int,
) -> None:
    """Add to the marks of each room (uint32) what its events show, in place; the events of a room stand together.

    ``state_of``, uint8 a room, is the state before its first event. ``code``, uint8, is what each event was, and
    ``tables`` say of a code, uint8[256] each: the state that it leaves, the states after which it is suspicious, those
    after which it is the second use of the id, and whether it clears the entry. ``looked``: the states that are marks.
    """
    left, suspicious, again, clears = tables
    arrays = {"marks_of": marks_of, "state_of": state_of, "left": left, "suspicious": suspicious, "again": again,
              "clears": clears, "room": room, "code": code}  # fmt: skip
    _valid(xp, arrays, len(marks_of))
    if len(state_of) != len(marks_of) or any(len(table) != 256 for table in tables):
        raise ValueError("a state is missing for some room, or a table does not have 256 elements")
    if _is_cupy(xp):
        launch("mark_rooms", len(room), *arrays.values(), np.int64(looked))
        return
    starts = xp.flatnonzero(openings(xp, room))
    before = xp.zeros(len(room), xp.uint8)
    before[1:] = lookup(xp, left, code[:-1])
    before[starts] = state_of[room[starts]]
    for bit in (1 << number for number in range(8) if looked >> number & 1):
        _mark(xp, marks_of, room, before & np.uint8(bit), bit)
    _mark(xp, marks_of, room, before & lookup(xp, suspicious, code), SUSPECT)
    _mark(xp, marks_of, room, before & lookup(xp, again, code), AGAIN)
    _mark(xp, marks_of, room, lookup(xp, clears, code), CLEARED)


def openings(xp: ModuleType, values: Array) -> Array:
    """Which values differ from the one before them; the first one does."""
    new = xp.ones(len(values), bool)
    new[1:] = values[1:] != values[:-1]
    return new


def _mark(xp: ModuleType, marks_of: Array, room: Array, where: Array, bit: int) -> None:
    """Set a bit of rooms; their events stand together."""
    at = room[xp.flatnonzero(where)]
    at = at[openings(xp, at)]
    marks_of[at] |= np.uint32(bit)


# --------------------------------------------------------------------------------------------------------------------
# What is valid

_DTYPES: Final = {"entry_of": np.uint32, "marks_of": np.uint32, "room": np.int32}
_PER_EVENT: Final = ("read", "incoming", "request", "code")


def _is_cupy(xp: ModuleType) -> bool:
    return xp.__name__ == "cupy"


def _valid(xp: ModuleType, arrays: dict[str, Array], rooms: int) -> None:
    """TypeError or ValueError unless the arrays of one call have their types and shapes, and the rooms exist."""
    events = len(arrays["room"])
    for name, array in arrays.items():
        wanted = _DTYPES.get(name, np.uint8)
        if not isinstance(array, xp.ndarray):
            raise TypeError(f"{name} is not an array of {xp.__name__}: {type(array).__name__}")
        if array.dtype != wanted:
            raise TypeError(f"{name} is an array of {array.dtype}, not of {np.dtype(wanted)}")
        if array.ndim != 1 or not array.flags.c_contiguous:
            raise ValueError(f"{name} is not a contiguous array of one dimension")
        if name in _PER_EVENT and len(array) != events:
            raise ValueError(f"{name} has {len(array)} events and room {events}")
    for one, other in combinations(arrays, 2):
        if xp.may_share_memory(arrays[one], arrays[other]):
            raise ValueError(f"{one} and {other} overlap in memory")
    room = arrays["room"]
    if bool(((room < 0) | (room >= rooms)).any()):
        raise ValueError(f"room has a number that is not from 0 to {rooms - 1}")


def _sound(xp: ModuleType, **elements: Array) -> None:
    """ValueError for the first array with an element that is not sound; all are asked with one wait for the device."""
    if bool(xp.concatenate([sound.all().reshape(1) for sound in elements.values()]).all()):
        return
    name = next(name for name, sound in elements.items() if not bool(sound.all()))
    raise ValueError(f"{name} has an element that is not valid: number {int((~elements[name]).argmax())}")


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
