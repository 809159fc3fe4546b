"""Induction for any number of rooms, of transfer workers, of chunks, and of requests on a room id.

Each sort of which there may be any number is an uninterpreted sort: ``worker(w)`` and ``chunk(c)`` are functions into
bit-vectors, and ``job(w, c)``, that w has taken c, is a relation of which no worker has two. One room is looked at. One
element of each sort acts, an arbitrary one: a step changes ``worker(w)`` where w is *this* worker, and leaves it
elsewhere; or it changes all alike, as a second request does with all chunks. A lemma is said of every element that it
leaves open. The chunks of a request have an order, with a last one.

*Any number of requests.* Two labels are enough: this request, and any older one. When a further one comes (the row
``reuse_again``), all that was this one's becomes an older one's. That loses nothing, because nothing in a room with
tombstones ever compares two older requests: their infos are gone, their workers are idle or about to find out that they
are late, and an entry that is not this request's is a tombstone, through which nothing of an older one gets. These are
lemmas (``schema.Older``), without which ``verdicts.earn`` accepts no proof for any number. Where older requests may
have left several alike things, as in the queue, a step may take one and leave others (``.more``), in any order.

*Any number of rooms.* A step of another room changes no variable of this one, and of workers only those that serve that
other room: that is how the steps are written, and :func:`footprint` checks it on every one of them. So all that other
rooms can do to this one is to take a worker that is idle (``leave``) and to change those that are not here, one after
the other (``elsewhere``). Both are obligations like any other. A proof about one room is therefore a proof about each
of them.

*Settlement* is proved for one room among any number, each with requests without end. Steps of this room lower its rank
(``ranking.py``) and those of others do not raise it (``rank leave``, ``rank elsewhere``), so in a run without end this
room stands still after a while. What is enabled in it then stays so (``fair leave``, ``fair elsewhere``), and is taken
by weak fairness, but for one thing: to take a chunk needs a worker that is idle, and each may always be busy elsewhere
when its turn comes. No worker is busy for ever: its room has the same rank and the same obligation that who is busy can
move, and does not pass on to the next request before it has drained. So ``take`` is enabled again and again, and
*strong* fairness gives it a turn: whoever serves the rooms from one first-in-first-out queue has that.

*Decidable.* No function returns a worker or a chunk, and where a formula says that for each element of one sort there
is one of another, this makes no circle (:class:`Sorts`). Such a formula has a model only if it has a finite one, of a
size that can be computed from it, so the solvers cannot run away: ``unknown`` would be a mistake here. Two things keep
circles out. A quantified condition that decides what a step stores gets a name, a Boolean constant with its definition.
And where "it is the first chunk that is still to be sent" would bring another chunk, that first chunk is a constant:
there is one, since a request has finitely many, unless there is none to be sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import product

import attrs
import z3

from kvlatch.proofs import durations
from kvlatch.proofs.induction import Claim, Expression, Step, Theory
from kvlatch.proofs.obligations import Obligation, conjunction
from kvlatch.proofs.settlement import Settlement
from kvlatch.proofs.sorts import Conditions, Elements, Sorts, elements, mentions, order_of, quantified, relation
from kvlatch.proofs.terms import Symbolic, width
from kvlatch.spec.model import EVERY, Action, Machine, Model
from kvlatch.spec.schema import Home, Property
from kvlatch.spec.terms import Field, Is, Ordered, Term, Var, Where, assign, evaluate


@attrs.frozen
class Valuation(Symbolic):
    """Terms over a state with any number of some sorts; ``own`` are the elements that formulas name, by sort."""

    own: Mapping[str, z3.ExprRef] = attrs.field(kw_only=True)
    conditions: Conditions | None = attrs.field(default=None, kw_only=True)
    """Where given, conditions get names, unless they are about what one of ``open`` is."""
    open: tuple[z3.ExprRef, ...] = attrs.field(default=(), kw_only=True)

    def every(self, part: z3.BoolRef, sort: str) -> z3.BoolRef:
        said = z3.ForAll([elements(sort).each], part)
        bound = (*self.open, *(elements(other).each for other in self.own))
        return said if self.conditions is None or mentions(said, bound) else self.conditions.name(said)

    def ordered(self, order: Ordered) -> z3.BoolRef:
        about = elements(order.sort)
        left, right = (about.each if place == EVERY else self.own[order.sort] for place in (order.left, order.right))
        if order.relation == "same":
            return left == right
        return left == about.last if order.relation == "last" else about.before(left, right)


@attrs.frozen(eq=False, slots=False)  # cached_property needs a __dict__
class AnyNumber(Theory):
    """A machine with any number of some sorts, as terms over one arbitrary state; ``state`` is as the actor sees it."""

    conditions: Conditions = attrs.field(factory=Conditions, init=False)
    graph: Sorts = attrs.field(factory=Sorts, init=False)

    labels_in = "UFBV"

    @classmethod
    def of(cls, machine: Machine) -> AnyNumber:
        """The terms of a machine whose instance has ``ANY`` of a sort; ValueError if it has not, or if rooms mix."""
        model, crowd = machine.model, machine.protocol.crowd
        if not model.any or (crowd is not None and not model.ground.any_of(crowd)):
            raise ValueError(f"{model.instance}: not any number of {crowd or 'a sort'}s")
        for action in model.actions:
            footprint(action, model)
        return cls(machine, _valuation(machine, {sort: elements(sort).this for sort in _sorts(machine)}))

    @cached_property
    def sorts(self) -> tuple[Elements, ...]:
        """The sorts of which there is any number."""
        return tuple(map(elements, _sorts(self.machine)))

    @cached_property
    def orders(self) -> tuple[Elements, ...]:
        """Those whose elements have an order: all but the crowd, whose elements are all alike."""
        return tuple(sort for sort in self.sorts if sort.name != self.machine.protocol.crowd)

    def seen_by(self, **own: z3.ExprRef) -> Valuation:
        """The state, as other elements than those that act see it."""
        return _valuation(self.machine, {sort.name: sort.this for sort in self.sorts} | own)

    @cached_property
    def any_element(self) -> Valuation:
        """The state as any elements see it, of which a lemma speaks."""
        return self.seen_by(**{sort.name: sort.some for sort in self.sorts})

    @cached_property
    def own(self) -> dict[Field, Var]:
        """Each field of the crowd, as the variable that a step of one of it sets."""
        crowd = [var for var in self.machine.model.variables if self._crowd(var) and var.place != EVERY]
        return {var.field: var for var in crowd}  # of a relation the last one: of whatever element it may name

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
        """The sorts, and the constants and functions of the theory, in SMT-LIB."""
        constants = [constant for sort in self.sorts for constant in (sort.this, sort.witness)]
        functions = {value.decl().name(): value.decl() for value in self.state.values.values()}
        functions |= {value.decl().name(): value.decl() for value in self._strangers.values()}
        for order in self.orders:
            constants.append(order.last)
            functions[order.before.name()] = order.before
        constants += self.settlement.constants
        lines = [f"(declare-sort {sort.sort} 0)" for sort in self.sorts]
        lines += [
            f"(declare-const {name} {sort})" for name, sort in {c.sexpr(): c.sort().sexpr() for c in constants}.items()
        ]
        lines += [function.sexpr() for function in functions.values()]
        return lines + durations.declared(self.machine)

    @property
    def domain(self) -> list[z3.BoolRef]:
        """Each variable has one of its labels, whatever another room writes is a label too, and chunks have an order.

        Of what an element names, it names one at most.
        """
        state = self.any_element
        alone = [var for var in self.state.values if self.sorts_of(var) == ()]
        strangers = {var: value for var, value in self._strangers.items() if not relation(var)}
        found = [
            *Symbolic({var: state.values[var] for var in alone}, state.merge).domain(),
            *Symbolic(strangers, state.merge).domain(),
        ]
        for sort in self.sorts:
            mine = {var: value for var, value in state.values.items() if var.place == 0 and var.owner == sort.name}
            labels = Symbolic({var: value for var, value in mine.items() if not relation(var)}, state.merge).domain()
            if labels:
                found.append(z3.ForAll([sort.some], conjunction(labels)))
        return [*found, *(axiom for order in self.orders for axiom in order_of(order)), *self._functional]

    @property
    def _functional(self) -> Iterator[z3.BoolRef]:
        for var in (var for var in self.own.values() if relation(var)):
            owner, named = (elements(sort) for sort in self.sorts_of(var))
            function = self.state.values[var].decl()
            both = z3.And(*(function(owner.some, one) == 1 for one in (named.some, named.each)))
            yield z3.ForAll([owner.some, named.some, named.each], z3.Or(z3.Not(both), named.some == named.each))

    @property
    def local(self) -> list[z3.BoolRef]:
        """Each variable of the room and of what acts has one of its labels."""
        values = {var: value for var, value in self.state.values.items() if EVERY not in (var.place, var.names)}
        return Symbolic(values, self.state.merge).domain()

    @property
    def initial(self) -> list[z3.BoolRef]:
        """Every variable has its first label; or, of workers that serve several rooms, none serves this one."""
        state, found = self.any_element, []
        begins = {self.own[self.home.field]} if self.home else set(self.own.values())
        for var, value in state.values.items():
            sorts = self.sorts_of(var)
            if sorts == ():
                found.append(value == 0)
            elif not relation(var) and var.place == 0 and (var in begins or not self._crowd(var)):
                found.append(z3.ForAll([elements(var.owner).some], value == 0))
        return found

    @cached_property
    def settlement(self) -> Settlement:
        """What settlement demands besides."""
        return Settlement(self)

    def bystanders(self) -> list[Obligation]:
        """What other rooms do raises no rank of this one, and disables nothing in it that only weak fairness takes."""
        return self.settlement.bystanders()

    def stuck(self, prop: Property) -> list[Obligation]:
        """The state is bad and nothing fair is enabled: impossible."""
        return self.settlement.stuck(prop)

    def sorts_of(self, var: Var) -> tuple[str, ...]:
        """The sorts of the elements that a variable is about."""
        named = (self.machine.protocol.numbers[var.field],) if relation(var) else ()
        return (*([var.owner] if self.machine.model.ground.any_of(var.owner) else []), *named)

    @cached_property
    def _strangers(self) -> dict[Var, z3.ExprRef]:
        """Whatever another room may have written into a variable of a worker: by variable but the room itself."""
        found: dict[Var, z3.ExprRef] = {}
        for var in self.own.values() if self.home else ():
            name, bits = f"{var.field.name} elsewhere", z3.BitVecSort(width(var))
            if relation(var):
                named = elements(self.sorts_of(var)[1])
                found[var] = z3.Function(name, named.sort, bits)(named.each)
            elif self.home and var.field is not self.home.field:
                found[var] = z3.Const(name, bits)
        return found

    @cached_property
    def steps(self) -> list[Step]:
        """Every action of the room, and what other rooms can do to it: ``leave`` and ``elsewhere``."""
        naming = attrs.evolve(self.state, conditions=self.conditions)  # type: ignore[call-arg]  # it is a Valuation
        found = []
        for action in self.machine.model.actions:
            sets = {var: assign(var, term, naming) for var, term in action.updates}
            if any(map(quantified, sets.values())):
                raise ValueError(f"{action.label}: what it stores depends on a condition about each of several")
            defined = tuple(self.conditions.defined(sets.values()))
            found.append(Step(action.label, evaluate(action.guard, self.state), sets, action, defined))
        if self.home is None:
            return found
        room = self.own[self.home.field]
        away = {room: z3.BitVecVal(0, width(room))}
        leave = Step("leave", z3.And(self.here, self.idle), away)
        return [*found, leave, Step("elsewhere", z3.Not(self.here), dict(self._strangers))]

    def says(self, terms: Sequence[Term]) -> z3.BoolRef:
        """All of the terms, of every element that they leave open."""
        about = conjunction([evaluate(term, self.any_element) for term in terms])
        open_ = [sort.some for sort in self.sorts if mentions(about, [sort.some])]
        said = z3.ForAll(open_, about) if open_ else about
        self.graph.admit(said)
        return said

    def unfolded(self, formula: z3.BoolRef) -> z3.BoolRef:
        """What holds of every element, said once more of the two that nearly every proof is about."""
        if not z3.is_quantifier(formula):
            return formula
        bound = [elements(sort) for sort in _bound(formula)]
        named = product(*((sort.this, sort.witness) for sort in bound))
        return conjunction([formula, *(z3.substitute_vars(formula.body(), *reversed(these)) for these in named)])

    def goal(self, claim: Claim) -> z3.BoolRef:
        """What has to be kept of a lemma: that it holds of arbitrary elements, who stand for all."""
        formula = claim.formula
        if not z3.is_quantifier(formula):
            return formula
        return z3.substitute_vars(formula.body(), *(elements(sort).witness for sort in reversed(_bound(formula))))

    def after(self, step: Step, term: Expression) -> Expression:
        """A term, said of the state after a step: of what acts, what the step sets; of any other, as before."""
        changes = []
        for var, new in step.sets.items():
            function, own, each = self.state.values[var].decl(), [], []
            places = [z3.Var(index, function.domain(index)) for index in range(function.arity())]
            of_var = zip(self.sorts_of(var), (var.place, var.names), strict=False)
            for (sort, place), here in zip(of_var, places, strict=True):
                if place == EVERY:
                    each.append((elements(sort).each, here))
                else:
                    own.append(here == elements(sort).this)
            said = z3.substitute(new, *each) if each else new
            changes.append((function, z3.If(conjunction(own), said, function(*places)) if own else said))
        return z3.substitute_funs(term, *changes)

    def touched(self, step: Step, claim: Claim) -> bool:
        """The step sets something that the lemma reads, of whichever element."""
        return not {var.field for var in claim.reads}.isdisjoint(var.field for var in step.sets)

    def arbitrary(self, term: Expression) -> Expression:
        """A term about each element, said of one."""
        return z3.substitute(term, *((sort.each, sort.witness) for sort in self.sorts))


def _sorts(machine: Machine) -> list[str]:
    return [sort for sort in machine.protocol.sorts if machine.model.ground.any_of(sort)]


def _bound(formula: z3.QuantifierRef) -> list[str]:
    """The sorts of what a quantifier binds."""
    return [str(formula.var_sort(index)).lower() for index in range(formula.num_vars())]


def _valuation(machine: Machine, own: Mapping[str, z3.ExprRef]) -> Valuation:
    """The state as some elements see it."""
    values = {}
    for var in machine.model.variables:
        bits, about = z3.BitVecSort(width(var)), []
        if machine.model.ground.any_of(var.owner):
            about.append((var.owner, var.place))
        if relation(var):
            about.append((machine.protocol.numbers[var.field], var.names))
        named = [elements(sort).each if place == EVERY else own[sort] for sort, place in about]
        name = var.field.name if about else var.name
        values[var] = z3.Function(name, *(one.sort() for one in named), bits)(*named) if about else z3.Const(name, bits)
    return Valuation(values, machine.merge, own=own)


def footprint(action: Action, model: Model) -> None:
    """An action reads and sets one room; of workers, its own one, or all that serve its room.

    ValueError if not. This is what makes rooms independent of each other.
    """
    crowd, home = model.protocol.crowd, model.protocol.home
    for var, term in action.updates:
        if var.owner == crowd and var.place == EVERY and not (home and _only_here(var, term, home)):
            raise ValueError(f"{action.label} sets {var.name}: of every {crowd}")
    own = [var for var, _ in action.updates if var.owner == crowd and var.place != EVERY]
    if crowd not in action.arguments and own:
        raise ValueError(f"{action.label} is no {crowd}'s, and sets a {crowd}'s variable")
    if model.instance.count("room") != 1:
        raise ValueError(f"{action.label} is bound to an instance with several rooms")


def _only_here(var: Var, term: Term, home: Home) -> bool:
    """A variable of a worker changes only if the worker serves the room."""
    match term:
        case Where(Is(Var() as room, 1), _, Var() as kept):
            return room.field is home.field and room.place == EVERY and kept is var
    return False
