"""Induction: what a design keeps, that a broken row is noticed where it is broken, and that no run goes on for ever."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence

import attrs
import pytest
import z3

from kvlatch.proofs import solvers
from kvlatch.proofs.induction import Invariant, Step, Theory, keep, new_solver
from kvlatch.proofs.mutants import MUTANTS
from kvlatch.proofs.mutation import Mutant
from kvlatch.proofs.obligations import Obligation
from kvlatch.proofs.ranking import BITS, greatest
from kvlatch.proofs.search import Search, explore
from kvlatch.proofs.terms import width
from kvlatch.proofs.worlds import WORLDS
from kvlatch.spec.designs import DESIGNS
from kvlatch.spec.lemmas import LEMMAS
from kvlatch.spec.model import MAX_CHUNKS, Instance, Machine, build, named
from kvlatch.spec.properties import BY_NAME, PROPERTIES
from kvlatch.spec.protocol import RULES, chunk, gen, phase, status
from kvlatch.spec.room import ROOM
from kvlatch.spec.schema import Atomicity, Lemma, Property, Rule, World
from kvlatch.spec.terms import FALSE, TRUE, Term

BY_LEMMA = {lemma.name: lemma for lemma in LEMMAS}
LATCH: tuple[tuple[Atomicity, int], ...] = (("locked", 1), ("cas", 1), ("locked", 2))
EACH = pytest.mark.parametrize(("level", "workers"), LATCH)

BROKEN_BY = {
    "reopened": {"abort_pop"},
    "revived by metadata": {"write_w"},
    "revived by max": {"write_t", "write_t_again"},
    "failure overrides": {"abort", "write_f", "fail"},
    "uncounted": {"complete"},
    "unreported failure": {"break"},
    "no timeout": set(),
    "kept for ever": {"release"},
    "never cleared": {"clear_status"},
    "no tombstone": {"clear_status"},
    "no drain": {"release"},
    "released by abort": {"abort"},
    "latched blindly": {"abort"},
    "no early metadata": {"hear_metadata"},
    "notice without generation": {"hear_stale_abort"},
    "bootstrap thread without generation": {"reuse_again"},
    "worker without generation": {"reuse_again"},
    "queue without generation": {"take_stale"},
}
"""The rows that no longer keep every lemma: the changed one, or those that meet the changed cell of the merge."""


def machine(design: str, level: Atomicity, workers: int, world: World = ROOM.bounded) -> Machine:
    return Machine.of(DESIGNS[design], level, world.network, world.instance(workers))


@functools.cache
def kept(design: str, level: Atomicity = "locked", workers: int = 1) -> Invariant:
    return keep(Theory.of(machine(design, level, workers)), LEMMAS)


@functools.cache
def mutated(mutant: Mutant) -> Theory:
    """A mutant in an instance of its size, where the room id is used again and the network is disorderly."""
    assert isinstance(mutant.instance, Instance)
    twice = attrs.evolve(
        mutant, network="disorderly", instance=attrs.evolve(mutant.instance, requests=mutant.instance.requests and 2)
    )
    return Theory.of(twice.machine)


def claimed(theory: Theory) -> Invariant:
    """All lemmas, whether they are kept or not."""
    return Invariant(theory, tuple(theory.claim(lemma) for lemma in LEMMAS))


def lemmas(invariant: Invariant) -> tuple[Lemma, ...]:
    return tuple(claim.lemma for claim in invariant.claims)


def false(search: Search) -> dict[str, int]:
    """In how many of the states reached each lemma is false, by name; those that are false in none are left out."""
    model = search.layout.machine.model
    counts = {lemma.name: sum(search.count(~term) for term in model.instances(lemma.claim)) for lemma in LEMMAS}
    return {name: count for name, count in counts.items() if count}


def ask(invariant: Invariant, obligations: Sequence[Obligation]) -> list[str]:
    """What Z3 says of each obligation; cvc5 says the same, and of many is asked only where Z3 has a counterexample."""
    with_lemmas, bare = new_solver(Theory.labels_in), new_solver(Theory.labels_in)
    with_lemmas.add(*invariant.axioms)
    answers = []
    for obligation in obligations:
        solver = bare if obligation.bare else with_lemmas
        solver.push()
        solver.add(*obligation.assertions)
        answers.append(str(solver.check()))
        solver.pop()
    again = [index for index, answer in enumerate(answers) if answer != "unsat" or len(answers) <= len(PROPERTIES)]
    asked = [(obligations[index], () if obligations[index].bare else invariant.claims) for index in again]
    assert solvers._by_cvc5(solvers._session(invariant, asked), len(asked)) == [answers[index] for index in again]
    return answers


def rule_of(step: Step) -> str:
    """The row that a step comes from."""
    assert step.action is not None
    return step.action.rule.name


def conclusions(invariant: Invariant, prop: Property) -> list[Obligation]:
    """What makes a property follow from the lemmas, besides that they are kept."""
    return [each for each in invariant.obligations(prop) if each.name.startswith(f"property {prop.name}")]


def open_rows(invariant: Invariant, about: Callable[[Invariant, Step], Obligation]) -> set[str]:
    """The rows for which both solvers answer an obligation with a counterexample."""
    steps = invariant.theory.steps
    answers = ask(invariant, [about(invariant, step) for step in steps])
    assert set(answers) <= {"sat", "unsat"}
    return {rule_of(step) for step, answer in zip(steps, answers, strict=True) if answer == "sat"}


def breaking(invariant: Invariant) -> set[str]:
    """The rows that do not keep every lemma."""
    return open_rows(invariant, Invariant.keeps)


def rising(invariant: Invariant) -> set[str]:
    """The rows that need not make the rank smaller."""
    return open_rows(invariant, lambda claims, step: claims.descends(step, BY_NAME["settlement"]))


def implied(invariant: Invariant) -> set[str]:
    """The properties that follow from the lemmas."""
    return {prop.name for prop in PROPERTIES if set(ask(invariant, conclusions(invariant, prop))) == {"unsat"}}


# --- What a design keeps --------------------------------------------------------------------------


def test_lemmas_have_names_of_their_own() -> None:
    """A lemma is dropped, and a proof reported, by name."""
    assert len(BY_LEMMA) == len(LEMMAS)


@EACH
def test_latch_keeps_every_lemma(level: Atomicity, workers: int) -> None:
    """Nothing of the pool is dropped, each step keeps all of it, and all twelve properties follow."""
    invariant = kept("latch", level, workers)
    assert lemmas(invariant) == LEMMAS
    assert breaking(invariant) == set()
    assert implied(invariant) == set(BY_NAME)


def test_seed_control_keeps_what_is_true_of_it() -> None:
    """It is not sticky, so what Failed means is dropped; that pages are never released twice is not."""
    invariant = kept("seed-control")
    names = {lemma.name for lemma in lemmas(invariant)}
    assert names.isdisjoint({"first terminal Failed", "first terminal Success", "Failed is told", "drained", "woken"})
    assert names >= {"never twice", "released in the end", "taken by somebody", "one carrier"}
    assert breaking(invariant) == set()
    assert implied(invariant) == {"released-once"}


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
def test_every_lemma_holds_in_every_state_that_is_reached(world: World) -> None:
    """Explicit search, which knows nothing of lemmas, reaches no state of ``latch`` with cas that violates one."""
    search = explore(machine("latch", "cas", 1, world), [])
    assert search.complete
    assert false(search) == {}


@pytest.mark.parametrize(("design", "level"), [("seed-control", "locked"), ("fix-ab", "split")])
def test_what_is_false_in_some_state_is_dropped(design: str, level: Atomicity) -> None:
    """The same for designs that do not keep all: no lemma is kept that a state which is reached violates."""
    search = explore(machine(design, level, 1, WORLDS[0]), PROPERTIES)
    assert "cleared" in false(search)
    assert false(search).keys().isdisjoint(lemma.name for lemma in lemmas(kept(design, level)))


@pytest.mark.parametrize(
    ("lemma", "why"),
    [
        (Lemma("not at first", phase != "new"), "false in the initial state"),
        (Lemma("never more than the start", phase == "new"), "the first step breaks it"),
        (Lemma("never", FALSE), "false in every state, so that it would prove anything"),
        (Lemma("not inductive", status != "Failed"), "true at first, false later"),
    ],
    ids=lambda value: value.name.replace(" ", "-") if isinstance(value, Lemma) else "",
)
def test_a_false_lemma_is_dropped(lemma: Lemma, why: str) -> None:
    """What is false somewhere is never kept, whatever else is in the pool."""
    theory = Theory.of(machine("latch", "locked", 1))
    assert lemmas(keep(theory, [lemma, *LEMMAS])) == LEMMAS, why


def test_a_lemma_that_needs_another_falls_with_it() -> None:
    """What cannot be kept is dropped until nothing more breaks; what is always true needs no other."""
    theory = Theory.of(machine("latch", "locked", 1))
    always = Lemma("always", TRUE)
    needing = [BY_LEMMA[name] for name in ("nothing kept", "never twice")]
    for some in (needing[:1], needing):
        assert lemmas(keep(theory, [*some, always])) == (always,)
    enough = (*needing, BY_LEMMA["released in the end"], always)
    assert lemmas(keep(theory, enough)) == enough
    assert lemmas(keep(theory, [])) == ()


@pytest.mark.parametrize(("claim", "answer"), [(phase == "new", "unsat"), (phase == "boot", "sat"), (TRUE, "unsat")])
def test_lemmas_are_asked_about_the_initial_state(claim: Term, answer: str) -> None:
    """That the initial state satisfies the lemmas is an obligation, which does not assume them."""
    theory = Theory.of(machine("latch", "locked", 1))
    starts = Invariant(theory, (theory.claim(Lemma("some", claim)),)).starts
    assert starts.bare
    assert ask(Invariant(theory, ()), [starts]) == [answer]


def test_the_state_after_is_where_the_step_leads() -> None:
    """A formula said of the state after a step is the formula in the state that the concrete step leads to."""
    theory = Theory.of(machine("latch", "cas", 1, WORLDS[0]))
    on = theory.machine
    claims = [theory.claim(lemma) for lemma in LEMMAS]
    state = on.initial()
    while enabled := on.enabled(state):
        after = on.step(state, enabled[-1])
        [step] = [step for step in theory.steps if step.action is enabled[-1]]
        before = [(theory.state.values[var], z3.BitVecVal(state[var], width(var))) for var in on.model.variables]
        for var, term in step.sets.items():
            assert z3.simplify(z3.substitute(term, before)).as_long() == after[var]
        assert z3.is_true(z3.simplify(z3.substitute(step.enabled, before)))
        said = theory.after(step, z3.And(*(theory.goal(claim) for claim in claims)))
        assert z3.is_true(z3.simplify(z3.substitute(said, before)))
        state = after


# --- A broken row is noticed ----------------------------------------------------------------------

MUTANT = pytest.mark.parametrize(
    "mutant", [mutant for mutant in MUTANTS if mutant.of is ROOM], ids=lambda mutant: mutant.name.replace(" ", "-")
)


@MUTANT
def test_the_obligation_of_the_broken_row_is_open(mutant: Mutant) -> None:
    """With all lemmas claimed of a mutant, both solvers find a step of the changed row that breaks one: no other."""
    assert breaking(claimed(mutated(mutant))) == BROKEN_BY[mutant.name]


@pytest.mark.parametrize("name", ["failure overrides", "no timeout", "kept for ever", "notice without generation"])
def test_a_mutant_is_not_proved(name: str) -> None:
    """What a mutant keeps does not imply the property that it breaks, nor those in ``also``.

    One of each kind: another merge, a row too few, an effect too few, another request.
    """
    [mutant] = [mutant for mutant in MUTANTS if mutant.name == name]
    assert implied(keep(mutated(mutant), LEMMAS)).isdisjoint({mutant.prop, *mutant.also})


def test_settlement_needs_a_fair_step() -> None:
    """Without the timeout every lemma is kept and the rank still descends; but a state is left that nothing leaves."""
    [mutant] = [mutant for mutant in MUTANTS if mutant.name == "no timeout"]
    theory = mutated(mutant)
    invariant = keep(theory, LEMMAS)
    assert lemmas(invariant) == LEMMAS
    assert rising(invariant) == set()
    stuck = new_solver(Theory.labels_in)
    [obligation] = conclusions(invariant, BY_NAME["settlement"])
    stuck.add(*invariant.axioms, *obligation.assertions)
    assert stuck.check() == z3.sat
    found = stuck.model()
    state = {var: found.eval(value, model_completion=True).as_long() for var, value in theory.state.values.items()}
    on = theory.machine
    assert on.holds(on.model.claim(BY_NAME["settlement"].bad), state)
    assert not [str(action) for action in on.enabled(state) if action.fair]


# --- The rank -------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", range(1, 9))
def test_the_rank_fits_its_bits(workers: int) -> None:
    """No sum overflows, in the largest instance with that many workers."""
    assert greatest(build(Instance(workers=workers, chunks=MAX_CHUNKS, requests=2))) < 2**BITS


@pytest.mark.parametrize("level", ["locked", "cas"])
def test_no_state_has_a_greater_rank_than_the_greatest(level: Atomicity) -> None:
    """Z3 finds no valuation of one room and one worker, which is all that a step can touch, with a potential above."""
    theory = Theory.of(machine("latch", level, 1))
    solver = new_solver(Theory.labels_in)
    solver.add(*theory.state.domain(), z3.UGT(whole_potential(theory), greatest(theory.machine.model)))
    assert solver.check() == z3.unsat


def whole_potential(theory: Theory) -> z3.BitVecRef:
    """The potential of the theory's state, which is the second number of its rank."""
    return sum((part.term for part in theory.potential), z3.BitVecVal(0, BITS))


def out_of_date(state: dict[str, str]) -> int:
    """How many threads stand between their read and their swap, and have seen another status than stands there."""
    threads = ("scheduler", "scheduler_seen"), ("bootstrap", "bootstrap_seen"), ("worker_0", "worker_seen_0")
    return sum(state[pc].endswith("*") and state[seen] != state["status"] for pc, seen in threads)


@EACH
def test_every_action_descends(level: Atomicity, workers: int) -> None:
    """Every step of ``latch`` makes the rank smaller, by both solvers."""
    assert rising(kept("latch", level, workers)) == set()


@pytest.mark.parametrize(("design", "level"), [("seed-control", "locked"), ("fix-a", "split"), ("latch", "cas")])
def test_the_rank_of_a_run_descends(design: str, level: Atomicity) -> None:
    """The whole rank of each state of a run is smaller than that of the state before, reuse and retries included."""
    theory = Theory.of(machine(design, level, 1))
    on, state, ranks = theory.machine, theory.machine.initial(), []
    chance, retries = random.Random(2), 0  # noqa: S311 - a fixed run
    for _ in range(1000):
        values = [(theory.state.values[var], z3.BitVecVal(state[var], width(var))) for var in on.model.variables]
        potential = z3.simplify(z3.substitute(whole_potential(theory), values)).as_long()
        labels = named(on, state)
        ranks.append((labels["gen"] == "first", potential, out_of_date(labels)))
        if not (enabled := on.enabled(state)):
            break
        action = chance.choice(enabled)
        retries += action.part == "retry"
        state = on.step(state, action)
    assert 10 < len(ranks) < 1000
    assert ranks == sorted(set(ranks), reverse=True)
    assert {first for first, *_ in ranks} == {True, False}
    assert ranks[0][1] <= greatest(on.model)
    assert (retries > 0) is (level == "cas")


@pytest.mark.parametrize(
    "rule",
    [
        Rule("look again", "worker", "idle", "idle", chunk == "queued", per="chunk"),
        Rule("poll again", "scheduler", "free", "free", phase == "inflight"),
        Rule("give back", "worker", "taken", "idle", TRUE, {chunk: "queued"}, per="chunk"),
        Rule("start over", "scheduler", "free", "free", phase == "inflight", {phase: "running", chunk: "unsent"}),
        Rule(
            "come early", "scheduler", "free", "free", phase == "releasing", {phase: "new", gen: "second"}, requests=2
        ),
    ],
    ids=lambda rule: rule.name.replace(" ", "-"),
)
def test_a_row_that_does_not_descend_is_caught(rule: Rule) -> None:
    """A row that changes nothing, goes back, or begins a new life too early is caught, it alone, by both solvers.

    The search finds the cycle.
    """
    rules = (*RULES, rule)
    mutant, latch = ROOM.with_rows(rules), DESIGNS["latch"]
    theory = Theory.of(Machine.of(latch, "locked", ROOM.bounded.network, ROOM.bounded.instance(1), mutant))
    assert rising(claimed(theory)) == {rule.name}
    ends = Property("ends", "No run goes on for ever.", FALSE, kind="liveness", broken="it goes on")
    instance = Instance(requests=rule.requests)
    assert explore(Machine.of(DESIGNS["latch"], "locked", "orderly", instance, ROOM.with_rows(rules)), [ends]).cyclic
