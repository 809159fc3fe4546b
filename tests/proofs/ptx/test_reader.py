"""How PTX is read, where its loops are, and what its arithmetic means."""

from __future__ import annotations

import pytest
import z3
from hypothesis import given
from hypothesis import strategies as st

from kvlatch.proofs.ptx import reader as ptx
from kvlatch.proofs.ptx.reader import Instruction, Kernel, Registers, Unsupported
from tests.reference.arrays import simt

MODULE = """
.version 8.8
.target sm_90
.visible .entry twice(
	.param .u64 .ptr .align 1 twice_param_0,
	.param .u64 twice_param_1
)
{
	.reg .pred 	%p<3>;
	.reg .b64 	%rd<3>;
	ld.param.u64 	%rd1, [twice_param_0]; // a comment
	bra.uni 	$OUT;
$BACK:
	@!%p1 bra 	$OUT;
	add.s64 	%rd2, %rd2, -4;
$OUT:
	setp.ne.s64 	%p1, %rd2, 0;
	@%p1 bra 	$BACK;
	ret;
}
"""


def test_a_module_is_read() -> None:
    """Parameters, widths, labels, guards, operands and the line of each instruction."""
    kernel = ptx.read(MODULE)["twice"]
    assert kernel.parameters == ("twice_param_0", "twice_param_1")
    assert (kernel.width("%p2"), kernel.width("%rd1")) == (0, 64)
    assert kernel.labels == {"$BACK": 2, "$OUT": 4}
    assert kernel.code[2] == Instruction(14, ("bra",), ("$OUT",), "%p1", negated=True)
    assert str(kernel.code[3]) == "line 15: add.s64 %rd2, %rd2, -4"
    assert kernel.successors(2) == (4, 3)


def test_a_loop_is_cut_where_it_is_entered() -> None:
    """The head is the instruction at which control comes in, though the text has others of the cycle before it."""
    assert ptx.loops(ptx.read(MODULE)["twice"]) == {4: frozenset({2, 3, 4, 5})}


def test_no_cycle_is_left_when_loops_are_cut() -> None:
    """A loop in a loop has a head of its own."""
    inner = MODULE.replace("\tadd.s64", "$IN:\n\tadd.s64").replace("$OUT:", "\t@%p2 bra $IN;\n$OUT:")
    assert sorted(ptx.loops(ptx.read(inner)["twice"])) == [3, 5]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (".reg .pred", ".shared .b8", "line 9: .shared .b8"),
        (".param .u64 twice", ".param .f32 twice", "twice: parameter '.param .f32 twice_param_1'"),
        ("\tret;", "\ttrap;", "twice: the last instruction is not ret"),
    ],
)
def test_what_is_not_understood_is_not_skipped(old: str, new: str, words: str) -> None:
    """A line that the reader does not know is named."""
    with pytest.raises(Unsupported, match=words.replace("(", r"\(")):
        ptx.read(MODULE.replace(old, new))


# --------------------------------------------------------------------------------------------------------------------
# Arithmetic

WIDTHS = {"%p": 0, "%rs": 16, "%r": 32, "%rd": 64}
KERNEL = Kernel("none", (), WIDTHS, (), {})
PREFIX = {"pred": "%p", "16": "%rs", "32": "%r", "64": "%rd"}


def _opcodes() -> list[str]:
    found = ["mul.wide.s16", "mul.wide.u16", "mul.wide.s32", "mul.wide.u32", "and.pred", "or.pred", "xor.pred"]
    for bits in (16, 32, 64):
        kinds = [f"{sign}{bits}" for sign in "su"]
        found += [f"{name}.{kind}" for name in ("add", "sub", "min", "max", "mul.lo") for kind in kinds]
        found += [f"{name}.b{bits}" for name in ("and", "or", "xor", "not", "mov", "shl", "selp")]
        found += [f"shr.{kind}" for kind in kinds]
        found += [f"setp.{relation}.{kind}" for relation in ("eq", "ne", "lt", "le", "gt", "ge") for kind in kinds]
        found += [f"mad.lo.{kind}" for kind in kinds]
        found += [f"cvt.{to}.{kind}" for kind in (*kinds, "u8", "s8") for to in ("u64", "s64", "u16", "s32", "u8")]
    return [*found, "prmt.b32"]


@given(st.sampled_from(_opcodes()), st.lists(st.integers(0, 2**64 - 1), min_size=3, max_size=3), st.integers(0, 15))
def test_arithmetic_is_that_of_the_interpreter(opcode: str, numbers: list[int], shift: int) -> None:
    """On constants, the symbolic meaning of an instruction is what the interpreter of plain integers computes."""
    name, *_, kind = opcode.split(".")
    bits = "16" if kind in ("s8", "u8") else PREFIX.get(kind, kind[1:]) if kind == "pred" else kind[1:]
    prefix = PREFIX[kind if kind == "pred" else bits]
    arity = {"not": 1, "mov": 1, "cvt": 1, "mad": 3}.get(name, 2)
    sources = [f"{prefix}{number}" for number in range(arity)]
    if name in ("shl", "shr"):
        sources[1] = str(shift)
    if name == "prmt":
        sources.append(str(shift % 8 * 0x1111 ^ 0x2104))
    if name == "selp":
        sources.append("%p7")
    target = {"setp": "%p9", "cvt": "%rd9"}.get(name, f"{prefix}9")
    if opcode.startswith("mul.wide"):
        target = "%r9" if kind.endswith("16") else "%rd9"
    width = WIDTHS[prefix] or 1
    held = {f"{prefix}{number}": value % 2**width for number, value in enumerate(numbers)} | {"%p7": numbers[0] % 2}
    symbols: dict[str, ptx.Value] = {
        name: z3.BitVecVal(value, WIDTHS[name.rstrip("0123456789")])
        if not name.startswith("%p")
        else z3.BoolVal(bool(value))
        for name, value in held.items()
    }
    instruction = Instruction(1, tuple(opcode.split(".")), (target, *sources))
    registers = Registers(KERNEL, {}, {}, symbols)
    registers.compute(instruction)
    thread = simt.Thread(KERNEL, simt.Memory([]), {}, held)
    thread.compute(instruction)
    result = registers.held[target]
    found = z3.is_true(result) if target.startswith("%p") else result.as_long()
    assert found == thread.held[target]


@pytest.mark.parametrize(
    ("opcode", "sources", "words"),
    [
        ("add.f32", ("%r1", "%r2"), "type f32"),
        ("add.sat.s32", ("%r1", "%r2"), "not known"),
        ("add.s32", ("%r1",), "not known in this form"),
        ("setp.eq.and.s32", ("%r1", "%r2"), "comparison eq.and.s32"),
        ("setp.lt.b32", ("%r1", "%r2"), "comparison lt.b32"),
        ("shl.b32", ("%r1", "%r2"), "shift by %r2"),
        ("shl.b32", ("%r1", "32"), "shift by 32"),
        ("prmt.b32", ("%r1", "%r2", "%r2"), "selector %r2"),
        ("prmt.b32", ("%r1", "%r2", "8"), "selector 8"),
        ("popc.b32", ("%r1",), "not known in this form"),
        ("add.s32", ("%r1", "%r8"), "%r8 has no value"),
        ("add.s64", ("%r1", "%r2"), "%r1 does not have 64 bits"),
        ("mov.u32", ("%p1",), "%p1 does not have 32 bits"),
        ("selp.b32", ("%r1", "%r2", "%r1"), "%r1 is not a predicate"),
    ],
)
def test_an_unknown_instruction_is_unsupported(opcode: str, sources: tuple[str, ...], words: str) -> None:
    """An instruction in a form that has no meaning here raises with its line, and is never skipped."""
    held: dict[str, ptx.Value] = {"%r1": z3.BitVec("a", 32), "%r2": z3.BitVec("b", 32), "%p1": z3.Bool("p")}
    target = "%p9" if opcode.startswith("setp") else "%rd9" if opcode == "add.s64" else "%r9"
    with pytest.raises(Unsupported, match=f"line 7: {opcode}.*{words}"):
        Registers(KERNEL, {}, {}, held).compute(Instruction(7, tuple(opcode.split(".")), (target, *sources)))
