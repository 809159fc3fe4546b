"""What each CUDA kernel is to do: its arrays, which word is an event's own, and what one step makes of that word.

A :class:`Contract` is written from the spec, never from ``kernels.cu``. Its step is what one atomic step of one thread
has to do to whatever is in its word then. For :func:`written` that is the update of an entry as the spec has it, for
any merge; so a grid of threads leaves what the same updates leave one after the other, in some order. For
:func:`marked` it is to add marks, and the order in which marks are added makes no difference.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Final, Literal

import attrs
import z3

from kvlatch.reference.arrays.kernels import AGAIN, CELLS, CLEARED, KEEPS, NOW, SUSPECT
from kvlatch.reference.arrays.tables import NOTHING, TOMBSTONE
from kvlatch.spec.status import TERMINAL, KVPoll

LOGIC: Final = "QF_UFBV"
"""Bit-vectors, and functions for what is in the inputs."""


@attrs.frozen
class Array:
    """A parameter that points to an array: the bytes of an element, and what each element is about.

    Elements of a *shared* array are words that any thread may write; an *output* has one of each event's own.
    """

    name: str
    bytes: int
    role: Literal["input", "shared", "output"]
    per: Literal["rooms", "events", "cells", "codes"]


@attrs.frozen
class Contract:
    """What a kernel is to do: parameters in their order, the index of an event's own word, and its step.

    The step is a function of what is in that word, whoever wrote it.
    """

    kernel: str
    parameters: tuple[Array | str, ...]
    own: Callable[[World], z3.BitVecRef]
    step: Callable[[World, z3.BitVecRef], z3.BitVecRef]

    @property
    def shared(self) -> Array:
        """The array of the words that threads share; there is one."""
        return next(p for p in self.parameters if isinstance(p, Array) and p.role == "shared")

    @property
    def reports(self) -> bool:
        """Whether each event has an output."""
        return any(isinstance(p, Array) and p.role == "output" for p in self.parameters)


class World:
    """The symbols of one kernel: the thread's place in the grid, scalars, where arrays begin, what is in the inputs."""

    def __init__(self, contract: Contract) -> None:
        self.arrays = {p.name: p for p in contract.parameters if isinstance(p, Array)}
        self.bases = {name: z3.BitVec(f"&{name}", 64) for name in self.arrays}
        block, threads, lane = (z3.BitVec(name, 32) for name in ("block", "threads", "lane"))
        self.special = {"%ctaid.x": block, "%ntid.x": threads, "%tid.x": lane}
        # The event is the unknown, and what it is computed from is said in terms of it: then additions cancel, and no
        # solver has to multiply.
        self.event = z3.BitVec("event", 64)
        earlier = self.event - z3.ZeroExt(32, lane)
        self.known = {z3.simplify(z3.ZeroExt(32, block) * z3.ZeroExt(32, threads)): earlier}
        numbers = {name: z3.BitVec(name, 64) for name in contract.parameters if isinstance(name, str)}
        rooms, events = z3.BitVec("rooms", 64), numbers["events"]
        self.scalars = numbers | {"rooms": rooms}
        self.lengths = {"rooms": rooms, "events": events} | {
            name: z3.BitVecVal(length, 64) for name, length in (("cells", CELLS), ("codes", 256))
        }
        self.exact = [
            z3.ZeroExt(32, block) * z3.ZeroExt(32, threads) == earlier,
            z3.ULT(block, 2**31 - 1), z3.ULE(threads, 1024), z3.ULT(lane, threads),
        ]  # fmt: skip
        self.facts = [
            z3.ULE(earlier, (2**31 - 1) * 1024), z3.ULT(lane, 1024), z3.ULT(rooms, 2**40), z3.ULT(events, 2**59),
            *(z3.URem(base, self.arrays[name].bytes) == 0 for name, base in self.bases.items()),
        ]  # fmt: skip
        self._contents = {
            array.name: z3.Function(array.name, z3.BitVecSort(64), z3.BitVecSort(8 * array.bytes))
            for array in self.arrays.values()
        }
        self._read: set[z3.BitVecRef] = set()
        self._numbers = count(1)

    @property
    def has_event(self) -> z3.BoolRef:
        """The grid may have more threads than there are events."""
        return z3.ULT(self.event, self.scalars["events"])

    def length(self, array: Array) -> z3.BitVecRef:
        """How many elements an array has."""
        return self.lengths[array.per]

    def read(self, name: str, index: z3.BitVecRef | None = None) -> z3.BitVecRef:
        """What an input has at an index, by default that of the event: whatever it is, it is valid within the array."""
        index = self.event if index is None else index
        array, value = self.arrays[name], self._contents[name](index)
        if value not in self._read:
            self._read.add(value)
            self.facts.append(z3.Implies(z3.ULT(index, self.length(array)), self.valid(array, value)))
        return value

    def fresh(self, name: str, bits: int) -> z3.BitVecRef:
        """A value of which nothing is known."""
        return z3.BitVec(f"{name} {next(self._numbers)}", bits)

    def valid(self, array: Array, value: z3.BitVecRef) -> z3.BoolRef:
        """What ``reference/arrays/kernels.py`` has checked before the launch; each step keeps it, as the spec does."""
        if array.name == "room":
            return z3.And(value >= 0, z3.ULT(z3.ZeroExt(32, value), self.scalars["rooms"]))
        if array.name == "incoming":
            return z3.ULT(value, len(KVPoll))
        if array.name in _HIGHEST:
            return z3.ULE(value, _HIGHEST[array.name])
        if array.name == "merge":
            return z3.Or(z3.ULT(value, len(KVPoll)), value == KEEPS)
        if array.name == "entry_of":
            status, stamp, first = fields(value)
            known = z3.Or(_terminal(first), first == NOTHING)
            return z3.And(z3.ULE(status, TOMBSTONE), z3.ULE(stamp, 1), known, z3.LShR(value, 24) == 0)
        return z3.BoolVal(True)


_HIGHEST: Final = {"read": NOW, "request": 1}


def fields(entry: z3.BitVecRef) -> tuple[z3.BitVecRef, z3.BitVecRef, z3.BitVecRef]:
    """Of an entry its status, the request that it belongs to, and its first terminal status: 8 bits each."""
    return z3.Extract(7, 0, entry), z3.Extract(15, 8, entry), z3.Extract(23, 16, entry)


def written(world: World, entry: z3.BitVecRef) -> z3.BitVecRef:
    """The entry after a write: merged, unless the merge keeps it or, with tombstones, the write's request is over."""
    status, stamp, first = fields(entry)
    read, request = world.read("read"), world.read("request")
    before = z3.If(read == NOW, status, read)
    merged = world.read("merge", _word(before) * len(KVPoll) + _word(world.read("incoming")))
    tombstones = world.scalars["tombstones"] != 0
    newer = z3.Or(z3.UGT(request, stamp), z3.And(request == stamp, status != TOMBSTONE))
    latched = z3.If(z3.And(first == NOTHING, _terminal(merged)), merged, first)
    after = z3.Concat(z3.BitVecVal(0, 8), latched, z3.If(tombstones, request, stamp), merged)
    return z3.If(z3.And(merged != KEEPS, z3.Or(z3.Not(tombstones), newer)), after, entry)


def marked(world: World, marks: z3.BitVecRef) -> z3.BitVecRef:
    """The marks of a room, and what this event adds to them."""
    before, code = world.event - 1, _word(world.read("code"))
    opens = z3.Or(world.event == 0, world.read("room", before) != world.read("room"))
    left = world.read("left", _word(world.read("code", before)))
    state = z3.If(opens, world.read("state_of", _room(world)), left)
    for table, mark in (("suspicious", SUSPECT), ("again", AGAIN)):
        marks = z3.If(state & world.read(table, code) != 0, marks | mark, marks)
    marks = z3.If(world.read("clears", code) != 0, marks | CLEARED, marks)
    return marks | z3.ZeroExt(24, state & z3.Extract(7, 0, world.scalars["looked"]))


def _word(value: z3.BitVecRef) -> z3.BitVecRef:
    return z3.ZeroExt(64 - value.size(), value)


def _terminal(status: z3.BitVecRef) -> z3.BoolRef:
    return z3.Or(*(status == int(terminal) for terminal in TERMINAL))


def _room(world: World) -> z3.BitVecRef:
    return _word(world.read("room"))


def _bytes(per: Literal["events", "codes"], *names: str) -> tuple[Array, ...]:
    return tuple(Array(name, 1, "input", per) for name in names)


_ROOM: Final = Array("room", 4, "input", "events")
CONTRACTS: Final = (
    Contract(
        "write_entry",
        (Array("entry_of", 4, "shared", "rooms"), Array("merge", 1, "input", "cells"), _ROOM,
         *_bytes("events", "read", "incoming", "request"), Array("stands", 1, "output", "events"),
         "tombstones", "events"),
        own=_room,
        step=written,
    ),
    Contract(
        "mark_rooms",
        (Array("marks_of", 4, "shared", "rooms"), Array("state_of", 1, "input", "rooms"),
         *_bytes("codes", "left", "suspicious", "again", "clears"), _ROOM, *_bytes("events", "code"),
         "looked", "events"),
        own=_room,
        step=marked,
    ),
)  # fmt: skip
BY_KERNEL: Final = {contract.kernel: contract for contract in CONTRACTS}
