"""The model of one instance of a protocol, and the concrete semantics: one state, one step.

An instance says how many rooms, workers and chunks there are. :func:`build` grounds the rows for it (``steps.py``):
each field becomes one variable per room, worker or chunk, each row one :class:`Action` per room, worker and chunk it
can apply to, and "for every worker" becomes a conjunction. With any number of a sort one element is named, the one that
a step is about, and "for every" stays a quantifier: such a model is for ``proofs/parametric.py``, and does not run.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import attrs

from kvlatch.spec.room import HERE, MAX_CHUNKS, ROOM, Instance, job_room, merge_rows
from kvlatch.spec.schema import ANY, AnyDesign, Atomicity, Network, Property, Protocol, Sizes
from kvlatch.spec.steps import EVERY, Action, Grounding, Place, between_steps, serves_several, steps_of
from kvlatch.spec.terms import FALSE, TRUE, Enumerated, Field, Is, State, Term, Var, assign, evaluate, free, rewrite

__all__ = [
    "ANY", "EVERY", "HERE", "MAX_CHUNKS", "Action", "Concrete", "Fixed", "Instance", "Machine", "Model",
    "between_steps", "build", "job_room", "merge_rows", "named",
]  # fmt: skip


@attrs.frozen(eq=False)
class Model:
    """The steps of one instance. Switches are variables of their own until :meth:`of` fixes them."""

    instance: Sizes
    variables: tuple[Var, ...]
    switches: Mapping[Field, Var]
    actions: tuple[Action, ...]
    ground: Grounding
    fix: Fixed | None = None

    def claim(self, formula: Term, room: int = 0) -> Term:
        """A formula about one room, bound to this instance."""
        return self._bound(formula, {"room": room})

    def instances(self, formula: Term) -> list[Term]:
        """A formula about any worker or any chunk, bound to each of them in turn."""
        open_ = free(formula)
        places: list[Place] = [{"room": 0}]
        for sort in self.protocol.sorts:
            if sort in open_:
                places = [at for place in places for at in self.ground.places(sort, place)]
        home = self.protocol.home
        if home and home.field.owner in open_ and serves_several(self.protocol, self.instance):
            formula = (home.field != home.field.labels[1]) | formula
        return [self._bound(formula, place) for place in places]

    @property
    def protocol(self) -> Protocol:
        """The protocol whose model this is."""
        return self.ground.protocol

    def at(self, formula: Term, place: Place) -> Term:
        """A formula about some elements, bound to those at a place; of the crowd, to the first, if none is named."""
        first = {self.protocol.crowd: 0} if self.protocol.crowd else {}
        return self._bound(formula, {"room": 0, **first, **place})

    @property
    def timed(self) -> bool:
        """Some step demands an order of instants, which has to be proved from durations."""
        return any(action.order is not TRUE for action in self.actions)

    @property
    def any(self) -> bool:
        """The instance has any number of some sort, so it has no states to enumerate."""
        return self.ground.any

    def _bound(self, formula: Term, place: Place) -> Term:
        term = self.ground.term(formula, place)
        return self.fix(term) if self.fix else term

    def of(self, design: AnyDesign, atomicity: Atomicity, network: Network) -> Model:
        """The model of one design: switches gone, and with them every step that the design cannot take."""
        fix = Fixed.of(design, atomicity, network)
        actions = []
        for action in self.actions:
            guard = fix(action.guard)
            if guard is not FALSE:
                updates = tuple((var, fix(term)) for var, term in action.updates)
                actions.append(attrs.evolve(action, guard=guard, updates=updates, order=fix(action.order)))
        return attrs.evolve(self, switches={}, actions=tuple(actions), fix=fix)

    def action(self, name: str, arguments: Mapping[str, int]) -> Action | None:
        """The action with this name and these arguments."""
        for action in self.actions:
            if action.name == name and action.arguments == arguments:
                return action
        return None


@attrs.frozen(eq=False)
class Fixed:
    """Fixes the switches in a term to the positions of one design."""

    title: str
    network: Network
    positions: Mapping[Field, int]

    @classmethod
    def of(cls, design: AnyDesign, atomicity: Atomicity, network: Network) -> Fixed:
        """The positions of a design in one atomicity and one network."""
        return cls(f"{design.name}, {atomicity}, {network} network", network, design.positions(atomicity, network))

    def __call__(self, term: Term) -> Term:
        return rewrite(term, self._change)

    def _change(self, part: Term) -> Term | None:
        if isinstance(part, Is) and isinstance(part.field, Var) and part.field.owner == "switch":
            return TRUE if self.positions[part.field.field] == part.index else FALSE
        return None


@cache
def build(instance: Sizes, protocol: Protocol = ROOM) -> Model:
    """The model of an instance; ValueError if two rows have one name, since a proof is complete by names."""
    if len({rule.name for rule in protocol.rows}) != len(protocol.rows):
        raise ValueError(f"two rows of the protocol {protocol.name} have the same name")
    ground = Grounding.of(protocol, instance)
    requests = instance.count("request")
    rows = (rule for rule in protocol.rows if rule.requests <= requests or requests == ANY)
    actions = tuple(action for rule in rows for action in steps_of(rule, ground))
    return Model(instance, tuple(ground.variables.values()), ground.switches, actions, ground)


# --------------------------------------------------------------------------------------------------------------------
# Concrete semantics: one state, one step


@attrs.frozen
class Concrete(Enumerated):
    """The algebra of one concrete state: truth is bool, a value is the index of its label."""

    state: State
    merge: tuple[tuple[int | None, ...], ...]

    def is_(self, var: Var, index: int) -> int:
        return self.state[var] == index

    def same(self, left: Var, right: Var) -> int:
        return self.state[left] == self.state[right]

    def not_(self, part: int) -> int:
        return not part

    def all_(self, parts: list[int]) -> int:
        return all(parts)

    def any_(self, parts: list[int]) -> int:
        return any(parts)

    def where(self, when: int, then: int, other: int) -> int:
        return then if when else other

    def label(self, target: Var, index: int) -> int:
        return index

    def read(self, var: Var) -> int:
        return self.state[var]

    def merged(self, current: Var, incoming: int) -> int:
        stored = self.merge[self.state[current]][incoming]
        return self.state[current] if stored is None else stored

    def stores(self, current: Var, incoming: int, stored: int | None) -> int:
        return self.merge[self.state[current]][incoming] == stored


@attrs.frozen(eq=False)
class Machine:
    """A model of one design that runs: ``initial()``, ``enabled(state)``, ``step(state, action)``, ``holds(…)``."""

    model: Model
    merge: tuple[tuple[int | None, ...], ...]

    @classmethod
    def of(
        cls, design: AnyDesign, atomicity: Atomicity, network: Network, instance: Sizes, protocol: Protocol = ROOM
    ) -> Machine:
        """The machine of one design in one instance of a protocol, or of a mutant (``Protocol.with_rows``)."""
        merge = protocol.entry.merge(design) if protocol.entry else ()
        return cls(build(instance, protocol).of(design, atomicity, network), merge)

    @property
    def protocol(self) -> Protocol:
        """The protocol that the machine runs."""
        return self.model.protocol

    def initial(self) -> State:
        """Every variable at its first label."""
        return dict.fromkeys(self.model.variables, 0)

    def holds(self, formula: Term, state: State) -> bool:
        """A ground formula in a state."""
        return bool(evaluate(formula, Concrete(state, self.merge)))

    def enabled(self, state: State) -> list[Action]:
        """The actions that can happen now, in the order of the rows."""
        return [action for action in self.model.actions if self.holds(action.guard, state)]

    def broken(self, prop: Property, state: State, room: int = 0) -> bool:
        """The state is bad for a property; for liveness, it is one in which no fair action is enabled."""
        bad = self.holds(self.model.claim(prop.bad, room), state)
        return bad and (prop.kind == "safety" or not any(action.fair for action in self.enabled(state)))

    def step(self, state: State, action: Action) -> State:
        """The state after an action; ValueError if it is not enabled."""
        if not self.holds(action.guard, state):
            raise ValueError(f"{action} is not enabled")
        algebra = Concrete(state, self.merge)
        return {**state, **{var: assign(var, term, algebra) for var, term in action.updates}}


def named(machine: Machine, state: State) -> dict[str, str]:
    """A state as text: label by variable name."""
    return {var.name: var.labels[state[var]] for var in machine.model.variables}
