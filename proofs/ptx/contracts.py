"""What each CUDA kernel is to do: its arrays, which word is an event's own, and what one step makes of that word.

A :class:`Contract` is written from the spec, never from ``kernels.cu``. Its step is what one atomic step of one thread
has to do to whatever is in its word then; what the steps of a whole grid come to, in any order, is said by the lemmas
at the end, which have no PTX in them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Final, Literal

import attrs
import z3

from kvlatch.proofs.ptx import reader as ptx
from kvlatch.reference.arrays.kernels import ABSENT, LAST, NEVER
from kvlatch.spec.merges import KEEP, Merge, first_terminal_wins, table
from kvlatch.spec.status import TERMINAL, KVPoll

LOGIC: Final = "QF_UFBV"
"""Bit-vectors, and functions for what is in the inputs."""


@attrs.frozen
class Array:
    """A parameter that points to an array: the bytes of an element, and how many elements there are a room or an event.

    Elements of a *shared* array are words that any thread may write; an *output* has one of each event's own.
    """

    name: str
    bytes: int
    role: Literal["input", "shared", "output"]
    per: Literal["rooms", "events"]
    times: int = 1


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
        # The event and its position are the unknowns, and what they are computed from is said in terms of them: then
        # additions cancel, and no solver has to multiply.
        self.event, self.position = z3.BitVec("event", 64), z3.BitVec("position", 64)
        earlier = self.event - z3.ZeroExt(32, lane)
        self.known = {z3.simplify(z3.ZeroExt(32, block) * z3.ZeroExt(32, threads)): earlier}
        rooms, events, start = z3.BitVec("rooms", 64), z3.BitVec("events", 64), self.position - 1 - self.event
        self.scalars = {"rooms": rooms, "events": events, "start": start}
        self.exact = [
            z3.ZeroExt(32, block) * z3.ZeroExt(32, threads) == earlier,
            z3.ULT(block, 2**31 - 1), z3.ULE(threads, 1024), z3.ULT(lane, threads),
        ]  # fmt: skip
        self.facts = [
            z3.ULE(earlier, (2**31 - 1) * 1024), z3.ULT(lane, 1024),
            z3.ULT(rooms, 2**40), z3.ULT(events, LAST // 2), z3.ULT(start, LAST // 2),
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
        return self.scalars[array.per] * array.times

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
        if array.name in ("incoming", "observed"):
            return z3.ULT(value, len(KVPoll))
        if array.name in ("status_of", "before_of"):
            return z3.ULE(value, ABSENT)
        return z3.BoolVal(True)


def merged(current: z3.BitVecRef, incoming: z3.BitVecRef, merge: Merge = first_terminal_wins) -> z3.BitVecRef:
    """What stands after a write, by the spec's table of a merge."""
    result = current
    for row, columns in enumerate(table(merge)):
        for column, stored in enumerate(columns):
            if stored != KEEP:
                cell = z3.And(current == row, incoming == column)
                result = z3.If(cell, z3.BitVecVal(int(stored), current.size()), result)
    return result


def stamp(position: z3.BitVecRef, status: z3.BitVecRef) -> z3.BitVecRef:
    """The key of a status that comes at a position; see ``kernels.cu``."""
    word = _word(status)
    return z3.If(_terminal(status), (LAST - position) << 3 | word, word)


def _word(status: z3.BitVecRef) -> z3.BitVecRef:
    return z3.ZeroExt(64 - status.size(), status)


def _terminal(status: z3.BitVecRef) -> z3.BoolRef:
    return z3.Or(*(status == int(terminal) for terminal in TERMINAL))


def _room(world: World) -> z3.BitVecRef:
    return _word(world.read("room"))


def _checked(world: World, current: z3.BitVecRef) -> z3.BitVecRef:
    """The step of the log check: the position, if it is lower and the event is not what the merge gives."""
    before = world.event - 1
    first = z3.Or(world.event == 0, world.read("room", before) != world.read("room"))
    observed = z3.ZeroExt(24, world.read("observed", before))
    previous = z3.If(first, world.read("before_of", _room(world)), observed)
    expected = merged(previous, world.read("incoming"))
    wrong = z3.ZeroExt(24, world.read("observed")) != expected
    return z3.If(wrong, ptx.extreme("min", "u64", current, world.position), current)


_EVENTS: Final = (Array("room", 4, "input", "events"), Array("incoming", 1, "input", "events"))
CONTRACTS: Final = (
    Contract(
        "write_status",
        (Array("status_of", 4, "shared", "rooms"), *_EVENTS, Array("stands", 1, "output", "events"), "events"),
        own=_room,
        step=lambda world, current: merged(current, world.read("incoming")),
    ),
    Contract(
        "fold_statuses",
        (Array("key_of", 8, "shared", "rooms"), *_EVENTS, "start", "events"),
        own=_room,
        step=lambda world, current: ptx.extreme("max", "u64", current, stamp(world.position, world.read("incoming"))),
    ),
    Contract(
        "first_occurrence",
        (Array("first_of", 8, "shared", "rooms", len(KVPoll)), *_EVENTS, "start", "events"),
        own=lambda world: len(KVPoll) * _room(world) + _word(world.read("incoming")),
        step=lambda world, current: ptx.extreme("min", "u64", current, world.position),
    ),
    Contract(
        "check_log",
        (Array("violation_of", 8, "shared", "rooms"), Array("before_of", 4, "input", "rooms"), *_EVENTS,
         Array("observed", 1, "input", "events"), "start", "events"),
        own=_room,
        step=_checked,
    ),
)  # fmt: skip
BY_KERNEL: Final = {contract.kernel: contract for contract in CONTRACTS}


# --------------------------------------------------------------------------------------------------------------------
# Order: what the words of the whole grid come to


@attrs.frozen
class Lemma:
    """A claim about arithmetic that turns steps in any order into what the spec says of events in theirs."""

    kernel: str
    hypotheses: tuple[z3.BoolRef, ...]
    claims: tuple[z3.BoolRef, ...]
    logic: str = LOGIC


def _order_of_keys() -> Lemma:
    """The highest stamp of events 1 to p is the key of what the spec's merge gives, event by event."""
    position, earlier, live = z3.BitVecs("position earlier live", 64)
    terminal, incoming, initial = z3.BitVecs("terminal incoming initial", 32)
    key = z3.If(z3.Bool("over"), stamp(earlier, terminal), live)
    after = ptx.extreme("max", "u64", key, stamp(position, incoming))
    untouched = z3.If(initial == ABSENT, z3.BitVecVal(0, 64), stamp(z3.BitVecVal(0, 64), initial))
    hypotheses = (
        z3.ULT(earlier, position), z3.ULT(position, LAST), _terminal(terminal), z3.ULT(live, int(KVPoll.Success)),
        z3.ULT(incoming, len(KVPoll)), z3.ULE(initial, ABSENT),
    )  # fmt: skip
    claims = (_status(after) == merged(_status(key), incoming), _status(untouched) == initial)
    return Lemma("fold_statuses", hypotheses, claims)


def _status(key: z3.BitVecRef) -> z3.BitVecRef:
    """The status that a key stands for: ``kernels.statuses``."""
    return z3.If(key == 0, z3.BitVecVal(ABSENT, 32), z3.ZeroExt(29, z3.Extract(2, 0, key)))


def _order_of_firsts() -> Lemma:
    """Five first positions tell the status after any event: the next event moves it as the merge does, and no older.

    Positions are only compared here, so integers do.
    """
    position, then = z3.Ints("position then")
    first = [z3.Int(f"first {status.name}") for status in KVPoll]
    failed, success = first[KVPoll.Failed], first[KVPoll.Success]
    hypotheses = (
        then >= 0, then < position, position < NEVER,
        *(z3.Or(z3.And(one >= 0, one < position), one == NEVER) for one in first),
        z3.Or(failed != success, failed == NEVER),  # two events do not have one position
    )  # fmt: skip
    claims = []
    for status in KVPoll:
        after = [*first]
        after[status] = z3.If(first[status] < position, first[status], position)
        before = _status_at(first, position)  # the event at this position is not in these yet
        claims.append(_status_at(after, position) == merged(before, z3.BitVecVal(int(status), 8)))
        claims.append(_status_at(after, then) == _status_at(first, then))
    for initial in (*KVPoll, ABSENT):
        untouched = [z3.IntVal(0 if status == initial else NEVER) for status in KVPoll]
        claims.append(_status_at(untouched, z3.IntVal(0)) == int(initial))
    return Lemma("first_occurrence", hypotheses, tuple(claims), "ALL")


def _status_at(first: Sequence[z3.ArithRef], position: z3.ArithRef) -> z3.BitVecRef:
    """The status after the event at a position: ``kernels.statuses_at``."""
    come = [one <= position for one in first]
    status = z3.BitVecVal(ABSENT, 32)
    for live in (KVPoll.Bootstrapping, KVPoll.WaitingForInput, KVPoll.Transferring):
        status = z3.If(come[live], z3.BitVecVal(int(live), 32), status)
    failed = first[KVPoll.Failed] < first[KVPoll.Success]
    terminal = z3.If(failed, z3.BitVecVal(int(KVPoll.Failed), 32), z3.BitVecVal(int(KVPoll.Success), 32))
    return z3.If(z3.Or(come[KVPoll.Failed], come[KVPoll.Success]), terminal, status)


LEMMAS: Final = (_order_of_keys(), _order_of_firsts())
