"""The orders that rows demand follow from durations: for all real numbers at once, beside the induction.

A protocol with a :class:`~kvlatch.spec.timing.Timing` has, besides its labels, instants that search and induction do
not see. That nothing is lost by that, the following obligations say:

* ``order ROW``, for each row that demands one: where all else that it demands holds, its moment has come, and every
  lemma holds, so does the order. So the row waits for nothing that its actor could not know.
* ``time begins``, ``time passes`` and ``time ROW``: the lemmas about instants hold initially, and are kept.

They are about an arbitrary element of the crowd. What others do moves none of its instants: ``now``, which all share,
moves only where nothing else happens. That nothing is added, :func:`schedule` says: a counterexample has instants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Final

import z3

from kvlatch.proofs.obligations import Obligation, conjunction
from kvlatch.spec.model import Action, Machine
from kvlatch.spec.terms import TRUE, State, evaluate
from kvlatch.spec.timing import AFTER, Compared, Linear, Moment, Timed, Timing

if TYPE_CHECKING:
    from kvlatch.proofs.induction import Theory

Numbers = Callable[[str], z3.ArithRef]
"""The real number that a name stands for."""

NOW: Final = "now"
"""The instant that all elements share."""


def declared(machine: Machine) -> list[str]:
    """The real numbers before a step and after it, in SMT-LIB; nothing, where no order is demanded."""
    timing = machine.protocol.timing
    if timing is None or not machine.model.timed:
        return []
    after = [f"{instant.name}{AFTER}" for instant in timing.instants]
    names = [*(number.name for number in (*timing.durations, *timing.instants)), *after]
    return [f"(declare-const {z3.Real(name).sexpr()} Real)" for name in names]


def obligations(theory: Theory) -> Iterator[Obligation]:
    """What has to be shown of a theory whose steps demand an order; nothing, if none does."""
    timing = _timing(theory.machine)
    if timing is None:
        return
    known = (*timing.always, *timing.lemmas)
    goal = conjunction(_said(theory, timing.lemmas))
    begins = _said(theory, (*timing.always, *timing.begins))
    yield Obligation("time begins", (*theory.initial, *begins, z3.Not(goal)), bare=True)
    passes = [*_said(theory, (*known, *timing.passing.given)), *_stays(timing.passing, timing)]
    yield Obligation("time passes", (*theory.local, *passes, z3.Not(_later(goal, timing))), bare=True)
    for step in theory.steps:
        if step.action is None:
            continue
        place, moment = step.action.arguments, timing.moment(step.action.rule.name)
        given = _said(theory, (*known, *moment.given), place)
        kept = _later(theory.after(step, conjunction(_said(theory, timing.lemmas, place))), timing)
        taken = (*given, *_stays(moment, timing), step.enabled, *step.defined)
        yield Obligation(f"time {step.name}", (*theory.local, *taken, z3.Not(kept)), bare=True)
        if step.action.order is not TRUE:
            order = evaluate(step.action.order, theory.state)
            yield Obligation(f"order {step.name}", (*given, _ready(theory, step.action), z3.Not(order)))


def _timing(machine: Machine) -> Timing | None:
    """The timing of a machine's protocol, if it is needed; ValueError if it cannot be right."""
    timing = machine.protocol.timing
    if not machine.model.timed:
        return None
    if timing is None:
        raise ValueError(f"rows of {machine.protocol.name} demand an order, and nothing says how long anything takes")
    for row, moment in timing.rows.items():
        if NOW in {instant.name for instant in moment.sets}:
            raise ValueError(f"row {row} sets {NOW}: time passes only where nothing else happens")
    return timing


def _ready(theory: Theory, action: Action) -> z3.BoolRef:
    """All that an action demands but its order."""
    model, rule = theory.machine.model, action.rule
    demanded = (model.protocol.threads[rule.actor].pc == rule.at) & rule.when
    return evaluate(model.at(demanded, action.arguments), theory.state)


def _said(theory: Theory, timed: Iterable[Timed], place: Mapping[str, int] | None = None) -> list[z3.BoolRef]:
    """What is said of the elements at a place; of the crowd, of the first, or the one that acts."""
    model = theory.machine.model
    found = ((evaluate(model.at(one.when, place or {}), theory.state), one.then) for one in timed)
    return [z3.simplify(z3.Implies(when, _compared(then, z3.Real))) for when, then in found]


def _compared(said: Compared, numbers: Numbers) -> z3.BoolRef:
    left, right = _sum(said.left, numbers), _sum(said.right, numbers)
    return left < right if said.strict else left <= right


def _sum(linear: Linear, numbers: Numbers) -> z3.ArithRef:
    return z3.Sum([factor * numbers(name) for name, factor in linear.parts.items()] or [z3.RealVal(0)])


def _later(formula: z3.BoolRef, timing: Timing) -> z3.BoolRef:
    """A formula about instants, said of those after a step."""
    return z3.substitute(formula, *((z3.Real(one.name), z3.Real(one.after.name)) for one in timing.instants))


def _stays(moment: Moment, timing: Timing) -> list[z3.BoolRef]:
    """Every instant that is not set is what it was."""
    sets = {one.name for one in moment.sets}
    return [z3.Real(one.after.name) == z3.Real(one.name) for one in timing.instants if one.name not in sets]


# --------------------------------------------------------------------------------------------------------------------
# The instants of a run


def schedule(machine: Machine, run: Sequence[tuple[Action | None, State]]) -> dict[str, Fraction] | None:
    """Real numbers for a run, which begins with no action and the initial state; None if it has none.

    By name: each duration; ``now 3``, when the third step happens; ``until 0 3``, an instant of the crowd's first
    element after that.
    """
    timing = machine.protocol.timing
    if timing is None:
        raise ValueError(f"the protocol {machine.protocol.name} says nothing of instants")
    crowd = machine.protocol.crowd or ""
    elements = machine.model.instance.named(crowd) if crowd else range(1)
    solver = z3.SolverFor("QF_LRA")

    def demand(timed: Iterable[Timed], state: State, element: int, at: int) -> None:
        for one in timed:
            if machine.holds(machine.model.at(one.when, {crowd: element} if crowd else {}), state):
                solver.add(_compared(one.then, lambda name: _number(name, element, at, timing)))

    def move(moment: Moment, state: State, element: int, at: int) -> None:
        demand(moment.given, state, element, at)
        sets = {one.name for one in moment.sets}
        for one in (one for one in timing.instants if one.name not in sets):
            solver.add(_number(one.after.name, element, at, timing) == _number(one.name, element, at, timing))

    (_, state), *steps = run
    for element in elements:
        demand((*timing.always, *timing.begins), state, element, 0)
    for depth, (action, after) in enumerate(steps):
        acts = None if action is None else action.arguments.get(crowd)
        for element in elements:  # first time passes, then the step is taken
            mine = timing.moment(action.rule.name) if action and acts in (None, element) else Moment()
            move(timing.passing, state, element, 2 * depth)
            move(mine, state, element, 2 * depth + 1)
        state = after
    if solver.check() != z3.sat:
        return None
    return {name: _fraction(solver.model(), number) for name, number in _reported(timing, elements, len(steps))}


def _number(name: str, element: int, at: int, timing: Timing) -> z3.ArithRef:
    """A duration; or an instant of an element after some moves, of which each step has two."""
    if name in {one.name for one in timing.durations}:
        return z3.Real(name)
    at, name = at + name.endswith(AFTER), name.removesuffix(AFTER)
    return z3.Real(f"{name} {at}" if name == NOW else f"{name} {element} {at}")


def _reported(timing: Timing, elements: Iterable[int], steps: int) -> Iterator[tuple[str, z3.ArithRef]]:
    yield from ((one.name, z3.Real(one.name)) for one in timing.durations)
    for step in range(1, steps + 1):
        yield f"{NOW} {step}", _number(NOW, 0, 2 * step, timing)
        for element in elements:
            own = (one.name for one in timing.instants if one.name != NOW)
            yield from ((f"{name} {element} {step}", _number(name, element, 2 * step, timing)) for name in own)


def _fraction(model: z3.ModelRef, number: z3.ArithRef) -> Fraction:
    value = model.eval(number, model_completion=True)
    return Fraction(value.numerator_as_long(), value.denominator_as_long())
