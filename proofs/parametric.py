"""Induction for any number of rooms and of transfer workers.

Workers are elements of an uninterpreted sort: ``worker(w)``, ``job(w)`` and so on are functions of it into
bit-vectors. One room is looked at. One worker acts, an arbitrary one, and a step changes its values alone:
``worker'(w)`` is the new value where w is the one that acts, and ``worker(w)`` elsewhere. A lemma about workers is said
of all that serve the room.

*Any number of rooms.* A step of another room changes no variable of this one, and of workers only one that serves that
other room: that is how the steps are written, and :func:`footprint` checks it on every one of them. So all that other
rooms can do to this one is to take a worker that is idle (``leave``) and to change one that is not here
(``elsewhere``). Both are obligations like any other. A proof about one room is therefore a proof about each of them.

*Decidable.* Every formula is of the form "there are workers such that for all workers", without a function that
returns a worker (:func:`effectively_propositional` checks it). Such a formula has a model only if it has one with as
many workers as are named in it, so the solvers cannot run away: ``unknown`` would be a mistake here.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import attrs
import z3

from kvlatch.proofs.induction import Claim, Expression, Obligation, Step, Theory, conjunction
from kvlatch.proofs.terms import Symbolic, width
from kvlatch.spec.model import EVERY, Action, Machine, Model
from kvlatch.spec.schema import Home, Property
from kvlatch.spec.terms import All, Every, Field, Not, Term, Var, evaluate, fields
from kvlatch.spec.terms import Any as Either

Worker = z3.DeclareSort("Worker")
ACTOR = z3.Const("actor", Worker)
"""The worker that acts."""
SOME = z3.Const("some", Worker)
"""The worker that a lemma speaks of."""
WITNESS = z3.Const("witness", Worker)
"""The worker of which a lemma is said not to hold."""
EACH = z3.Const("each", Worker)
"""The worker that a quantifier within a lemma or a guard speaks of."""


@attrs.frozen
class Valuation(Symbolic):
    """Terms over a state with any number of workers; ``own`` is the worker that fields without a quantifier mean."""

    own: z3.ExprRef = attrs.field(kw_only=True)

    def every(self, part: z3.BoolRef, own: bool) -> z3.BoolRef:
        return z3.ForAll([EACH], part if own else z3.Or(self.own == EACH, part))


@attrs.frozen(eq=False, slots=False)  # cached_property needs a __dict__
class AnyWorkers(Theory):
    """A machine with any number of workers, as terms over one arbitrary state; ``state`` is as the actor sees it."""

    logic = "UFBV"

    @classmethod
    def of(cls, machine: Machine) -> AnyWorkers:
        """The terms of a machine whose instance has ``ANY`` workers; ValueError if they are not decidable."""
        model = machine.model
        for action in model.actions:
            footprint(action, model)
        return cls(machine, _valuation(machine, ACTOR))

    @cached_property
    def any_worker(self) -> Valuation:
        """The state as any worker sees it, of which a lemma speaks."""
        return _valuation(self.machine, SOME)

    @cached_property
    def own(self) -> dict[Field, Var]:
        """Each field of a worker, as the variable of the one that a formula names."""
        return {var.field: var for var in self.machine.model.variables if self._crowd(var) and var.place != EVERY}

    def _crowd(self, var: Var) -> bool:
        return var.owner == self.machine.protocol.crowd

    @property
    def home(self) -> Home | None:
        """Where a worker's room is written, if the protocol's crowd serves several rooms."""
        return self.machine.protocol.home

    @cached_property
    def here(self) -> z3.BoolRef:
        """The actor serves this room."""
        if self.home is None:
            return z3.BoolVal(True)
        return self.state.is_(self.own[self.home.field], 1)

    @cached_property
    def idle(self) -> z3.BoolRef:
        """The actor has nothing to do in any room."""
        if self.home is None:
            return z3.BoolVal(False)
        pc = self.own[self.home.pc]
        return self.state.is_(pc, pc.labels.index(self.home.idle))

    @property
    def declarations(self) -> list[str]:
        """The sort of workers, and the constants and functions of the theory, in SMT-LIB."""
        lines = [f"(declare-sort {Worker} 0)"]
        lines += [f"(declare-const {constant} {Worker})" for constant in (ACTOR, WITNESS)]
        for var, value in self.state.values.items():
            if not self._crowd(var):
                lines.append(f"(declare-const {value.sexpr()} (_ BitVec {width(var)}))")
            elif var.place != EVERY:
                lines.append(f"(declare-fun {var.field.name} ({Worker}) (_ BitVec {width(var)}))")
                if self.home:
                    lines.append(f"(declare-const {_stranger(var).sexpr()} (_ BitVec {width(var)}))")
        return lines

    @property
    def domain(self) -> list[z3.BoolRef]:
        """Each variable has one of its labels, of every worker, and whatever another room writes is a label too."""
        state = self.any_worker
        rooms = {var: value for var, value in state.values.items() if not self._crowd(var)}
        workers = {var: state.values[var] for var in self.own.values()}
        strangers = {var: _stranger(var) for var in workers} if self.home else {}
        each = Symbolic(workers, state.merge).domain()
        return [
            *Symbolic(rooms, state.merge).domain(),
            *Symbolic(strangers, state.merge).domain(),
            z3.ForAll([SOME], conjunction(each)),
        ]

    @property
    def local(self) -> list[z3.BoolRef]:
        """Each variable of the room and of the actor has one of its labels."""
        values = {var: value for var, value in self.state.values.items() if var.place != EVERY}
        return Symbolic(values, self.state.merge).domain()

    @property
    def initial(self) -> list[z3.BoolRef]:
        """Every variable of the room has its first label, and no worker serves it; or every one is as it begins."""
        state = self.any_worker
        rooms = [value == 0 for var, value in state.values.items() if not self._crowd(var)]
        begins = [self.own[self.home.field]] if self.home else list(self.own.values())
        return [*rooms, z3.ForAll([SOME], conjunction([state.values[var] == 0 for var in begins]))]

    @cached_property
    def steps(self) -> list[Step]:
        """Every action of the room, and what other rooms can do to it: ``leave`` and ``elsewhere``."""
        if self.home is None:
            return super().steps
        room = self.own[self.home.field]
        away = {room: z3.BitVecVal(0, width(room))}
        strange = {var: _stranger(var) for var in self.own.values() if var is not room}
        return [
            *super().steps,
            Step("leave", z3.And(self.here, self.idle), away),
            Step("elsewhere", z3.Not(self.here), strange),
        ]

    def says(self, terms: Sequence[Term]) -> z3.BoolRef:
        """All of the terms, of every worker where they speak of one."""
        crowd = str(self.machine.protocol.crowd)
        for term in terms:
            effectively_propositional(term, crowd)
        about = conjunction([evaluate(term, self.any_worker) for term in terms])
        return z3.ForAll([SOME], about) if any(_names_one(term, crowd) for term in terms) else about

    def unfolded(self, formula: z3.BoolRef) -> z3.BoolRef:
        """What holds of every worker, said once more of the two that nearly every proof is about."""
        if not z3.is_quantifier(formula):
            return formula
        return conjunction([formula, *(z3.substitute_vars(formula.body(), named) for named in (ACTOR, WITNESS))])

    def goal(self, claim: Claim) -> z3.BoolRef:
        """What has to be kept of a lemma: that it holds of one arbitrary worker, who stands for all."""
        formula = claim.formula
        return z3.substitute_vars(formula.body(), WITNESS) if z3.is_quantifier(formula) else formula

    def after(self, step: Step, term: Expression) -> Expression:
        """A term, said of the state after a step: of the actor, what the step sets; of any other worker, as before."""
        changes, each = [], z3.Var(0, Worker)
        for var, new in step.sets.items():
            function = self.state.values[var].decl()
            of_worker = self._crowd(var)
            changes.append((function, z3.If(each == ACTOR, new, function(each)) if of_worker else new))
        return z3.substitute_funs(term, *changes)

    def touched(self, step: Step, claim: Claim) -> bool:
        """The step sets something that the lemma reads, of this worker or of every one."""
        return any(self._of(var) in step.sets for var in claim.reads)

    def _of(self, var: Var) -> Var:
        return self.own[var.field] if self._crowd(var) else var

    def stuck(self, prop: Property) -> list[Obligation]:
        """The state is bad and nothing fair is enabled: impossible.

        A worker that is busy in this room can move (``busy``); so can one that is busy in another, for the same reason.
        What is left is that all of them are idle.
        """
        crowd = self.machine.protocol.crowd
        fair = [step for step in self.steps if step.action and step.action.fair]
        by_workers = [step.enabled for step in fair if step.action and crowd in step.action.arguments]
        disabled = [z3.Not(step.enabled) for step in fair if step.action and crowd not in step.action.arguments]
        nobody = conjunction([*([self.idle] if self.home else []), *map(z3.Not, by_workers)])
        everybody = z3.ForAll([SOME], z3.substitute(nobody, (ACTOR, SOME)))
        bad = self.says([self.machine.model.claim(prop.bad)])
        stuck = Obligation(f"property {prop.name}", (bad, *disabled, everybody))
        if self.home is None:
            return [stuck]
        busy = (self.here, z3.Not(self.idle), *map(z3.Not, by_workers))
        return [Obligation(f"property {prop.name}, busy", busy), stuck]


def _valuation(machine: Machine, own: z3.ExprRef) -> Valuation:
    """The state as one worker sees it."""
    values = {}
    for var in machine.model.variables:
        bits = z3.BitVecSort(width(var))
        if var.owner == machine.protocol.crowd:
            values[var] = z3.Function(var.field.name, Worker, bits)(EACH if var.place == EVERY else own)
        else:
            values[var] = z3.Const(var.name, bits)
    return Valuation(values, machine.merge, own=own)


def _stranger(var: Var) -> z3.BitVecRef:
    """Whatever another room may have written into a variable of a worker."""
    return z3.BitVec(f"{var.field.name} elsewhere", width(var))


def _names_one(term: Term, crowd: str) -> bool:
    """The term speaks of one worker, that is not bound by a quantifier in it."""
    return any(isinstance(var, Var) and var.owner == crowd and var.place != EVERY for var in fields(term))


def footprint(action: Action, model: Model) -> None:
    """An action reads and sets one room and one worker; of others it reads only those that serve its room.

    ValueError if not. This is what makes rooms independent of each other.
    """
    crowd = model.protocol.crowd
    for var, _ in action.updates:
        if var.owner == crowd and var.place == EVERY:
            raise ValueError(f"{action.label} sets {var.name}: of every {crowd}")
    if crowd not in action.arguments and any(var.owner == crowd for var, _ in action.updates):
        raise ValueError(f"{action.label} is no {crowd}'s, and sets a {crowd}'s variable")
    if model.instance.count("room") != 1:
        raise ValueError(f"{action.label} is bound to an instance with several rooms")


def effectively_propositional(term: Term, crowd: str) -> None:
    """A claim about a worker must not say that there is another one: ValueError if it does.

    "For all workers there is a worker" is where decidability ends: each would bring the next.
    """
    if _names_one(term, crowd) and _says_there_is(term, positive=True):
        raise ValueError(f"for each {crowd} there is another {crowd}: this is not effectively propositional")


def _says_there_is(term: Term, *, positive: bool) -> bool:
    """The term, or its negation, says that there is a worker."""
    match term:
        case Not(part):
            return _says_there_is(part, positive=not positive)
        case All(parts) | Either(parts):
            return any(_says_there_is(part, positive=positive) for part in parts)
    return isinstance(term, Every) and not positive
