"""One thread of a kernel, executed symbolically: an arbitrary one of an arbitrary grid, on every path.

What other threads do meanwhile is not simulated but allowed for: what is read from a word that others write is an
arbitrary valid value, each time anew. A loop is cut at its head: all that its rounds change is forgotten but what an
inductive invariant says. So what is shown has no bound on threads, interleavings or rounds. Paths that cannot be taken
are left out, so nothing is shown of what cannot happen; an access that no path reaches is Unsupported.

Met on the way are the obligations, the same for every kernel:

* ``bounds``, ``alignment``: every access is to an element of its array;
* ``access``: inputs are only read; a word that others write is only touched by volatile loads and atomics;
* ``address``: such a word is the event's own, and so is an output;
* ``step``: whatever is in the word when a write reaches it, the write leaves what the contract's step makes of it;
* ``once``: a thread with an event writes at most once, one without never;
* ``retry``: a round is repeated only if the word has changed since it began, so that some thread has got on;
* ``exit``: a thread with an event ends after its write, or after it has seen that its step changes nothing;
* ``result``: what is reported is what stood in the word right after the step.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import attrs
import cvc5
import z3

from kvlatch.proofs.ptx import reader as ptx
from kvlatch.proofs.ptx.contracts import LOGIC, Array, Contract, World
from kvlatch.proofs.ptx.reader import Instruction, Kernel, Registers, Unsupported

LIMITS: Final = {"z3": 50_000_000, "cvc5": 10_000_000}
"""The solvers' resource limits for one question, beyond which they say unknown."""


def new_solver(logic: str = LOGIC) -> z3.Solver:
    """Z3, within its limit."""
    solver = z3.SolverFor(logic)
    solver.set("rlimit", LIMITS["z3"])
    return solver


def second_opinion(solver: z3.Solver, logic: str = LOGIC) -> str:
    """cvc5's answer to what Z3 has been asked, from the text that Z3 prints."""
    other = cvc5.Solver(cvc5.TermManager())
    other.setOption("rlimit-per", str(LIMITS["cvc5"]))
    other.setLogic(logic)
    parser = cvc5.InputParser(other)
    parser.setStringInput(cvc5.InputLanguage.SMT_LIB_2_6, solver.to_smt2(), "obligation")
    answers = []
    try:
        while not (command := parser.nextCommand()).isNull():
            answers.append(command.invoke(other, parser.getSymbolManager()).strip())
    except RuntimeError:  # what cvc5 raises where it cannot read on
        return "unknown"
    return next(filter(None, answers), "unknown")


@attrs.frozen
class Obligation:
    """One thing to be shown of one instruction; ``values`` are what a refutation tells."""

    name: str
    instruction: Instruction
    hypotheses: tuple[z3.BoolRef, ...]
    claim: z3.BoolRef
    values: Mapping[str, z3.BitVecRef]

    @property
    def denied(self) -> z3.BoolRef:
        """The path is taken, and the claim is wrong."""
        return z3.And(*self.hypotheses, z3.Not(self.claim))


@attrs.define
class Thread:
    """One path of the thread.

    ``standing`` is what its own word held right after its write, or if there was none (``done``), after its latest
    access; before the first that is an arbitrary value, and a step that does not change even that owes no write.
    ``heads``: the loops that it is in, each with what was standing when the round began.
    """

    at: int
    registers: Registers
    conditions: tuple[z3.BoolRef, ...]
    standing: z3.BitVecRef
    done: z3.BoolRef = attrs.field(factory=lambda: z3.BoolVal(False))
    reported: bool = False
    latest: Instruction | None = None
    heads: dict[int, z3.BitVecRef] = attrs.field(factory=dict)


class _Weaker(Exception):
    """An invariant that was tried is none, and has been dropped."""


class Execution:
    """All paths of one kernel, and the obligations met on them."""

    def __init__(self, kernel: Kernel, contract: Contract) -> None:
        if len(kernel.parameters) != len(contract.parameters):
            raise Unsupported(f"{kernel.name} has {len(kernel.parameters)} parameters, not {len(contract.parameters)}")
        self.kernel, self.contract, self.world = kernel, contract, World(contract)
        self.loops = ptx.loops(kernel)
        self.dropped: set[tuple[int, str]] = set()
        self.obligations: list[Obligation] = []
        self.reached: set[int] = set()
        while not self._explored():
            self.world, self.obligations, self.reached = World(contract), [], set()
        for number, instruction in enumerate(kernel.code):
            if instruction.is_access and number not in self.reached:
                raise Unsupported(f"{instruction}: never reached, so nothing is known of it")

    @property
    def names(self) -> tuple[str, ...]:
        """The obligations that a kernel of this contract must have."""
        names = ("bounds", "alignment", "access", "address", "step", "once", "exit")
        return (*names, *(["result"] if self.contract.reports else []), *(["retry"] if self.loops else []))

    def _explored(self) -> bool:
        """Follow every path; False if an invariant was none, so that all has to be done again without it."""
        shared = self.contract.shared
        standing = self.world.fresh("standing", 8 * shared.bytes)
        conditions = (self.world.valid(shared, standing),)
        threads = [Thread(0, Registers(self.kernel, self.world.special, self.world.known), conditions, standing)]
        try:
            while threads:
                self._follow(threads.pop(), threads)
        except _Weaker:
            return False
        return True

    def _follow(self, thread: Thread, others: list[Thread]) -> None:
        """Execute a thread to its end, or to a loop that it is in; ``others`` gets the other way of a branch."""
        while True:
            at, instruction = thread.at, self.kernel.code[thread.at]
            if at in self.loops:
                self._check_invariants(thread)
                if at in thread.heads:
                    changed = thread.standing != thread.heads[at]
                    self._require("retry", thread, thread.latest or instruction, changed)
                    return
                self._enter(thread)
            self.reached.add(at)
            if instruction.guard:
                truth = thread.registers.truth(instruction.guard)
                truth = z3.Not(truth) if instruction.negated else truth
                other = attrs.evolve(thread, at=at + 1, registers=thread.registers.copy())
                if self._assume(other, z3.Not(truth)):
                    others.append(other)
                if not self._assume(thread, truth):
                    return
            match instruction.opcode[0]:
                case "ret":
                    self._leave(thread, instruction)
                    return
                case "bra":
                    thread.at = self.kernel.labels[instruction.operands[0]]
                    continue
                case "ld" if instruction.opcode[1] == "param":
                    self._parameter(thread, instruction)
                case "ld" | "st" | "atom" | "red":
                    self._access(thread, instruction)
                case _:
                    thread.registers.compute(instruction)
            thread.at += 1

    def _assume(self, thread: Thread, condition: z3.BoolRef) -> bool:
        """Add a condition to a path; False if there is no such path, so that nothing is shown of what cannot be."""
        thread.conditions += (condition,)
        return self._asked(thread, z3.BoolVal(True)) != "unsat"

    def _asked(self, thread: Thread, formula: z3.BoolRef) -> str:
        """Z3's answer to a formula on a path."""
        solver = new_solver()
        solver.add(*self.world.facts, *thread.conditions, formula)
        return str(solver.check())

    # Loops ----------------------------------------------------------------------------------------------------------

    def _invariants(self, thread: Thread) -> dict[tuple[int, str], z3.BoolRef]:
        """What is tried at the head of a loop: there was no write yet, and a register has what is standing."""
        tried = {(thread.at, "done"): z3.Not(thread.done)}
        for register in self._changed(thread):
            value = thread.registers.held[register]
            if isinstance(value, z3.BitVecRef) and value.size() == thread.standing.size():
                tried[thread.at, register] = value == thread.standing
        return {name: formula for name, formula in tried.items() if name not in self.dropped}

    def _check_invariants(self, thread: Thread) -> None:
        tried = self._invariants(thread).items()
        if wrong := {name for name, formula in tried if self._asked(thread, z3.Not(formula)) != "unsat"}:
            self.dropped |= wrong
            raise _Weaker

    def _enter(self, thread: Thread) -> None:
        """Forget whatever a round changes, and assume the invariants."""
        for register in self._changed(thread):
            bits = self.kernel.width(register)
            thread.registers.held[register] = self.world.fresh(register, bits) if bits else z3.FreshBool()
        thread.standing = self.world.fresh("standing", thread.standing.size())
        thread.done = z3.FreshBool("done")
        thread.reported = False
        outer = {head: stood for head, stood in thread.heads.items() if head not in self.loops[thread.at]}
        thread.heads = outer | {thread.at: thread.standing}
        known = (self.world.valid(self.contract.shared, thread.standing), *self._invariants(thread).values())
        thread.conditions += known

    def _changed(self, thread: Thread) -> list[str]:
        """The registers that have a value and that the loop at hand writes."""
        written = {self.kernel.code[at].operands[0] for at in self.loops[thread.at] if self.kernel.code[at].operands}
        return sorted(written & set(thread.registers.held))

    # Memory ---------------------------------------------------------------------------------------------------------

    def _parameter(self, thread: Thread, instruction: Instruction) -> None:
        target, place = instruction.operands
        name = place.strip("[]")
        if name not in self.kernel.parameters or instruction.opcode[2:] != ("u64",):
            raise Unsupported(f"{instruction}: not a parameter of 64 bits")
        parameter = self.contract.parameters[self.kernel.parameters.index(name)]
        value = self.world.scalars[parameter] if isinstance(parameter, str) else self.world.bases[parameter.name]
        thread.registers.put(target, value, "u64")

    def _access(self, thread: Thread, instruction: Instruction) -> None:
        """A load, a store or an atomic: it is where it may be, and does what it is to do."""
        *form, kind = instruction.opcode
        operands = list(instruction.operands)
        target = operands.pop(0) if form[0] in ("ld", "atom") else None
        array, offset = self._place(thread, instruction, operands.pop(0))
        if ptx.width(kind) != 8 * array.bytes:
            raise Unsupported(f"{instruction}: {kind} is not an element of {array.name}")
        index = z3.LShR(offset, array.bytes.bit_length() - 1)
        self._require("bounds", thread, instruction, z3.ULT(index, self.world.length(array)))
        self._require("alignment", thread, instruction, z3.URem(offset, array.bytes) == 0)
        self._require("access", thread, instruction, z3.BoolVal(tuple(form[:2]) in _ALLOWED[array.role]))
        if array.role == "shared":
            self._require("address", thread, instruction, index == self.contract.own(self.world))
            value = self._shared(thread, instruction, [thread.registers.bits(o, ptx.width(kind)) for o in operands])
        elif form[0] == "ld":
            value = self.world.read(array.name, index)
        elif form == ["st", "global"]:
            value = thread.registers.bits(operands[0], ptx.width(kind))
            self._report(thread, instruction, index, value)
        else:
            raise Unsupported(f"{instruction}: not known for {array.name}")
        if target is not None:
            thread.registers.put(target, value, kind)

    def _place(self, thread: Thread, instruction: Instruction, operand: str) -> tuple[Array, z3.BitVecRef]:
        """The array that an address is in, and how many bytes after its beginning."""
        match = _ADDRESS.fullmatch(operand)
        if not match:
            raise Unsupported(f"{instruction}: address {operand}")
        address = thread.registers.bits(match[1], 64) + int(match[2] or 0)
        for name, base in self.world.bases.items():
            offset = z3.simplify(address - base)
            if not _constants(offset) & {other.decl().name() for other in self.world.bases.values()}:
                return self.world.arrays[name], offset
        raise Unsupported(f"{instruction}: the address is not one in an array")

    def _shared(self, thread: Thread, instruction: Instruction, operands: list[z3.BitVecRef]) -> z3.BitVecRef:
        """A word that others write: there is any valid value in it, and a write makes of that what the step does."""
        current = self.world.fresh("current", thread.standing.size())
        thread.conditions += (self.world.valid(self.contract.shared, current),)
        thread.latest = instruction
        if instruction.opcode[0] == "ld":
            thread.standing = z3.If(thread.done, thread.standing, current)
            return current
        writes, after = _after(instruction, current, operands)
        expected = self.contract.step(self.world, current)
        values = self._event() | {"current": current, "stores": after, "spec": expected}
        self._require("once", thread, instruction, z3.And(self.world.has_event, z3.Not(thread.done)), values)
        self._require("step", thread, instruction, z3.Implies(writes, after == expected), values)
        thread.done = z3.Or(thread.done, writes)
        thread.standing = z3.If(writes, after, current)
        return current

    def _report(self, thread: Thread, instruction: Instruction, index: z3.BitVecRef, value: z3.BitVecRef) -> None:
        """A store to an output: that of the event, of what stood after its step."""
        thread.reported = True
        self._require("address", thread, instruction, index == self.world.event)
        stood = z3.Extract(value.size() - 1, 0, thread.standing)
        values = self._event() | {"stands": thread.standing, "reports": value}
        self._require("result", thread, instruction, z3.And(self._settled(thread), value == stood), values)

    def _leave(self, thread: Thread, instruction: Instruction) -> None:
        """The end: a thread that has an event has done with it. What is wrong was wrong at its latest access."""
        values = self._event() | {"saw": thread.standing, "spec": self.contract.step(self.world, thread.standing)}
        settled = z3.Implies(self.world.has_event, self._settled(thread))
        self._require("exit", thread, thread.latest or instruction, settled, values)
        if self.contract.reports:
            reported = z3.Implies(self.world.has_event, z3.BoolVal(thread.reported))
            self._require("result", thread, instruction, reported)

    def _settled(self, thread: Thread) -> z3.BoolRef:
        """It has written, or what it saw last is what its step leaves as it is."""
        return z3.Or(thread.done, self.contract.step(self.world, thread.standing) == thread.standing)

    def _event(self) -> dict[str, z3.BitVecRef]:
        named = {a.name: self.world.read(a.name) for a in self.world.arrays.values() if (a.role, a.per) == _OF_EVENTS}
        return {"event": self.world.event, "events": self.world.scalars["events"], **named}

    def _require(
        self,
        name: str,
        thread: Thread,
        instruction: Instruction,
        claim: z3.BoolRef,
        values: Mapping[str, z3.BitVecRef] | None = None,
    ) -> None:
        shown = self._event() if values is None else values
        self.obligations.append(Obligation(name, instruction, thread.conditions, claim, shown))


_ADDRESS: Final = re.compile(r"\[(%\w+)(?:\+(-?\d+))?\]")
_OF_EVENTS: Final = ("input", "events")
_ALLOWED: Final = {
    "input": {("ld", "global")},
    "shared": {("ld", "volatile"), ("atom", "global"), ("red", "global")},
    "output": {("st", "global")},
}
"""How an array of each role may be touched. A plain load of a word that others write may be any value, even a torn one,
and so may one through the read-only cache (``.nc``)."""


def _after(instruction: Instruction, current: z3.BitVecRef, values: list[z3.BitVecRef]) -> tuple[z3.BoolRef, Any]:
    """Whether a store or an atomic writes, and what is in the word then."""
    always = z3.BoolVal(True)
    match instruction.opcode, values:
        case ("st", "global", _), [value]:
            return always, value
        case ("atom", "global", "cas", _), [compared, value]:
            return current == compared, value
        case ("atom" | "red", "global", "min" | "max" as name, kind), [value]:
            return always, ptx.extreme(name, kind, current, value)
        case ("atom" | "red", "global", "or", _), [value]:
            return always, current | value
        case ("atom", "global", "exch", _), [value]:
            return always, value
    raise Unsupported(f"{instruction}: not known")


def _constants(term: z3.ExprRef) -> set[str]:
    """The names of the constants in a term."""
    if z3.is_const(term):
        return {term.decl().name()}
    return set().union(*(_constants(child) for child in term.children()))
