"""Settlement of one room among any number: what other rooms must not do to it, and that it is never stuck.

``parametric.py`` says how these make a proof. A row may wait until something holds of all earlier chunks, and "no such
step is enabled" would say that for each chunk there is an earlier one, and so on without end. So it is said of one
chunk, which has a name: the first of which that does not hold, if there is any.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import attrs
import z3

from kvlatch.proofs.obligations import Obligation, conjunction
from kvlatch.proofs.ranking import BITS
from kvlatch.proofs.sorts import Elements, elements, mentions, relation
from kvlatch.spec.model import EVERY, Action
from kvlatch.spec.schema import Property
from kvlatch.spec.terms import All, Every, Is, Not, Ordered, Term, Var, evaluate
from kvlatch.spec.terms import Any as Either

if TYPE_CHECKING:
    from kvlatch.proofs.parametric import AnyNumber


@attrs.frozen(eq=False, slots=False)  # cached_property needs a __dict__
class Settlement:
    """The obligations of a liveness property in a theory, besides those that it shares with safety."""

    theory: AnyNumber

    @property
    def constants(self) -> list[z3.ExprRef]:
        """The chunks with names, and the conditions."""
        named = [constant for constant, _ in (*self._firsts.values(), *self._named_by.values())]
        return [*named, *(self.theory.conditions.named if self._disabled else [])]

    def bystanders(self) -> list[Obligation]:
        """What other rooms do raises no rank of this one, and disables nothing in it that only weak fairness takes."""
        found = []
        potential = [
            part.term
            for part in self.theory.potential
            if part.var.owner == self.theory.machine.protocol.crowd and part.var.place != EVERY
        ]
        counted = z3.If(self.theory.here, sum(potential, z3.BitVecVal(0, BITS)), 0)
        guards = [
            evaluate(action.guard, self.theory.seen_by(**({crowd: elements(crowd).witness} if crowd else {})))
            for crowd in [self.theory.machine.protocol.crowd]
            for action in self.theory.machine.model.actions
            if action.fair and not self._starts(action)
        ]
        for step in (step for step in self.theory.steps if step.action is None):
            raised = z3.Not(z3.ULE(self.theory.after(step, counted), counted))
            found.append(Obligation(f"rank {step.name}", (*self.theory.local, step.enabled, raised), bare=True))
            stops = z3.Or([z3.And(guard, z3.Not(self.theory.after(step, guard))) for guard in guards])
            found.append(Obligation(f"fair {step.name}", (step.enabled, z3.simplify(stops))))
        return found

    def _starts(self, action: Action) -> bool:
        """The step is an idle worker's: whoever takes up a room may be needed in all of them."""
        crowd = self.theory.machine.protocol.crowd
        return self.theory.home is not None and crowd in action.arguments and action.rule.at == self.theory.home.idle

    def stuck(self, prop: Property) -> list[Obligation]:
        """The state is bad and nothing fair is enabled: impossible.

        A worker that is busy in this room can move (``busy``); so can one that is busy in another, for the same reason.
        What is left is that all of them are idle.
        """
        crowd = self.theory.machine.protocol.crowd
        fair = [action for action in self.theory.machine.model.actions if action.fair]
        by_crowd = [action for action in fair if crowd in action.arguments]
        disabled = [self._disabled[action] for action in fair if crowd not in action.arguments]
        bad = self.theory.says([self.theory.machine.model.claim(prop.bad)])
        nobody = [self.theory.idle] if self.theory.home else []
        nobody += [self._disabled[action] for action in by_crowd if self.theory.home is None or self._starts(action)]
        assertions = [bad, *disabled]
        if crowd is not None:
            about = elements(crowd)
            assertions.append(z3.ForAll([about.some], z3.substitute(conjunction(nobody), (about.this, about.some))))
        stuck = self._obligation(f"property {prop.name}", assertions)
        if self.theory.home is None:
            return [stuck]
        moves = [self._disabled[action] for action in by_crowd if not self._starts(action)]
        busy = self._obligation(f"property {prop.name}, busy", [self.theory.here, z3.Not(self.theory.idle), *moves])
        return [busy, stuck]

    def _obligation(self, name: str, assertions: Sequence[z3.BoolRef]) -> Obligation:
        """With what the names in the assertions mean."""
        constants = [*self._firsts.values(), *self._named_by.values()]
        meant = [axiom for constant, axiom in constants if mentions(conjunction(assertions), [constant])]
        full = (*meant, *self.theory.conditions.defined(assertions), *assertions)
        for formula in full:
            self.theory.graph.admit(formula)
        return Obligation(name, full)

    @cached_property
    def _disabled(self) -> dict[Action, z3.BoolRef]:
        """For each fair action, that it is not enabled: this worker's, on whatever chunk."""
        named_before = self.theory.steps  # the conditions of steps come first, whatever is asked for first
        fair = (step.action for step in named_before if step.action and step.action.fair)
        return {action: self._not_enabled(action) for action in fair}

    def _not_enabled(self, action: Action) -> z3.BoolRef:
        """The action is not enabled on any chunk; or not on the one that matters, where it is known which."""
        own, open_ = {}, []
        for sort in (sort for sort in self.theory.orders if sort.name in action.arguments):
            known = self._firsts.get((action.rule.name, sort.name)) or self._named_by.get((action.rule.name, sort.name))
            own[sort.name] = known[0] if known else sort.some
            open_ += [] if known else [sort.some]
        crowd = self.theory.machine.protocol.crowd
        unnamed = (*open_, *([elements(crowd).this] if crowd else []))
        state = attrs.evolve(self.theory.seen_by(**own), conditions=self.theory.conditions, open=unnamed)
        disabled = z3.Not(evaluate(action.guard, state))
        return z3.ForAll(open_, disabled) if open_ else disabled

    @cached_property
    def _firsts(self) -> dict[tuple[str, str], tuple[z3.ExprRef, z3.BoolRef]]:
        """For a row that waits until of all earlier chunks something holds: the first chunk of which it does not.

        By row and sort, with what is true of it: there is none, or it is the first.
        """
        found = {}
        for action, sort, part in self._conjuncts():
            match part:
                case Every(Either((Not(Ordered(_, "before")), waits)), about) if about == sort.name:
                    key = action.rule.name, about
                    first = z3.Const(f"first {about} of {action.rule.name}", sort.sort)
                    holds = evaluate(waits, self.theory.state)
                    least = z3.ForAll([sort.each], z3.Or(z3.Not(sort.before(sort.each, first)), holds))
                    there = z3.And(z3.Not(z3.substitute(holds, (sort.each, first))), least)
                    found[key] = first, z3.Or(z3.ForAll([sort.each], holds), there)
        return found

    @cached_property
    def _named_by(self) -> dict[tuple[str, str], tuple[z3.ExprRef, z3.BoolRef]]:
        """For a row about the chunk that its worker has taken: that chunk, and that the worker has it."""
        found = {}
        for action, sort, part in self._conjuncts():
            match part:
                case Is(Var() as var, 1) if relation(var) and self.theory.sorts_of(var)[1] == sort.name:
                    named = z3.Const(f"{var.field.name} of this {var.owner}", sort.sort)
                    owner = elements(var.owner).this
                    found[action.rule.name, sort.name] = named, self.theory.state.values[var].decl()(owner, named) == 1
        return found

    def _conjuncts(self) -> Iterator[tuple[Action, Elements, Term]]:
        """What the guard of each fair action that is about an element demands."""
        for action in (action for action in self.theory.machine.model.actions if action.fair):
            for sort in (sort for sort in self.theory.orders if sort.name in action.arguments):
                yield from ((action, sort, part) for part in parts(action.guard))


def parts(guard: Term) -> Iterator[Term]:
    if isinstance(guard, All):
        for part in guard.parts:
            yield from parts(part)
    else:
        yield guard
