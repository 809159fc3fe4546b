"""Any number of rooms and workers: what is proved, what is noticed, and that it is true of every number that we try."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

import attrs
import pytest
import z3

from kvlatch.proofs import solvers
from kvlatch.proofs.induction import Claim, Invariant, Step, new_solver
from kvlatch.proofs.mutants import MUTANTS
from kvlatch.proofs.mutation import Mutant, changed, without
from kvlatch.proofs.obligations import Obligation
from kvlatch.proofs.parametric import AnyNumber, footprint
from kvlatch.proofs.search import explore
from kvlatch.proofs.sorts import Sorts, elements
from kvlatch.proofs.verdicts import Case, Proved, Unknown, earn
from kvlatch.proofs.worlds import WORLDS
from kvlatch.spec.designs import DESIGNS, Design
from kvlatch.spec.lemmas import BY_NAME as BY_LEMMA
from kvlatch.spec.lemmas import LEMMAS
from kvlatch.spec.model import ANY, EVERY, HERE, Action, Instance, Machine, job_room, named
from kvlatch.spec.properties import BY_NAME, PROPERTIES
from kvlatch.spec.protocol import RULES, chunk, job, job_gen, pages, phase, stale, worker
from kvlatch.spec.room import ROOM
from kvlatch.spec.schema import AnyDesign, Atomicity, Lemma, Property, Rule
from kvlatch.spec.terms import TRUE, All, ForAll, Label, Term, ThisChunk, Var, free, implies, some, where

LATCH = DESIGNS["latch"]
SETTLEMENT = BY_NAME["settlement"]
OTHERS = ("leave", "elsewhere")
OF_THE_ROOM = [mutant for mutant in MUTANTS if mutant.of is ROOM]
"""What other rooms can do to this one."""


def theory_of(rules: tuple[Rule, ...] = RULES, design: AnyDesign = LATCH, level: Atomicity = "locked") -> AnyNumber:
    instance = Instance(workers=ANY, chunks=ANY, requests=ANY)
    return AnyNumber.of(Machine.of(design, level, "disorderly", instance, ROOM.with_rows(rules)))


def claimed(theory: AnyNumber, lemmas: Sequence[Lemma] = LEMMAS) -> Invariant:
    return Invariant(theory, tuple(map(theory.claim, lemmas)))


def said(invariant: Invariant, obligations: Sequence[Obligation]) -> dict[str, str]:
    """What Z3 says of each obligation, by name; whatever it says of the others."""
    with_lemmas, bare = new_solver(AnyNumber.labels_in), new_solver(AnyNumber.labels_in)
    with_lemmas.add(*invariant.axioms)
    answers = {}
    for obligation in obligations:
        solver = bare if obligation.bare else with_lemmas
        solver.push()
        solver.add(*obligation.assertions)
        answers[obligation.name] = str(solver.check())
        solver.pop()
    assert set(answers.values()) <= {"sat", "unsat"}, "in this fragment nothing is unknown"
    return answers


def opened(invariant: Invariant, obligations: Sequence[Obligation]) -> set[str]:
    """The obligations to which there is a counterexample."""
    return {name for name, answer in said(invariant, obligations).items() if answer == "sat"}


def everything(invariant: Invariant) -> dict[str, Obligation]:
    """All obligations of all properties, by name."""
    return {each.name: each for prop in PROPERTIES for each in invariant.obligations(prop)}


def conclusions(invariant: Invariant, prop: Property) -> list[Obligation]:
    """What makes a property follow from the lemmas."""
    return [each for each in invariant.obligations(prop) if each.name.startswith("property ")]


def step(theory: AnyNumber, name: str) -> Step:
    return next(step for step in theory.steps if step.name == name)


THEORY = theory_of()
ALL = claimed(THEORY)


# --- What is proved -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def case() -> Case:
    return Case.of(ALL, PROPERTIES)


def test_both_solvers_discharge_every_obligation(case: Case) -> None:
    """All that the twelve properties of ``latch`` demand: one answer each, and each of them is twice unsat."""
    assert list(case.answers) == list(everything(ALL))
    assert {(answer.z3, answer.cvc5) for answer in case.answers.values()} == {("unsat", "unsat")}


def test_what_other_rooms_do_is_among_the_obligations() -> None:
    """Each property demands one step for each action and for each thing that other rooms do; these have no rank."""
    actions = [action.label for action in THEORY.machine.model.actions]
    for prop in PROPERTIES:
        names = [each.name for each in ALL.obligations(prop)]
        assert len(names) == len(set(names))
        steps = [name.removeprefix("step ") for name in names if name.startswith("step ")]
        assert steps == [*actions, *OTHERS]
        ranks = [name.removeprefix("rank ") for name in names if name.startswith("rank ")]
        assert ranks == ([*actions, *OTHERS] if prop.kind == "liveness" else [])
        fair = [name.removeprefix("fair ") for name in names if name.startswith("fair ")]
        assert fair == (list(OTHERS) if prop.kind == "liveness" else [])


def test_it_is_a_proof_of_all_that_one_worker_and_two_do(case: Case) -> None:
    """Every property is earned, and every action that the search sees, of any of two workers, can start."""
    taken = {
        action.label_in(THEORY.machine.model.instance)
        for workers in (1, 2)
        for action in explore(Machine.of(LATCH, "locked", "late", Instance(workers, 1, 2)), []).taken
    }
    assert len(taken) > 30
    assert taken < case.startable == {step.name for step in THEORY.steps}
    assert all(isinstance(earn(case, prop, taken), Proved) for prop in PROPERTIES)


def test_without_a_lemma_nothing_is_proved() -> None:
    """Unless one worker alone has a chunk, another that gives up loses it for the first: a step is open."""
    broken = claimed(THEORY, [lemma for lemma in LEMMAS if lemma.name != "one carrier"])
    case = Case.of(broken, PROPERTIES)
    assert case.startable == set()
    failed = [answer for answer in case.answers.values() if not answer.discharged]
    assert [(answer.name, answer.z3) for answer in failed] == [("step check_status worker=0 chunk=0", "sat")]
    assert all(isinstance(earn(case, prop, set()), Unknown) for prop in PROPERTIES)


@pytest.mark.parametrize(
    ("claim", "open_"),
    [
        (phase == "new", False),
        (phase == "boot", True),
        (worker == "transferring", False),
        (some("worker", worker == "idle"), True),
        (ForAll("worker", worker == "transferring"), False),
    ],
    ids=["first", "not first", "of nobody", "there is nobody", "of all of nobody"],
)
def test_at_first_no_worker_serves_the_room(claim: Term, open_: bool) -> None:
    """So what is said of workers is true of the initial state, unless it says that there are some."""
    starts = claimed(THEORY, [Lemma("some", claim)]).starts
    assert starts.bare
    assert opened(claimed(THEORY, []), [starts]) == ({"initial"} if open_ else set())


# --- What other rooms do --------------------------------------------------------------------------


def test_an_idle_worker_may_leave() -> None:
    """Nobody can count on an idle worker: that some worker is idle breaks by ``leave``, as it does by being taken."""
    invariant = claimed(THEORY, [Lemma("somebody is idle", some("worker", worker == "idle"))])
    broken = opened(invariant, invariant.inductive)
    assert "step leave" in broken
    takes = {"step take", "step take_stale", "step take_stale.more"}
    assert {name.partition(" worker")[0] for name in broken} == {"step leave", *takes}


def test_a_worker_that_is_busy_here_does_not_leave() -> None:
    """That some worker transfers breaks only where that worker itself goes on."""
    invariant = claimed(THEORY, [Lemma("somebody transfers", some("worker", worker == "transferring"))])
    broken = opened(invariant, invariant.inductive)
    assert {name.partition(" worker")[0] for name in broken} == {"step complete", "step break"}


def test_whatever_happens_to_workers_elsewhere() -> None:
    """A claim about workers wherever they are breaks by ``elsewhere``; about those that are here it does not."""
    [var] = [var for var in THEORY.own.values() if var.field is job_gen]
    first = var == "first"
    here = claimed(THEORY, [Lemma("here", job_gen == "first")])
    anywhere = Claim(Lemma("anywhere", job_gen == "first"), THEORY.says([first]), (first,), frozenset({var}))
    assert "step elsewhere" not in opened(here, here.inductive)
    invariant = Invariant(THEORY, (anywhere,))
    assert "step elsewhere" in opened(invariant, invariant.inductive)


def test_other_rooms_set_what_they_may() -> None:
    """``leave`` takes the worker out of the room and no more; ``elsewhere`` sets all of it but where it is."""
    leave, elsewhere = (step(THEORY, name) for name in OTHERS)
    assert leave.sets.keys() == {THEORY.own[job_room]}
    assert elsewhere.sets.keys() == set(THEORY.own.values()) - leave.sets.keys()
    assert leave.action is elsewhere.action is None


def test_steps_of_another_room_are_those_two_to_this_one() -> None:
    """In runs of two rooms every lemma holds of the first, and the second does to it what the proof allows for.

    A step of the second room changes nothing of the first; a worker it changes was not in the first, or idle there.
    """
    on = Machine.of(LATCH, "locked", "disorderly", Instance(workers=3, chunks=2, requests=2, rooms=2))
    lemmas = All(tuple(term for lemma in LEMMAS for term in on.model.instances(lemma.claim)))
    chance, moved = random.Random(0), set()  # noqa: S311 - fixed runs
    for _ in range(4):
        state = on.initial()
        while enabled := on.enabled(state):
            long = [action for action in enabled if action.name not in ("time_out", "abort", "hear_abort")]
            action = chance.choice(long if long and chance.random() < 0.9 else enabled)
            before, state = named(on, state), on.step(state, action)
            assert on.holds(lemmas, state)
            after = named(on, state)
            if action.arguments["room"] == 0:
                continue
            for name in (name for name in before if before[name] != after[name]):
                number = name.rpartition("_")[2]
                assert name.endswith("@1") or number == str(action.arguments["worker"])
                if not name.endswith("@1"):
                    was_here = before[f"job_room_{number}"] == HERE
                    assert not was_here or before[f"worker_{number}"] == "idle"
                    assert after[f"job_room_{number}"] != HERE
                    moved.add(was_here)
    assert moved == {True, False}


# --- What is noticed ------------------------------------------------------------------------------


@pytest.mark.parametrize("mutant", OF_THE_ROOM, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_a_mutant_is_not_proved(mutant: Mutant) -> None:
    """There is a counterexample to a step of the changed row; where one is missing, to the property that it breaks."""
    theory = theory_of(mutant.rules, mutant.design, mutant.atomicity)
    changed = {rule.name for rule in mutant.rules if rule not in RULES}
    if mutant.design is not LATCH:
        changed = {rule.name for rule in RULES if rule.write}
    steps = [step for step in theory.steps if step.action and step.action.rule.name in changed]
    invariant = claimed(theory)
    obligations = map(invariant.keeps, steps) if steps else conclusions(invariant, BY_NAME[mutant.prop])
    assert any(opened(invariant, [each]) for each in obligations)
    assert bool(steps) is (mutant.name != "no timeout")


def test_a_worker_that_is_stuck_is_noticed() -> None:
    """Where no row moves a worker on, settlement is not proved, although its scheduler could go on."""
    invariant = claimed(theory_of(without("post")))
    assert opened(invariant, conclusions(invariant, SETTLEMENT)) == {"property settlement, busy"}


@pytest.mark.parametrize(
    "rule",
    [
        Rule("look again", "worker", "idle", "idle", job_gen == "first"),
        Rule("poll again", "scheduler", "free", "free", phase == "inflight"),
    ],
    ids=lambda rule: rule.name.replace(" ", "-"),
)
def test_a_row_that_goes_on_for_ever_is_noticed(rule: Rule) -> None:
    """It has a rank obligation like any other, which alone has a counterexample, whatever the lemmas are.

    That a request has settled before the next one comes does rest on a lemma.
    """
    invariant = claimed(theory_of((*RULES, rule)), [BY_LEMMA["nothing kept"]])
    ranks = [each for each in invariant.obligations(SETTLEMENT) if each.name.startswith("rank ")]
    assert {name.partition(" worker")[0] for name in opened(invariant, ranks)} == {f"rank {rule.name}"}


# --- What is refused ------------------------------------------------------------------------------


def action(name: str) -> Action:
    return next(action for action in THEORY.machine.model.actions if action.name == name)


def setting(taken: Action, var: Var) -> Action:
    """An action that also sets a variable to its first label."""
    return attrs.evolve(taken, updates=(*taken.updates, (var, Label(var.labels[0]))))


@pytest.mark.parametrize(
    ("name", "place", "message"),
    [
        ("take", EVERY, r"^take .* sets worker_every: of every worker$"),
        ("create", EVERY, r"^create sets worker_every: of every worker$"),
        ("create", 0, r"^create is no worker's, and sets a worker's variable$"),
        ("write_w", 0, r"^write_w is no worker's, and sets a worker's variable$"),
    ],
)
def test_an_action_that_reaches_beyond_its_room_is_refused(name: str, place: int, message: str) -> None:
    """A row may set one worker, which acts: not all of them, and none if it is the room's."""
    model = THEORY.machine.model
    [var] = [var for var in model.variables if var.field is worker and var.place == place]
    wrong = setting(action(name), var)
    footprint(action(name), model)
    with pytest.raises(ValueError, match=message):
        footprint(wrong, model)
    with pytest.raises(ValueError, match=message):
        AnyNumber.of(attrs.evolve(THEORY.machine, model=attrs.evolve(model, actions=(*model.actions, wrong))))


def test_an_instance_with_several_rooms_is_refused() -> None:
    """One room is looked at."""
    with pytest.raises(ValueError, match="bound to an instance with several rooms"):
        AnyNumber.of(Machine.of(LATCH, "locked", "orderly", Instance(workers=ANY, rooms=2)))


@pytest.mark.parametrize("design", DESIGNS.values(), ids=list(DESIGNS))
def test_every_design_is_accepted(design: Design) -> None:
    """All rows keep to their room, and all lemmas are decidable, in each atomicity."""
    for level in design.atomicities:
        theory = theory_of(design=design, level=level)
        assert [claim.lemma for claim in claimed(theory).claims] == list(LEMMAS)


@pytest.mark.parametrize(
    "claim",
    [
        implies(worker == "taken", ~ForAll("other worker", worker == "idle")),
        ~(worker == "taken") | ((phase == "boot") & some("worker", worker == "idle")),
        ~((worker == "taken") & ForAll("worker", worker != "idle")),
    ],
    ids=["another", "some", "not all"],
)
def test_for_each_worker_there_is_another_is_refused(claim: Term) -> None:
    """Each would bring the next, and nothing would be decidable any more."""
    with pytest.raises(
        ValueError, match=r"^for each worker there is another worker: .* not effectively propositional$"
    ):
        theory_of().claim(Lemma("another", claim))


@pytest.mark.parametrize(
    "claim",
    [
        implies(worker == "taken", ForAll("other worker", worker == "idle")),
        implies(phase == "boot", some("worker", worker == "idle")),
        implies(ForAll("worker", worker == "idle"), pages == "none"),
        TRUE,
    ],
    ids=["all others", "there is one", "all", "nothing"],
)
def test_what_is_decidable_is_accepted(claim: Term) -> None:
    """Of each worker, that all others are such; of the room, that there is a worker or that all are such."""
    theory = theory_of()
    theory.claim(Lemma("some", claim))
    assert theory.graph.edges == set()


def test_any_number_of_workers_is_no_machine_to_run() -> None:
    """There is no state to enumerate: whoever tries is told so."""
    on = THEORY.machine
    for formula in (ForAll("worker", worker == "idle"), some("worker", worker == "idle")):
        with pytest.raises(TypeError, match="no concrete states"):
            on.holds(on.model.claim(formula), on.initial())


# --- The text that cvc5 reads ---------------------------------------------------------------------


def test_the_script_says_what_z3_is_asked() -> None:
    """Read back by Z3, the script's assertions are the domain, the lemmas that were passed, and the obligation."""
    some = ALL.claims[::2]
    for name in ("step elsewhere", "step complete worker=0 chunk=0", "property settlement"):
        obligation = everything(ALL)[name]
        solver = z3.Solver()
        solver.from_string(solvers._session(ALL, [(obligation, some)]).replace("(check-sat)\n(pop 1)", ""))
        whole = [*THEORY.domain, *(claim.formula for claim in some), *obligation.assertions]
        assert len(solver.assertions()) == len(whole)
        for read, meant in zip(solver.assertions(), whole, strict=True):
            differs = z3.SolverFor(AnyNumber.labels_in)
            differs.add(read != meant)
            assert differs.check() == z3.unsat


# --- True of every number that can be tried -------------------------------------------------------

TRIED = [
    *((world.network, world.instance(workers)) for workers in (1, 2) for world in WORLDS),
    *((world.network, Instance(workers=3, chunks=1, requests=world.sizes.count("request"))) for world in WORLDS[:3]),
]


@pytest.mark.parametrize(("network", "instance"), TRIED, ids=lambda value: str(value).removeprefix("Instance"))
def test_what_is_proved_is_true_of_every_state_that_is_reached(network: str, instance: Instance) -> None:
    """The search reaches no state, with one, two or three workers, in which a lemma or a property is false."""
    search = explore(Machine.of(LATCH, "locked", network, instance), PROPERTIES)  # type: ignore[arg-type]  # a Network
    assert search.complete
    assert (search.violations, search.cyclic) == ({}, False)
    terms = [term for lemma in LEMMAS for term in search.layout.machine.model.instances(lemma.claim)]
    assert search.count(~All(tuple(terms))) == 0
    assert search.count(All(tuple(terms))) == search.states > 900 * (instance.workers > 1)


def test_the_lemmas_that_are_tried_are_about_workers_too() -> None:
    """Some lemmas speak of a worker, of all others, and of there being one: else nothing above would be parametric."""
    assert {"workers locked", "one carrier"} <= {name for name in BY_LEMMA if "worker" in free(BY_LEMMA[name].claim)}
    for claim in ALL.claims:
        quantified = claim.lemma.name in ("one carrier", "taken by somebody")
        assert any(var.place == EVERY and var.owner == "worker" for var in claim.reads) or not quantified


# --- Chunks, and requests on a room id ------------------------------------------------------------


def test_what_is_equal_to_a_condition_may_be_it_or_its_opposite() -> None:
    """Under an equality a condition counts as said and as denied."""
    (x, first), (y, second) = ((z3.Const(name, z3.DeclareSort(name)), name.lower()) for name in ("One", "Other"))
    related = z3.Function("related", x.sort(), y.sort(), z3.BoolSort())(x, y)
    for condition in (z3.ForAll([x], z3.Exists([y], related)), z3.Exists([x], z3.ForAll([y], related))):
        graph = Sorts()
        graph.admit(z3.Bool("named") == condition)
        assert graph.edges == {(first, second)}


def test_no_obligation_goes_round_in_a_circle() -> None:
    """Of all that the solvers are given, each "for all, there is" goes from chunks to workers: it is decidable."""
    for level in ("locked", "cas"):
        proof = claimed(theory_of(level=level))
        graph = Sorts()
        for formula in proof.axioms:
            graph.admit(formula)
        for obligation in everything(proof).values():
            for formula in obligation.assertions:
                graph.admit(formula)
        assert graph.edges == {("chunk", "worker")}


@pytest.mark.parametrize(
    ("claim", "message"),
    [
        (implies(chunk == "taken", ~ForAll("other chunk", chunk == "taken")), "for each chunk there is another chunk"),
        (implies(worker == "taken", ~ForAll("chunk", chunk == "done")), "for each worker there is another chunk"),
    ],
    ids=["another chunk", "and a chunk for each worker"],
)
def test_a_circle_of_sorts_is_refused(claim: Term, message: str) -> None:
    """A chunk for each chunk; or a worker for each chunk, as some lemma says, and a chunk for each worker."""
    theory = theory_of()
    theory.claim(BY_LEMMA["taken by somebody"])
    with pytest.raises(ValueError, match=message):
        theory.claim(Lemma("circle", claim))


def test_one_worker_may_have_a_chunk_that_others_have_not() -> None:
    """A relation is a function of workers: nobody has two chunks; and who takes one has that one, and no other."""
    about = elements("chunk")
    [has] = [var for var in THEORY.own.values() if var.field is job]
    function = THEORY.state.values[has].decl()
    two = z3.Const("two", about.sort)
    solver = z3.SolverFor(AnyNumber.labels_in)
    solver.add(*THEORY.domain, about.this != two, function(elements("worker").this, about.this) == 1)
    assert solver.check() == z3.sat
    assert solver.check(function(elements("worker").this, two) == 1) == z3.unsat
    take = step(THEORY, "take worker=0 chunk=0")
    after = [THEORY.after(take, function(elements("worker").this, one) == 1) for one in (about.this, two)]
    assert solver.check(z3.Not(after[0])) == solver.check(after[1]) == z3.unsat


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_request_may_have_any_number_of_chunks(size: int) -> None:
    """The axioms and the lemmas have a model with that many chunks, in order, all of them sent."""
    about = elements("chunk")
    named = [z3.Const(f"chunk {index}", about.sort) for index in range(size)]
    solver = z3.SolverFor(AnyNumber.labels_in)
    solver.add(*ALL.axioms, *(about.before(one, other) for one, other in pairwise(named)), about.last == named[-1])
    solver.add(z3.ForAll([about.some], z3.Or([about.some == one for one in named])))
    inflight = THEORY.machine.model.claim((phase == "inflight") & ForAll("chunk", chunk == "queued"))
    solver.add(THEORY.says([inflight]))
    assert solver.check() == z3.sat
    if size > 1:
        assert solver.check(about.before(named[-1], named[0])) == z3.unsat


def test_a_name_for_a_condition_means_what_it_says() -> None:
    """Without its definition, a step that stores by it could do either; with it, one of the two."""
    complete = step(THEORY, "complete worker=0 chunk=0")
    assert complete.defined
    kept = ALL.keeps(complete)
    undefined = attrs.evolve(complete, defined=())
    assert opened(ALL, [kept]) == set()
    assert opened(ALL, [ALL.keeps(undefined)]) == {kept.name}


def test_a_condition_about_each_of_several_has_no_name() -> None:
    """What every chunk becomes must not depend on a condition that differs from chunk to chunk."""
    rules = changed("reuse", then={stale: where(ForAll("earlier chunk", chunk == "queued"), "yes", "no")})
    with pytest.raises(TypeError, match="must not speak of every one again"):
        claimed(theory_of(rules)).inductive  # noqa: B018 - computed on demand
    rules = changed("reuse", then={stale: where(ForAll("worker", ~ThisChunk(job)), "yes", "no")})
    with pytest.raises(ValueError, match="condition about each of several"):
        claimed(theory_of(rules)).inductive  # noqa: B018 - computed on demand


def test_which_chunk_a_worker_has_is_known_only_one_by_one() -> None:
    """With any number of chunks there are no numbers to compare with."""
    with pytest.raises(TypeError, match="one of any number of chunks"):
        theory_of((*RULES, Rule("look", "worker", "taken", "idle", job == "0")))


def test_what_is_left_of_a_pile_still_counts() -> None:
    """A chunk of an older request is one less when it is taken, although others like it are left: the rank falls."""
    more = step(THEORY, "take_stale.more worker=0 chunk=0")
    fewer = step(THEORY, "take_stale worker=0 chunk=0")
    assert {var.field for var in fewer.sets} - {var.field for var in more.sets} == {stale}
    assert opened(ALL, [ALL.descends(one, SETTLEMENT) for one in (more, fewer)]) == set()
    assert more.action is not None
    endless = attrs.evolve(more, action=attrs.evolve(more.action, part=""))
    assert opened(ALL, [ALL.descends(endless, SETTLEMENT)]) == {f"rank {more.name}"}


def test_a_request_must_not_come_before_the_last_has_settled() -> None:
    """Else a request might wait for ever while others on its id come and go."""
    for name in ("reuse", "reuse_again"):
        early = changed(name, when=phase.in_("releasing", "done"))
        proof = claimed(theory_of(early))
        [step_of] = [one for one in proof.theory.steps if one.name == name]
        assert opened(proof, [proof.descends(step_of, SETTLEMENT)]) == {f"rank {name}"}


def test_other_rooms_must_not_hold_this_one_up() -> None:
    """A scheduler that waits for a worker to stay may be disabled by one that leaves; and nobody counts on it."""
    hostage = changed("settle_success", when=(phase == "inflight") & some("worker", worker == "idle"))
    proof = claimed(theory_of(hostage))
    held = [each for each in proof.obligations(SETTLEMENT) if each.name.startswith("fair ")]
    assert opened(proof, held) == {"fair leave"}


def test_other_rooms_must_not_make_work_here() -> None:
    """Could they set the workers of this room, or leave one in it that has something to do, its rank would rise."""
    for name in OTHERS:
        theory = theory_of()
        other = step(theory, name)
        strange = step(theory, "elsewhere").sets
        wrong = attrs.evolve(other, enabled=z3.BoolVal(True), sets=strange)
        theory.__dict__["steps"] = [wrong if one is other else one for one in theory.steps]
        assert f"rank {name}" in opened(ALL, theory.bystanders())
    assert opened(ALL, THEORY.bystanders()) == set()
