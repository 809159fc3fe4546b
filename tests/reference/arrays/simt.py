"""PTX kernels on the CPU, thread by thread, in whatever order a schedule says.

A thread runs alone until just before it touches memory that may change meanwhile; then the schedule chooses who goes
on. That is every interleaving that can make a difference: GPU threads are scheduled one by one, and the accesses of one
word are coherent. Written in plain integers, apart from the symbolic meaning in ``kvlatch.proofs.ptx.reader``, on which
it is a check; only the parser is shared. An instruction that it does not know is a :class:`Fault`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from kvlatch.proofs.ptx.reader import Instruction, Kernel

Array = npt.NDArray[Any]
Choose = Callable[[int], int]
"""Given how many threads can go on, the index of the one that does."""

_GAP = 1 << 20
"""Between the arrays in memory: an index that is a little wrong is in none."""
_MOST_STEPS = 10_000


class Fault(Exception):
    """What the hardware would not do, or what must not happen: the instruction, and what is wrong with it."""


class Memory:
    """Arrays, each at an address of its own."""

    def __init__(self, arrays: Sequence[Array]) -> None:
        self._bytes = [(_GAP * (number + 1), array.view(np.uint8)) for number, array in enumerate(arrays)]

    def address(self, number: int) -> int:
        """Where an array begins."""
        return self._bytes[number][0]

    def bytes(self, address: int, count: int, instruction: Instruction) -> Array:
        """The bytes of an element, as a view; Fault if they are in no array, or not aligned."""
        if address % count:
            raise Fault(f"{instruction}: not aligned")
        for base, content in self._bytes:
            if base <= address and address + count <= base + len(content):
                return content[address - base : address - base + count]
        raise Fault(f"{instruction}: in no array")


@attrs.define
class Thread:
    """One thread: its registers as unsigned integers, predicates as 0 and 1."""

    kernel: Kernel
    memory: Memory
    parameters: Mapping[str, int]
    held: dict[str, int]

    def run(self) -> Iterator[Instruction]:
        """Execute to the end, pausing before each access of what may change (``.nc`` says that it does not)."""
        at = 0
        while True:
            instruction = self.kernel.code[at]
            at += 1
            if instruction.guard and bool(self.held[instruction.guard]) == instruction.negated:
                continue
            match instruction.opcode[0]:
                case "ret":
                    return
                case "bra":
                    at = self.kernel.labels[instruction.operands[0]]
                case _ if instruction.is_access:
                    if "nc" not in instruction.opcode:
                        yield instruction
                    self._access(instruction)
                case _:
                    self.compute(instruction)

    def _get(self, operand: str, kind: str) -> int:
        """An operand as a number of its type, signed or not."""
        bits = 1 if kind == "pred" else int(kind[1:])
        value = self.held[operand] if operand.startswith("%") else int(operand, 0)
        value &= (1 << bits) - 1
        return value - (1 << bits) if kind[0] == "s" and value >> (bits - 1) else value

    def _put(self, register: str, value: int) -> None:
        self.held[register] = value & ((1 << (self.kernel.width(register) or 1)) - 1)

    def _access(self, instruction: Instruction) -> None:
        *form, kind = instruction.opcode
        operands = list(instruction.operands)
        target = operands.pop(0) if form[0] in ("ld", "atom") else None
        register, _, offset = operands.pop(0).strip("[]").partition("+")
        place = self.memory.bytes(self._get(register, "u64") + int(offset or 0), int(kind[1:]) // 8, instruction)
        current = int.from_bytes(place.tobytes(), "little", signed=kind[0] == "s")
        given = [self._get(operand, kind) for operand in operands]
        match form:
            case ["ld", *_]:
                after = current
            case ["st", *_]:
                after = given[0]
            case [_, "global", "cas"]:
                after = given[1] if current == given[0] else current
            case [_, "global", "max"]:
                after = max(current, given[0])
            case [_, "global", "min"]:
                after = min(current, given[0])
            case [_, "global", "or"]:
                after = current | given[0]
            case _:
                raise Fault(f"{instruction}: not known")
        if form[0] != "ld":
            place[:] = np.frombuffer(after.to_bytes(len(place), "little", signed=after < 0), np.uint8)
        if target is not None:
            self._put(target, current)

    def compute(self, instruction: Instruction) -> None:
        """Execute an instruction that touches registers only."""
        name, *middle, kind = instruction.opcode
        target, *sources = instruction.operands
        if name == "ld":
            self._put(target, self.parameters[sources[0].strip("[]")])
        elif name == "setp":
            a, b = (self._get(source, kind) for source in sources)
            self._put(target, int(_COMPARE[middle[0]](a, b)))
        elif name == "selp":
            self._put(target, self._get(sources[0 if self.held[sources[2]] else 1], kind))
        elif name == "cvt":
            bits = int(middle[0][1:])
            value = self._get(sources[0], kind) & ((1 << bits) - 1)
            self._put(target, value - (1 << bits) if middle[0][0] == "s" and value >> (bits - 1) else value)
        elif name in _COMPUTE:
            self._put(target, _COMPUTE[name](*(self._get(source, kind) for source in sources)))
        else:
            raise Fault(f"{instruction}: not known")


_COMPARE: dict[str, Callable[[int, int], bool]] = {
    "eq": lambda a, b: a == b, "ne": lambda a, b: a != b, "lt": lambda a, b: a < b, "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b, "lo": lambda a, b: a < b, "hs": lambda a, b: a >= b,
}  # fmt: skip
_COMPUTE: dict[str, Callable[..., int]] = {
    "mov": lambda a: a, "cvta": lambda a: a, "not": lambda a: ~a, "add": lambda a, b: a + b, "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b, "mad": lambda a, b, c: a * b + c, "and": lambda a, b: a & b, "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b, "shl": lambda a, b: a << b, "shr": lambda a, b: a >> b, "min": min, "max": max,
    "prmt": lambda a, b, by: sum((((b << 32 | a) >> 8 * (by >> 4 * n & 7)) & 255) << 8 * n for n in range(4)),
}  # fmt: skip


def launch(kernel: Kernel, arguments: Sequence[Array | int], grid: int, block: int, choose: Choose) -> None:
    """Run a kernel on arrays, in place: ``grid`` blocks of ``block`` threads."""
    memory = Memory([argument for argument in arguments if isinstance(argument, np.ndarray)])
    numbers = iter(range(len(arguments)))
    values = [a if isinstance(a, int) else memory.address(next(numbers)) for a in arguments]
    parameters = dict(zip(kernel.parameters, values, strict=True))
    alive = []
    for number in range(grid * block):
        special = {"%ctaid.x": number // block, "%ntid.x": block, "%tid.x": number % block}
        alive.append(Thread(kernel, memory, parameters, special).run())
    alive = [thread for thread in alive if next(thread, None) is not None]
    for _ in range(_MOST_STEPS):
        if not alive:
            return
        chosen = alive[choose(len(alive))]
        if next(chosen, None) is None:
            alive.remove(chosen)
    raise Fault(f"{kernel.name} does not end")


def schedules(run: Callable[[Choose], None]) -> int:
    """Run under every schedule, one after the other, and count them; ``run`` has to start from the same state."""
    path: list[tuple[int, int]] = []
    count = 0
    while True:
        count += 1
        depth = 0

        def choose(of: int) -> int:
            nonlocal depth
            if depth == len(path):
                path.append((0, of))
            depth += 1
            return path[depth - 1][0]

        run(choose)
        while path and path[-1][0] + 1 == path[-1][1]:
            path.pop()
        if not path:
            return count
        path[-1] = (path[-1][0] + 1, path[-1][1])
