"""Bounded model checking: is there a run of exactly this many steps to a bad state? Asked of Z3, depth by depth.

The states of a run are unrolled into one formula; each step is the choice of one action. The first depth with an
answer is the length of a shortest counterexample, and the unsatisfiable depths before it say that none is shorter.
The run that Z3 finds is executed on the concrete semantics before anything is said about it.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import z3

from kvlatch.proofs.terms import Symbolic
from kvlatch.spec.model import Action, Machine
from kvlatch.spec.properties import Property
from kvlatch.spec.terms import Term, assign, evaluate

_LIMIT = 400_000_000
"""Z3's resource limit for one depth."""


class Undecided(Exception):
    """Z3 answered unknown."""


@attrs.frozen(eq=False)
class Unrolling:
    """The runs of one machine, as deep as has been asked for."""

    machine: Machine
    solver: z3.Solver
    states: list[Symbolic]
    choices: list[list[z3.BoolRef]]

    @classmethod
    def of(cls, machine: Machine) -> Unrolling:
        """The runs of no steps: the initial state."""
        # Finite-domain reasoning by bit-blasting: several times faster here than the general solver.
        solver = z3.SolverFor("QF_FD")
        solver.set("rlimit", _LIMIT)
        first = Symbolic.fresh(machine.model.variables, machine.merge, "!0")
        solver.add([value == 0 for value in first.values.values()])
        return cls(machine, solver, [first], [])

    def shortest(self, properties: Sequence[Property], limit: int) -> dict[str, list[Action]]:
        """A shortest counterexample, of at most ``limit`` steps, for each property that has one.

        Raises :class:`Undecided` where Z3 gives up, and AssertionError where its run is not a run of the spec.
        """
        found: dict[str, list[Action]] = {}
        for depth in range(limit + 1):
            if depth == len(self.states):
                self._unroll()
            for prop in properties:
                if prop.name not in found and (run := self._reach(prop, depth)) is not None:
                    found[prop.name] = run
            if len(found) == len(properties):
                break
        return found

    def _unroll(self) -> None:
        before = self.states[-1]
        depth = len(self.states)
        model = self.machine.model
        after = Symbolic.fresh(model.variables, self.machine.merge, f"!{depth}")
        choice = [z3.Bool(f"do!{depth}!{index}") for index in range(len(model.actions))]
        result = dict(before.values)
        for chosen, action in zip(choice, model.actions, strict=True):
            self.solver.add(z3.Implies(chosen, evaluate(action.guard, before)))
            for var, term in action.updates:
                result[var] = z3.If(chosen, assign(var, term, before), result[var])
        self.solver.add(z3.AtMost(*choice, 1), z3.Or(choice))
        self.solver.add([after.values[var] == value for var, value in result.items()])
        self.states.append(after)
        self.choices.append(choice)

    def _reach(self, prop: Property, depth: int) -> list[Action] | None:
        """A run of this depth to a bad state, or None if there is none, which is then remembered."""
        bad = self._bad(prop, depth)
        asked = z3.Bool(f"{prop.name}!{depth}")
        self.solver.add(z3.Implies(asked, bad))
        answer = self.solver.check(asked)
        if answer == z3.unknown:
            raise Undecided(f"{prop.name} at depth {depth}: {self.solver.reason_unknown()}")
        if answer == z3.unsat:
            self.solver.add(z3.Not(bad))
            return None
        model = self.solver.model()
        run = [
            self.machine.model.actions[next(i for i, chosen in enumerate(choice) if z3.is_true(model[chosen]))]
            for choice in self.choices[:depth]
        ]
        self._execute(run, prop)
        return run

    def _bad(self, prop: Property, depth: int) -> z3.BoolRef:
        state = self.states[depth]
        bad = evaluate(self._claim(prop), state)
        if prop.kind == "liveness":
            fair = [evaluate(action.guard, state) for action in self.machine.model.actions if action.fair]
            bad = z3.And(bad, z3.Not(z3.Or(fair)))
        return bad

    def _claim(self, prop: Property) -> Term:
        return self.machine.model.claim(prop.bad)

    def _execute(self, run: list[Action], prop: Property) -> None:
        """Take the steps one by one on the concrete semantics; the last state must be bad."""
        state = self.machine.initial()
        for action in run:
            state = self.machine.step(state, action)
        if not self.machine.broken(prop, state):
            raise AssertionError(f"Z3's run for {prop.name} does not end in a bad state")
