"""Durations: the orders that the lease demands follow from them, for all real numbers, and each run has some."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import attrs
import pytest
import z3

from kvlatch.proofs import durations
from kvlatch.proofs.induction import Invariant, new_solver
from kvlatch.proofs.parametric import AnyNumber
from kvlatch.proofs.recheck import Theorem, demanded, scopes
from kvlatch.proofs.search import explore
from kvlatch.proofs.solvers import discharge
from kvlatch.spec.lease import DESIGNS, LEASE, TIMING, Leases, end, now, skew
from kvlatch.spec.model import ANY, Action, Machine
from kvlatch.spec.schema import Protocol, Rule
from kvlatch.spec.terms import TRUE, State
from kvlatch.spec.timing import ZERO, Moment, Timing, timed

BROKEN = [(name, prop.name) for name in DESIGNS for prop in LEASE.properties if name != "lease-latch"]


def invariant(protocol: Protocol = LEASE, design: str = "lease-latch") -> Invariant:
    machine = Machine.of(DESIGNS[design], "locked", "disorderly", Leases(ANY), protocol)
    theory = AnyNumber.of(machine)
    return Invariant(theory, tuple(map(theory.claim, LEASE.lemmas)))


def failing(timing: Timing) -> list[str]:
    """The obligations that are not discharged with another timing."""
    found = invariant(attrs.evolve(LEASE, timing=timing))
    solver = new_solver(found.theory.logic)
    solver.add(*found.axioms)
    wrong = (one for one in found.timed if solver.check(*one.assertions) != z3.unsat)
    return sorted(one.name.removesuffix(" reader=0") for one in wrong)


@pytest.mark.parametrize("design", DESIGNS)
def test_the_orders_follow_from_durations(design: str) -> None:
    """In every design: that a limit is no later than the end of the lease is said only where it is so."""
    found = invariant(design=design)
    kept = attrs.evolve(found, claims=tuple(c for c in found.claims if c.lemma.name == "answered what was granted"))
    answers = discharge(kept, kept.timed)
    assert len(answers) == len(kept.timed) > 15
    assert [answer for answer in answers if not answer.discharged] == []


def test_nothing_is_vacuous() -> None:
    """Each row has a moment: what is assumed when it is taken can be, with all lemmas."""
    found = invariant()
    for obligation in found.timed:
        solver = new_solver(found.theory.logic)
        solver.add(*found.axioms, *obligation.assertions[:-1])
        assert solver.check() == z3.sat, obligation.name


def test_a_proof_demands_them() -> None:
    """A theorem about leases lists the same obligations with Z3 and without."""
    found = invariant()
    (scope,) = {name for name, (sizes, _) in scopes(LEASE).items() if sizes == Leases(ANY)}
    for prop in LEASE.properties:
        names = [obligation.name for obligation in found.obligations(prop)]
        assert sorted(names) == sorted(demanded(Theorem("lease-latch", "locked", prop.name, scope, (), ())))
        assert {"order expire reader=0", "order hear reader=0", "time passes"} <= set(names)


def without(row: str) -> Timing:
    return attrs.evolve(TIMING, rows={name: moment for name, moment in TIMING.rows.items() if name != row})


@pytest.mark.parametrize(
    ("wrong", "fails"),
    [
        pytest.param(without("expire"), ["order expire", "time expire"], id="a lease ends at any time"),
        pytest.param(
            attrs.evolve(TIMING, rows={**TIMING.rows, "expire": Moment((timed(end <= now),))}),
            ["order expire", "time expire"],
            id="a lease ends in its last instant",
        ),
        pytest.param(without("hear"), ["order hear", "time hear"], id="a limit that was ahead before"),
        pytest.param(
            attrs.evolve(TIMING, passing=Moment((timed(now <= now.after),), sets=(now,))),
            ["time passes"],
            id="time passes a limit that is ahead",
        ),
        pytest.param(
            attrs.evolve(TIMING, lemmas=tuple(one for one in TIMING.lemmas if one is not TIMING.lemmas[1])),
            ["order hear", "time hear"],
            id="nothing known of an answer",
        ),
    ],
)
def test_a_wrong_timing_is_noticed(wrong: Timing, fails: list[str]) -> None:
    assert failing(wrong) == fails


@pytest.mark.parametrize("lemma", TIMING.lemmas, ids=range(len(TIMING.lemmas)))
def test_every_lemma_about_instants_is_needed(lemma: object) -> None:
    assert failing(attrs.evolve(TIMING, lemmas=tuple(one for one in TIMING.lemmas if one is not lemma)))


def test_time_passes_between_steps() -> None:
    """A row that moves the time of all is refused; and so is an order that nothing explains."""
    rows = {**TIMING.rows, "grant": Moment(sets=(now,))}
    with pytest.raises(ValueError, match="row grant sets now"):
        _ = invariant(attrs.evolve(LEASE, timing=attrs.evolve(TIMING, rows=rows))).timed
    with pytest.raises(ValueError, match="nothing says how long"):
        _ = invariant(attrs.evolve(LEASE, timing=None)).timed


def runs() -> Iterator[tuple[str, str]]:
    for name, prop in BROKEN:
        if explore(machine(name), LEASE.properties).length(prop) is not None:
            yield name, prop


def machine(design: str, protocol: Protocol = LEASE, count: int = 1) -> Machine:
    return Machine.of(DESIGNS[design], "locked", "disorderly", Leases(count), protocol)


@pytest.mark.parametrize(("design", "prop"), list(runs()))
@pytest.mark.parametrize("count", [1, 2])
def test_every_counterexample_has_instants(design: str, prop: str, count: int) -> None:
    """Nothing is refuted by a run that no clock could show: time only goes on, and a lease lasts for its length."""
    running = machine(design, count=count)
    run = explore(running, LEASE.properties).trace(prop)
    found = durations.schedule(running, run)
    assert found is not None
    times = [found[f"now {step}"] for step in range(1, len(run))]
    assert times == sorted(times)
    assert found["length"] > 0 <= found["skew"]
    granted: dict[int, Fraction] = {}
    for step, (action, _) in enumerate(run[1:], 1):
        assert action is not None
        reader = action.arguments.get("reader", 0)
        if action.name == "grant":
            granted[reader] = found[f"now {step}"]
        if action.name == "expire":
            assert found[f"now {step}"] - granted[reader] > found["length"]


def taken(running: Machine, *names: str) -> list[tuple[Action | None, State]]:
    state = running.initial()
    run: list[tuple[Action | None, State]] = [(None, state)]
    for name in names:
        action = running.model.action(name, {"reader": 0} if name != "give_away" else {})
        assert action is not None
        run.append((action, state := running.step(state, action)))
    return run


def test_a_run_that_takes_no_order_has_no_instants() -> None:
    """Without its order, a lease could end while its reader counts on it: the labels say so, and no clock does."""
    careless = LEASE.with_rows(careless_rows())
    running = machine("lease-latch", careless)
    assert explore(running, LEASE.properties).length("lease-honoured") == 5
    assert durations.schedule(running, taken(running, "ask", "grant", "hear", "expire", "give_away")) is None
    in_time = taken(running, "ask", "grant", "hear", "pass_limit", "expire", "give_away")
    assert durations.schedule(running, in_time) is not None


def careless_rows() -> Iterator[Rule]:
    for rule in LEASE.rows:
        yield attrs.evolve(rule, order=TRUE) if rule.name == "expire" else rule


def test_the_skew_is_what_a_limit_allows_for() -> None:
    """Without a margin, the limit is wrong by the skew at most: without any skew, no run breaks the lease."""
    exact = attrs.evolve(TIMING, always=(*TIMING.always, timed(skew <= ZERO)))
    running = machine("lease-no-margin", attrs.evolve(LEASE, timing=exact))
    run = explore(running, LEASE.properties).trace("lease-honoured")
    assert durations.schedule(running, run) is None
