"""Bounded model checking: is there a run of exactly this many steps to a bad state? Asked of Z3, depth by depth.

A machine's transition relation is one formula over the state before a step, the number of the action that is taken, and
the state after it. A run is that formula once for each step, with the constants numbered. The first depth with an
answer is the length of a shortest counterexample, and the unsatisfiable depths before it say that none is shorter;
:func:`script` says the same in one file, for any solver. The run that Z3 finds is executed on the concrete semantics
before anything is said about it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import count

import attrs
import z3

from kvlatch.proofs.terms import Symbolic
from kvlatch.spec.model import Action, Machine
from kvlatch.spec.schema import Property
from kvlatch.spec.terms import assign, evaluate

_LIMIT = 400_000_000
"""Z3's resource limit for one depth."""


class Undecided(Exception):
    """Z3 answered unknown."""


@attrs.frozen(eq=False, slots=False)  # cached_property needs a __dict__
class Transition:
    """One step of a machine as formulas: from ``before`` to ``after`` by the action that has the number ``choice``."""

    machine: Machine
    before: Symbolic
    after: Symbolic
    choice: z3.BitVecRef

    @classmethod
    def of(cls, machine: Machine) -> Transition:
        """The transition relation of a machine."""
        model = machine.model
        before, after = (Symbolic.fresh(model.variables, machine.merge, suffix) for suffix in ("", ".next"))
        return cls(machine, before, after, z3.BitVec("action", len(model.actions).bit_length()))

    @cached_property
    def step(self) -> z3.BoolRef:
        """The action is enabled before, and after it each variable has what the action sets, or what it had.

        A number that no action has stands for no step: the state after is the state before.
        """
        actions = self.machine.model.actions
        result = dict(self.before.values)
        guards = []
        for index, action in enumerate(actions):
            guards.append(z3.Implies(self.choice == index, evaluate(action.guard, self.before)))
            for var, term in action.updates:
                result[var] = z3.If(self.choice == index, assign(var, term, self.before), result[var])
        sets = [self.after.values[var] == value for var, value in result.items()]
        return z3.And(*guards, *sets)

    @cached_property
    def initial(self) -> z3.BoolRef:
        """The state before is the initial one: each variable has its first label."""
        return z3.And([value == 0 for value in self.before.values.values()])

    def bad(self, prop: Property) -> z3.BoolRef:
        """The state before is bad for a property; for liveness, no fair action is enabled there."""
        bad = evaluate(self.machine.model.claim(prop.bad), self.before)
        if prop.kind == "safety":
            return bad
        fair = [evaluate(action.guard, self.before) for action in self.machine.model.actions if action.fair]
        return z3.And(bad, z3.Not(z3.Or(fair)))

    def at(self, depth: int, formula: z3.BoolRef) -> z3.BoolRef:
        """A formula about one step, said of the step of a run that follows the first ``depth`` ones."""
        here, there = numbered(self.constants, depth), numbered(self.before.values.values(), depth + 1)
        following = zip(self.after.values.values(), there, strict=True)
        return z3.substitute(formula, *zip(self.constants, here, strict=True), *following)

    @property
    def constants(self) -> list[z3.BitVecRef]:
        """Those of the state before, and the number of the action."""
        return [*self.before.values.values(), self.choice]


def numbered(constants: Iterable[z3.BitVecRef], depth: int) -> list[z3.BitVecRef]:
    """The constants of the state after ``depth`` steps, or of the step from there."""
    return [z3.BitVec(f"{constant.decl().name()}!{depth}", constant.size()) for constant in constants]


def script(machine: Machine, lengths: Mapping[str, int]) -> str:
    """The SMT-LIB script that says: some run breaks one of these properties in fewer steps than are given for it.

    A run may rest: a state that is reached in fewer steps is also a state after more, so each property is asked about
    one depth.
    """
    transition = Transition.of(machine)
    state, after = transition.before.values.values(), transition.after.values.values()
    sorts = {each.sexpr(): each.sort().sexpr() for each in transition.constants}
    steps = max(lengths.values()) - 1
    runs = [[f"{name}!{depth}" for name in sorts] for depth in range(steps + 1)]
    states = [constants[:-1] for constants in runs]  # the last one is the action's
    bad = [_applied(name, states[length - 1]) for name, length in lengths.items()]
    lines = [
        "(set-logic QF_BV)",
        *_legend(machine),
        _defined("initial", state, transition.initial),
        _defined("step", [*transition.constants, *after], transition.step),
        *(_defined(name, state, transition.bad(machine.protocol.prop(name))) for name in lengths),
        *(f"(declare-const {name} {sort})" for run in runs for name, sort in zip(run, sorts.values(), strict=True)),
        f"(assert {_applied('initial', states[0])})",
        *(f"(assert {_applied('step', [*runs[depth], *states[depth + 1]])})" for depth in range(steps)),
        f"(assert (or false {' '.join(bad)}))",
        "(check-sat)\n",
    ]
    return "\n".join(lines)


def _legend(machine: Machine) -> list[str]:
    """Comments that say what the numbers mean."""
    legend = {"action": [*(action.label for action in machine.model.actions), "or more: none, the run rests"]}
    legend |= {var.name: list(var.labels) for var in machine.model.variables}
    return [f"; {name}: {', '.join(map('{} {}'.format, count(), labels))}" for name, labels in legend.items()]


def _defined(name: str, parameters: Iterable[z3.BitVecRef], formula: z3.BoolRef) -> str:
    listed = " ".join(f"({each.sexpr()} {each.sort().sexpr()})" for each in parameters)
    return f"(define-fun {name} ({listed}) Bool {formula.sexpr()})"


def _applied(name: str, arguments: Iterable[str]) -> str:
    return f"({name} {' '.join(arguments)})"


@attrs.frozen(eq=False)
class Unrolling:
    """The runs of one machine, as deep as has been asked for; ``choices`` has the number of each step's action."""

    transition: Transition
    solver: z3.Solver
    choices: list[z3.BitVecRef]

    @classmethod
    def of(cls, machine: Machine) -> Unrolling:
        """The runs of no steps: the initial state."""
        # Finite-domain reasoning by bit-blasting: several times faster here than the general solver.
        solver = z3.SolverFor("QF_FD")
        solver.set("rlimit", _LIMIT)
        transition = Transition.of(machine)
        solver.add(transition.at(0, transition.initial))
        return cls(transition, solver, [])

    def shortest(self, properties: Sequence[Property], limit: int) -> dict[str, list[Action]]:
        """A shortest counterexample, of at most ``limit`` steps, for each property that has one.

        Raises :class:`Undecided` where Z3 gives up, and AssertionError where its run is not a run of the spec.
        """
        found: dict[str, list[Action]] = {}
        for depth in range(limit + 1):
            if depth == len(self.choices) + 1:
                self._unroll()
            for prop in properties:
                if prop.name not in found and (run := self._reach(prop, depth)) is not None:
                    found[prop.name] = run
            if len(found) == len(properties):
                break
        return found

    def _unroll(self) -> None:
        depth = len(self.choices)
        (choice,) = numbered([self.transition.choice], depth)
        actions = self.transition.machine.model.actions
        self.solver.add(self.transition.at(depth, self.transition.step), z3.ULT(choice, len(actions)))
        self.choices.append(choice)

    def _reach(self, prop: Property, depth: int) -> list[Action] | None:
        """A run of this depth to a bad state, or None if there is none, which is then remembered."""
        bad = self.transition.at(depth, self.transition.bad(prop))
        asked = z3.Bool(f"{prop.name}!{depth}")
        self.solver.add(z3.Implies(asked, bad))
        answer = self.solver.check(asked)
        if answer == z3.unknown:
            raise Undecided(f"{prop.name} at depth {depth}: {self.solver.reason_unknown()}")
        if answer == z3.unsat:
            self.solver.add(z3.Not(bad))
            return None
        taken = [self.solver.model().eval(choice, model_completion=True) for choice in self.choices[:depth]]
        run = [self.transition.machine.model.actions[number.as_long()] for number in taken]
        self._execute(run, prop)
        return run

    def _execute(self, run: list[Action], prop: Property) -> None:
        """Take the steps one by one on the concrete semantics; the last state must be bad."""
        machine = self.transition.machine
        state = machine.initial()
        for action in run:
            state = machine.step(state, action)
        if not machine.broken(prop, state):
            raise AssertionError(f"Z3's run for {prop.name} does not end in a bad state")
