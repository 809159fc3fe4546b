"""Each part of the gate in front of ``Proved`` is alive: deadened, something here fails."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import pytest
import z3

from kvlatch.commands import matrix
from kvlatch.proofs import bmc, certificates, columns, pins, prove, verdicts
from kvlatch.proofs.induction import Invariant, Step, Theory
from kvlatch.proofs.parametric import AnyNumber
from kvlatch.proofs.prove import Cell, Disagreement, Row, decide
from kvlatch.proofs.recheck import Theorem, scopes
from kvlatch.proofs.search import Search, explore
from kvlatch.proofs.solvers import discharge
from kvlatch.proofs.verdicts import Case, Proved, Unknown, earn
from kvlatch.proofs.worlds import EVERYTHING, WORLDS
from kvlatch.spec.designs import DESIGNS
from kvlatch.spec.lemmas import BY_NAME as BY_LEMMA
from kvlatch.spec.lemmas import FEW, LEMMAS
from kvlatch.spec.model import ANY, Instance, Machine
from kvlatch.spec.properties import BY_NAME, PROPERTIES
from kvlatch.spec.protocol import phase, worker
from kvlatch.spec.protocols import PROTOCOLS
from kvlatch.spec.room import ROOM
from kvlatch.spec.schema import Atomicity, Lemma, Network, Rule
from kvlatch.spec.terms import FALSE

LATCH = DESIGNS["latch"]
SETTLEMENT = BY_NAME["settlement"]


def theory(level: Atomicity = "locked", workers: int = ANY, network: Network = "disorderly") -> Theory:
    world = EVERYTHING if workers == ANY else ROOM.bounded
    machine = Machine.of(LATCH, level, network, world.instance(workers))
    return (AnyNumber if workers == ANY else Theory).of(machine)


def invariant(lemmas: Sequence[Lemma], level: Atomicity = "locked", workers: int = ANY) -> Invariant:
    about = theory(level, workers)
    return Invariant(about, tuple(map(about.claim, lemmas)))


# --- Every step can start -----------------------------------------------------------------------------------------

STARTABLE = pytest.mark.parametrize("workers", [1, ANY])


@STARTABLE
def test_lemmas_that_exclude_everything_let_no_step_start(workers: int) -> None:
    """What is proved from a contradiction is proved of nothing: not one step starts in such a state."""
    assert verdicts._startable(invariant([Lemma("impossible", FALSE)], workers=workers)) == set()


@STARTABLE
def test_lemmas_that_exclude_a_step_are_noticed(workers: int) -> None:
    """Where the lemmas say that no room is ever admitted, steps of a running room do not start, and others do."""
    early = Lemma("never admitted", phase.in_("new", "boot"))
    found = verdicts._startable(invariant([early], workers=workers))
    assert "create" in found
    assert found.isdisjoint({"enqueue chunk=0", "settle_success", "release", "reuse"})
    free = verdicts._startable(invariant([], workers=workers))
    assert free == {step.name for step in theory(workers=workers).steps}


@STARTABLE
def test_a_step_that_the_solver_gives_up_on_has_not_started(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """``unknown`` is no evidence that a state exists."""

    class Tired:
        def add(self, *formulas: z3.BoolRef) -> None: ...
        def push(self) -> None: ...
        def pop(self) -> None: ...
        def check(self) -> z3.CheckSatResult:
            return z3.unknown

    monkeypatch.setattr(verdicts, "new_solver", lambda _: Tired())
    assert verdicts._startable(invariant(LEMMAS, workers=workers)) == set()


def test_a_vacuous_proof_is_none() -> None:
    """All obligations follow from a contradiction, but for the first; even if that were answered, nothing is proved."""
    case = Case.of(invariant([Lemma("impossible", FALSE)]), PROPERTIES)
    pretended = {name: attrs.evolve(answer, z3="unsat", cvc5="unsat") for name, answer in case.answers.items()}
    full = attrs.evolve(case, answers=pretended, startable=verdicts._startable(case.invariant))
    taken = {action.label_in(EVERYTHING.sizes.crowded(ANY)) for action in explore(small("orderly"), PROPERTIES).taken}
    for prop in PROPERTIES:
        verdict = earn(full, prop, taken)
        assert isinstance(verdict, Unknown)


def test_other_rooms_may_do_anything_to_a_worker_that_is_not_here() -> None:
    """``elsewhere`` is enabled for busy workers too: a lemma about workers of other rooms is not kept."""
    about = theory()
    (elsewhere,) = (step for step in about.steps if step.name == "elsewhere")
    solver = z3.Solver()
    solver.add(*about.domain, elsewhere.enabled)
    assert isinstance(about, AnyNumber)
    pc = about.own[worker]
    for label in pc.labels:
        assert solver.check(about.state.values[pc] == pc.index(label)) == z3.sat
        assert solver.check(elsewhere.sets[pc] == pc.index(label)) == z3.sat


# --- Ranks --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, ANY])
def test_a_retry_that_learns_nothing_has_no_rank(workers: int) -> None:
    """A retry lowers the rank because afterwards it has seen what stands; if it has not, it may go on for ever."""
    proof = invariant(LEMMAS, "cas", workers)
    retries = [step for step in proof.theory.steps if step.action and step.action.part == "retry"]
    assert retries
    for step in retries:
        ((seen, stands),) = step.sets.items()
        stale = {seen: proof.theory.state.values[seen]}
        other = next(var for var in proof.theory.state.values if var.field is phase)
        more = {seen: stands, other: proof.theory.state.values[other]}
        wrong = [Step(step.name, step.enabled, sets, step.action) for sets in (stale, more)]
        assert [answer.z3 for answer in discharge(proof, [proof.descends(step, SETTLEMENT)])] == ["unsat"]
        for changed in wrong:
            assert [answer.z3 for answer in discharge(proof, [proof.descends(changed, SETTLEMENT)])] == ["sat"]


# --- The search and the proofs contradict each other --------------------------------------------------------------


def small(network: Network, design: str = "latch", level: Atomicity = "locked") -> Machine:
    return Machine.of(DESIGNS[design], level, network, Instance(workers=1, chunks=1))


def test_a_cycle_contradicts_a_proof_of_settlement(monkeypatch: pytest.MonkeyPatch) -> None:
    """A protocol that can go round for ever has no settlement, whatever has been proved."""
    turn = Rule("turn", "scheduler", "free", "free", phase == "boot", {phase: "new"})
    cyclic = ROOM.with_rows((*ROOM.rows, turn))
    row = prove._Row(Row("latch", "locked", 1), cyclic, {})
    row.decided["settlement"] = Cell(row.row, "settlement", Proved("nothing", (), {}), 0)
    monkeypatch.setitem(PROTOCOLS, "room", cyclic)
    with pytest.raises(Disagreement, match="settlement is proved, and the state graph has a cycle"):
        row.search(WORLDS[0], to_the_end=True)


def test_a_counterexample_must_end_in_a_bad_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that the search gives one step too short is no counterexample."""

    class Short(Search):
        def trace(self, prop: str) -> list:  # type: ignore[type-arg]
            return super().trace(prop)[:-1]

    def shortened(*arguments: object, **options: object) -> Search:
        found = explore(*arguments, **options)  # type: ignore[arg-type]
        return Short(**{field.name: getattr(found, field.name) for field in attrs.fields(Search)})

    monkeypatch.setattr(prove, "explore", shortened)
    with pytest.raises(Disagreement, match="does not end in a bad state"):
        decide("seed-control", "locked", [1], ["no-ghost"])


def test_z3_s_run_must_end_in_a_bad_state() -> None:
    with pytest.raises(AssertionError, match="does not end in a bad state"):
        bmc.Unrolling.of(small("orderly"))._execute([], BY_NAME["no-ghost"])


# --- Frontiers of several blocks ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("design", "level", "size"), [("seed-control", "locked", 1), ("latch", "cas", 50)])
def test_a_frontier_in_pieces_is_the_same_frontier(
    monkeypatch: pytest.MonkeyPatch, design: str, level: Atomicity, size: int
) -> None:
    """However small the blocks: as many states, the same lengths, and runs that the concrete semantics takes."""
    on = small("disorderly", design, level)
    whole = explore(on, PROPERTIES)
    monkeypatch.setattr(columns, "BLOCK", size)
    pieces = explore(on, PROPERTIES)
    assert pieces.states == whole.states
    assert (pieces.cyclic, pieces.complete, pieces.taken) == (whole.cyclic, whole.complete, whole.taken)
    assert {name: depth for name, (depth, _) in pieces.violations.items()} == {
        name: depth for name, (depth, _) in whole.violations.items()
    }
    assert pieces.count(phase == "done") == whole.count(phase == "done")
    for name in pieces.violations:
        state = on.initial()
        for action, then in pieces.trace(name)[1:]:
            assert action is not None
            state = on.step(state, action)
            assert state == then
        assert on.broken(BY_NAME[name], state)


# --- What a line says was proved ----------------------------------------------------------------------------------


def test_the_line_changes_with_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """With proofs about the orderly network alone, verdict, legend, JSON and certificate say "orderly"."""
    gentle = attrs.evolve(ROOM, everything=attrs.evolve(EVERYTHING, network="orderly"))
    monkeypatch.setitem(PROTOCOLS, "room", gentle)
    ((cell,),) = decide("latch", "locked", [1], ["no-ghost"])
    assert isinstance(cell.verdict, Proved)
    line = "any number of rooms, workers, chunks and requests on a room id; orderly network"
    assert cell.verdict.scope == line
    assert line in matrix.legend([cell])
    assert cell.verdict.bounds["network"] == "orderly"
    theorem = Theorem("latch", "locked", "no-ghost", line, cell.verdict.lemmas, ())
    fix = certificates._invariant(theorem).theory.machine.model.fix
    assert fix is not None
    assert fix.network == "orderly"


@pytest.mark.parametrize("workers", [ANY, 1, 2, 3])
def test_the_line_changes_with_each_size(workers: int) -> None:
    """Every size of the instance, and the network, is in the line and in the fields."""
    seen = set()
    for network in ("orderly", "disorderly"):
        for chunks in (1, 2, 3):
            for requests in (1, 2):
                machine = Machine.of(LATCH, "locked", network, Instance(workers, chunks, requests))
                case = Case(Invariant((AnyNumber if workers == ANY else Theory).of(machine), ()), {}, set(), set())
                assert f"{chunks} chunk" in case.scope
                assert f"{requests} request" in case.scope
                assert f"{network} network" in case.scope
                assert ("any number" in case.scope) == (workers == ANY)
                seen.add(case.scope)
    assert len(seen) == 12


def test_a_certificate_is_about_the_scope_in_its_header() -> None:
    """The machine whose obligations are written is the one that the theorem's scope names: instance and network."""
    for scope, (size, network) in scopes(ROOM).items():
        theorem = Theorem("latch", "locked", "no-ghost", scope, ("stamp of the past",), ())
        model = certificates._invariant(theorem).theory.machine.model
        assert model.fix is not None
        assert (model.instance, model.fix.network) == (size, network)


def test_settlement_names_the_fairness_that_it_needs() -> None:
    """A safety property needs none."""
    proof = invariant(LEMMAS)
    case = Case.of(proof, [SETTLEMENT, BY_NAME["no-ghost"]])
    settles, ghost = (earn(case, prop, set()) for prop in (SETTLEMENT, BY_NAME["no-ghost"]))
    assert isinstance(settles, Proved)
    assert isinstance(ghost, Proved)
    assert settles.bounds["fairness"] == "weak fairness, and strong fairness of take and take_stale"
    assert ghost.bounds["fairness"] is None
    assert ghost.bounds == {
        "workers": "any", "rooms": "any", "chunks": "any", "requests": "any", "network": "disorderly", "fairness": None
    }  # fmt: skip


# --- Any number of requests ---------------------------------------------------------------------------------------


def test_any_number_of_requests_rests_on_lemmas() -> None:
    """Where one is missing, two older requests may be mistaken for each other: nothing is proved for any number.

    For two requests there is nothing to mistake, and without tombstones nothing is compared.
    """
    assert ROOM.older is not None
    ghost = BY_NAME["no-ghost"]
    for name in ROOM.older.lemmas:
        case = Case.of(invariant(LEMMAS), [ghost])
        assert isinstance(earn(case, ghost, set()), Proved)
        fewer = tuple(claim for claim in case.invariant.claims if claim.lemma.name != name)
        verdict = earn(attrs.evolve(case, invariant=attrs.evolve(case.invariant, claims=fewer)), ghost, set())
        assert isinstance(verdict, Unknown)
        assert verdict.reason == f"any number of requests rests on lemmas that are not among these: {name}"
    few = [BY_LEMMA[name] for name in FEW["released-once"]]
    for world, design, proved in (
        (EVERYTHING, "latch", False),
        (ROOM.proved_in[1], "latch", True),
        (EVERYTHING, "fix-a", True),
    ):
        about = AnyNumber.of(Machine.of(DESIGNS[design], "locked", "disorderly", world.instance(ANY)))
        case = Case.of(Invariant(about, tuple(map(about.claim, few))), [BY_NAME["released-once"]])
        verdict = earn(case, BY_NAME["released-once"], set())
        assert isinstance(verdict, Proved) is proved
        if isinstance(verdict, Proved):
            assert verdict.narrow is (world is not EVERYTHING)
            assert (verdict.bounds["requests"], "2 requests" in verdict.scope) == (
                ("any", False) if world is EVERYTHING else (2, True)
            )


def test_what_is_proved_for_less_is_marked() -> None:
    """In the table and its legend, with the scope."""
    narrow = Proved("two chunks", (), {}, {"fairness": None}, narrow=True)
    cells = [
        Cell(Row("latch", "locked", 1), "no-ghost", one, 0) for one in (narrow, attrs.evolve(narrow, narrow=False))
    ]
    assert [pins.text(cell.verdict) for cell in cells] == ["holds*", "holds"]
    assert "holds*   the same, but for less:\n         two chunks" in matrix.legend(cells)
    assert "holds*" not in matrix.legend(cells[1:])
