"""PTX, as far as NVRTC emits it for our kernels: how it is read, where its loops are, what its arithmetic means.

Memory has no meaning here; ``kernels.py`` gives it one. An instruction that this module does not know, or knows only
in another form, is :class:`Unsupported`; it is never skipped.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import attrs
import z3

Value: TypeAlias = "z3.BitVecRef | z3.BoolRef"
"""What a register holds: bits, or a truth value."""


class Unsupported(Exception):
    """PTX that this module gives no meaning to; the message has the line."""


@attrs.frozen
class Instruction:
    """One instruction: ``@!%p1 bra $L``; ``opcode`` is split at its dots, ``line`` counts from 1 in the PTX."""

    line: int
    opcode: tuple[str, ...]
    operands: tuple[str, ...]
    guard: str | None = None
    negated: bool = False

    def __str__(self) -> str:
        return f"line {self.line}: {'.'.join(self.opcode)} {', '.join(self.operands)}".rstrip()

    @property
    def is_access(self) -> bool:
        """Whether it touches memory that threads share."""
        return self.opcode[0] in ("ld", "st", "atom", "red") and self.opcode[1] != "param"


@attrs.frozen
class Kernel:
    """One entry of a PTX module: parameters in their order, registers by prefix with their width (0: a predicate)."""

    name: str
    parameters: tuple[str, ...]
    widths: Mapping[str, int]
    code: tuple[Instruction, ...]
    labels: Mapping[str, int]

    def width(self, register: str) -> int:
        """The bits of a register."""
        prefix = register.rstrip("0123456789")
        if prefix not in self.widths:
            raise Unsupported(f"{self.name}: register {register} is not declared")
        return self.widths[prefix]

    def successors(self, at: int) -> tuple[int, ...]:
        """Where control can go from an instruction."""
        instruction = self.code[at]
        following = (at + 1,) if at + 1 < len(self.code) else ()
        if instruction.opcode[0] == "ret":
            return following if instruction.guard else ()
        if instruction.opcode[0] == "bra":
            return (self.labels[instruction.operands[0]], *(following if instruction.guard else ()))
        return following


# --------------------------------------------------------------------------------------------------------------------
# Reading

_ENTRY: Final = re.compile(r"\.entry\s+(\w+)\s*\((.*?)\)\s*\{(.*?)^\}", re.DOTALL | re.MULTILINE)
_PARAMETER: Final = re.compile(r"\.param\s+\.[us]64\s+(?:\.ptr\s+\.align\s+\d+\s+)?(\w+)$")
_REGISTERS: Final = re.compile(r"\.reg\s+\.(pred|b16|b32|b64)\s+(%[a-z]+)<\d+>;$")
_LABEL: Final = re.compile(r"(\$\w+):$")
_INSTRUCTION: Final = re.compile(r"(?:@(!?)(%p\d+)\s+)?([a-z]\w*(?:\.\w+)*)\s*([^;]*);$")


def texts(ptx: str) -> dict[str, str]:
    """The text of each kernel of a PTX module, from its parameters to its end, by name."""
    return {match[1]: match[0] for match in _ENTRY.finditer(ptx)}


def read(ptx: str) -> dict[str, Kernel]:
    """The kernels of a PTX module, by name; Unsupported names the first line that is not understood."""
    return {match[1]: _kernel(ptx, match) for match in _ENTRY.finditer(ptx)}


def _kernel(ptx: str, match: re.Match[str]) -> Kernel:
    parameters = []
    for declared in filter(None, map(str.strip, match[2].split(","))):
        if not (parameter := _PARAMETER.match(declared)):
            raise Unsupported(f"{match[1]}: parameter {declared!r}")
        parameters.append(parameter[1])
    widths: dict[str, int] = {}
    labels: dict[str, int] = {}
    code: list[Instruction] = []
    for line, written in enumerate(match[3].splitlines(), 1 + ptx.count("\n", 0, match.start(3))):
        text = written.partition("//")[0].strip()
        if registers := _REGISTERS.match(text):
            widths[registers[2]] = 0 if registers[1] == "pred" else int(registers[1][1:])
        elif label := _LABEL.match(text):
            labels[label[1]] = len(code)
        elif found := _INSTRUCTION.match(text):
            negated, guard, opcode, operands = found.groups()
            split = tuple(filter(None, map(str.strip, operands.split(","))))
            code.append(Instruction(line, tuple(opcode.split(".")), split, guard, negated == "!"))
        elif text:
            raise Unsupported(f"line {line}: {text}")
    if not code or code[-1].opcode != ("ret",):
        raise Unsupported(f"{match[1]}: the last instruction is not ret")
    return Kernel(match[1], tuple(parameters), widths, tuple(code), labels)


# --------------------------------------------------------------------------------------------------------------------
# Loops


def loops(kernel: Kernel) -> dict[int, frozenset[int]]:
    """Instructions at which to cut, so that no cycle is left, each with the instructions of the cycles through it.

    They are the heads of strongly connected components of the control flow, then of what is left of each without its
    head. The layout of the text says nothing: compilers move blocks out of line.
    """
    found: dict[int, frozenset[int]] = {}
    left = set(range(len(kernel.code)))
    while True:
        reach = {at: _reachable(kernel, at, left) for at in left}
        cyclic = sorted(at for at in left if at in reach[at])
        if not cyclic:
            return found
        component = frozenset(at for at in reach[cyclic[0]] if cyclic[0] in reach[at])
        entered = {after for at in left - component for after in kernel.successors(at)} & component
        head = min(entered or component)
        found[head] = component
        left.discard(head)


def _reachable(kernel: Kernel, start: int, within: set[int]) -> set[int]:
    """What can be reached from an instruction in one step or more."""
    seen: set[int] = set()
    frontier = [start]
    while frontier:
        new = (set(kernel.successors(frontier.pop())) & within) - seen
        seen |= new
        frontier += new
    return seen


# --------------------------------------------------------------------------------------------------------------------
# Arithmetic

_KIND: Final = re.compile(r"[usb](8|16|32|64)")
_LOGIC: Final[dict[str, Callable[..., z3.BoolRef]]] = {"and": z3.And, "or": z3.Or, "xor": z3.Xor, "not": z3.Not}
_BITWISE: Final[dict[str, Callable[[Any, Any], z3.BitVecRef]]] = {
    "add": operator.add, "sub": operator.sub, "and": operator.and_, "or": operator.or_, "xor": operator.xor,
}  # fmt: skip
_SIGNED: Final[dict[str, Callable[[Any, Any], z3.BoolRef]]] = {
    "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
}  # fmt: skip
_UNSIGNED: Final[dict[str, Callable[[Any, Any], z3.BoolRef]]] = {
    "lt": z3.ULT, "le": z3.ULE, "gt": z3.UGT, "ge": z3.UGE, "lo": z3.ULT, "ls": z3.ULE, "hi": z3.UGT, "hs": z3.UGE,
}  # fmt: skip


def width(kind: str) -> int:
    """The bits of a type such as ``u32``."""
    if not _KIND.fullmatch(kind):
        raise Unsupported(f"type {kind}")
    return int(kind[1:])


def extended(value: z3.BitVecRef, bits: int, kind: str) -> z3.BitVecRef:
    """A value of a type, as more bits."""
    more = bits - value.size()
    return z3.SignExt(more, value) if kind.startswith("s") else z3.ZeroExt(more, value)


def compare(relation: str, kind: str, a: z3.BitVecRef, b: z3.BitVecRef) -> z3.BoolRef:
    """``a`` and ``b``, of one type, stand in a relation such as ``lt``."""
    if relation in ("eq", "ne"):
        return a == b if relation == "eq" else a != b
    relations = {"s": _SIGNED, "u": _UNSIGNED}.get(kind[0], {})
    if relation not in relations:
        raise Unsupported(f"comparison {relation}.{kind}")
    return relations[relation](a, b)


def extreme(name: str, kind: str, a: z3.BitVecRef, b: z3.BitVecRef) -> z3.BitVecRef:
    """The minimum (``min``) or maximum (``max``) of two values of one type."""
    return z3.If(compare("lt" if name == "min" else "gt", kind, a, b), a, b)


@attrs.frozen
class Registers:
    """The registers of one thread; ``special`` has those that no instruction writes, such as ``%tid.x``.

    ``known`` gives names to terms: a solver need not know how a product came about.
    """

    kernel: Kernel
    special: Mapping[str, z3.BitVecRef]
    known: Mapping[z3.BitVecRef, z3.BitVecRef]
    held: dict[str, Value] = attrs.field(factory=dict)

    def copy(self) -> Registers:
        """The same, for a thread that goes another way from here."""
        return attrs.evolve(self, held=dict(self.held))

    def bits(self, operand: str, count: int) -> z3.BitVecRef:
        """An operand as ``count`` bits: a number, or a register; of a wider one the low bits."""
        if re.fullmatch(r"-?(\d+|0[xX][0-9a-fA-F]+)", operand):
            return z3.BitVecVal(int(operand, 0), count)
        value = self._held(operand)
        if isinstance(value, z3.BoolRef) or value.size() < count:
            raise Unsupported(f"{operand} does not have {count} bits")
        return z3.Extract(count - 1, 0, value) if value.size() > count else value

    def truth(self, operand: str) -> z3.BoolRef:
        """A predicate register."""
        value = self._held(operand)
        if not isinstance(value, z3.BoolRef):
            raise Unsupported(f"{operand} is not a predicate")
        return value

    def put(self, register: str, value: Value, kind: str) -> None:
        """Write a value of a type into a register, which may be wider."""
        bits = self.kernel.width(register)
        if isinstance(value, z3.BoolRef) != (bits == 0) or (bits and value.size() > bits):
            raise Unsupported(f"{register} cannot hold a value of type {kind}")
        simple = z3.simplify(extended(value, bits, kind) if bits else value)
        self.held[register] = self.known.get(simple, simple)

    def compute(self, instruction: Instruction) -> None:
        """Execute an instruction that touches registers only."""
        target, *sources = instruction.operands
        *name, kind = instruction.opcode
        try:
            if name[0] == "setp":
                a, b = (self.bits(source, width(kind)) for source in sources)
                self.put(target, compare(".".join(name[1:]), kind, a, b), "pred")
            elif name[0] == "cvt":
                to = ".".join(name[1:])
                value = self.bits(sources[0], width(kind))
                self.put(target, _converted(value, kind, width(to)), to)
            elif kind == "pred":
                self.put(target, self._logic(".".join(name), sources), kind)
            else:
                value, kind = self._arithmetic(tuple(name), kind, sources)
                self.put(target, value, kind)
        except Unsupported as why:
            raise Unsupported(f"{instruction}: {why}") from why
        except (ValueError, KeyError) as why:  # another number of operands, or another operation
            raise Unsupported(f"{instruction}: not known in this form") from why

    def _held(self, operand: str) -> Value:
        value = self.special.get(operand, self.held.get(operand))
        if value is None:
            raise Unsupported(f"{operand} has no value")
        return value

    def _logic(self, name: str, sources: list[str]) -> z3.BoolRef:
        truths = [self.truth(source) for source in sources]
        return truths[0] if name == "mov" else _LOGIC[name](*truths)

    def _arithmetic(self, name: tuple[str, ...], kind: str, sources: list[str]) -> tuple[z3.BitVecRef, str]:
        """The result, and its type."""
        bits = width(kind)
        match name:
            case ("mov",) | ("cvta", "to", "global"):
                return self.bits(sources[0], bits), kind
            case ("not",):
                return ~self.bits(sources[0], bits), kind
            case ("mad", "lo"):
                a, b, c = (self.bits(source, bits) for source in sources)
                return a * b + c, kind
            case ("selp",):
                yes, no = (self.bits(source, bits) for source in sources[:2])
                return z3.If(self.truth(sources[2]), yes, no), kind
        a, b = (self.bits(source, bits) for source in sources[: 2 if name == ("prmt",) else None])
        match name:
            case ("add" | "sub" | "and" | "or" | "xor",):
                return _BITWISE[name[0]](a, b), kind
            case ("prmt",):
                return _permuted(a, b, sources[2]), kind
            case ("min" | "max",):
                return extreme(name[0], kind, a, b), kind
            case ("mul", "lo"):
                return a * b, kind
            case ("mul", "wide") if bits < 64:
                return extended(a, 2 * bits, kind) * extended(b, 2 * bits, kind), f"{kind[0]}{2 * bits}"
            case ("shl",) | ("shr",):
                return _shifted(name[0], kind, a, sources[1]), kind
        raise Unsupported("not known")


def _converted(value: z3.BitVecRef, kind: str, bits: int) -> z3.BitVecRef:
    return extended(value, bits, kind) if bits > value.size() else z3.Extract(bits - 1, 0, value)


def _permuted(low: z3.BitVecRef, high: z3.BitVecRef, selector: str) -> z3.BitVecRef:
    """Four of the eight bytes of two words; a constant says which, four bits each, none of them a sign."""
    chosen = [int(selector) >> shift & 15 for shift in (12, 8, 4, 0)] if selector.isdecimal() else [8]
    if max(chosen) > 7:
        raise Unsupported(f"selector {selector}")
    both = z3.Concat(high, low)
    return z3.Concat(*(z3.Extract(8 * byte + 7, 8 * byte, both) for byte in chosen))


def _shifted(name: str, kind: str, value: z3.BitVecRef, by: str) -> z3.BitVecRef:
    """Shifted by a constant: PTX clamps an amount that is too large, so a register would need a case for it."""
    if not by.isdecimal() or int(by) >= value.size():
        raise Unsupported(f"shift by {by}")
    amount = z3.BitVecVal(int(by), value.size())
    if name == "shl":
        return value << amount
    return value >> amount if kind.startswith("s") else z3.LShR(value, amount)
