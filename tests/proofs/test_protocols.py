"""A protocol is a value: a toy one goes through every engine, which knows it from its rows alone."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import attrs
import cvc5
import pytest
import z3

from kvlatch.proofs import bmc, pins, promela
from kvlatch.proofs.induction import Invariant, Theory
from kvlatch.proofs.parametric import AnyNumber
from kvlatch.proofs.prove import decide, trace_of
from kvlatch.proofs.search import explore
from kvlatch.proofs.solvers import standalone
from kvlatch.proofs.verdicts import Case, Proved, Refuted, Unknown, earn
from kvlatch.spec import traces
from kvlatch.spec.model import ANY, Machine
from kvlatch.spec.protocols import PROTOCOLS
from kvlatch.spec.schema import Choice, Lemma, Property, Protocol, Rule, Sizes, Thread, World
from kvlatch.spec.terms import TRUE, Field, ForAll

# Ranks vote, and whoever sees that all have voted decides. A hasty one decides without looking: two rows, three states.

hurry = Field("hurry", "switch", ("waits", "hurries"))
vote = Field("vote", "rank", ("none", "cast", "decided"))
everybody = ForAll("rank", vote != "none")


@attrs.frozen
class Ranks(Sizes):
    crowd: ClassVar[str | None] = "rank"
    ranks: int = 2


TOGETHER = Property(
    "together", "Nobody decides before all have voted.", (~ForAll("rank", vote != "decided")) & ~everybody,
    broken="somebody has decided, and not everybody has voted",
)  # fmt: skip
FINISHES = Property(
    "finishes", "Every rank decides.", ~ForAll("rank", vote == "decided"), kind="liveness", broken="a rank is stuck"
)
DESIGNS = {
    "patient": Choice("patient", "toy", (hurry,)),
    "hasty": Choice("hasty", "toy", (hurry,), {"hurry": "hurries"}),
}
TOY = Protocol(
    "toy",
    "Ranks vote, then decide.",
    sizes=Ranks,
    sorts=("rank",),
    state=(vote,),
    threads={"rank": Thread(vote)},
    rows=(
        Rule("cast", "rank", "none", "cast", says="The rank votes."),
        Rule("decide", "rank", "cast", "decided", everybody | (hurry == "hurries"), says="The rank decides."),
    ),
    switches=(hurry,),
    designs=DESIGNS,
    properties=(TOGETHER, FINISHES),
    worlds=(World("orderly network", "", "orderly", Ranks()),),
    everything=World("everything", "", "orderly", Ranks()),
    counts=(2, 3),
    lemmas=(Lemma("decided together", (vote != "decided") | everybody),),
    potential={vote: {"none": 2, "cast": 1}},
)


@pytest.fixture(autouse=True)
def shipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PROTOCOLS, "toy", TOY)


def machine(design: str, ranks: int = 2) -> Machine:
    return Machine.of(DESIGNS[design], "locked", "orderly", Ranks(ranks), TOY)


def invariant(ranks: int, design: str = "patient") -> Invariant:
    theory = (Theory if ranks else AnyNumber).of(machine(design, ranks))
    return Invariant(theory, tuple(map(theory.claim, TOY.lemmas)))


def test_search_counts_its_states_and_finds_its_shortest_run() -> None:
    """Nine states of two ranks but those that the guard forbids: one has decided, the other not voted."""
    patient = explore(machine("patient"), TOY.properties)
    assert (patient.states, patient.violations, patient.cyclic) == (9 - 2, {}, False)
    hasty = explore(machine("hasty"), TOY.properties)
    assert (hasty.states, hasty.length("together"), hasty.length("finishes")) == (9, 2, None)


def test_z3_finds_the_same_run_and_no_shorter_one() -> None:
    """Bounded model checking agrees with the search, and its script has no answer one step earlier."""
    runs = bmc.Unrolling.of(machine("hasty")).shortest(TOY.properties, 6)
    assert {name: len(run) for name, run in runs.items()} == {"together": 2}
    solver = z3.Solver()
    for length, answer in ((2, z3.unsat), (3, z3.sat)):
        solver.reset()
        solver.from_string(bmc.script(machine("hasty"), {"together": length}))
        assert solver.check() == answer


@pytest.mark.parametrize("ranks", [2, 3, ANY])
def test_both_solvers_prove_it(ranks: int) -> None:
    """For two and three ranks and for any number, safety and liveness; no property without a mutant that breaks it."""
    proof = invariant(ranks)
    case = Case.of(proof, TOY.properties)
    scope = f"up to {ranks} ranks; orderly network" if ranks else "any number of ranks; orderly network"
    for prop in TOY.properties:
        assert isinstance(earn(case, prop, set()), Unknown)
        earned = earn(attrs.evolve(case, breakable={"together", "finishes"}), prop, set())
        assert isinstance(earned, Proved), earned
        assert earned.scope == scope


def test_a_hasty_rank_is_not_proved() -> None:
    """The lemma is not kept by the row that does not look."""
    answers = Case.of(invariant(ANY, "hasty"), [TOGETHER]).answers
    assert [answer.name for answer in answers.values() if answer.z3 == "sat"] == ["step decide rank=0"]


def test_certificates_stand_alone() -> None:
    """cvc5 reads each obligation from its own file, and agrees."""
    proof = invariant(ANY)
    obligations = [o for prop in TOY.properties for o in proof.obligations(prop)]
    for text in standalone(proof, obligations):
        solver = cvc5.Solver(cvc5.TermManager())
        parser = cvc5.InputParser(solver)
        parser.setStringInput(cvc5.InputLanguage.SMT_LIB_2_6, text, "toy")
        said = []
        while not (command := parser.nextCommand()).isNull():
            said.append(command.invoke(solver, parser.getSymbolManager()).strip())
        assert [word for word in said if word] == ["unsat"]


def test_a_matrix_row_is_decided_and_its_trace_verified(tmp_path: Path) -> None:
    """``decide`` refutes the hasty design, and its counterexample is a file that says which protocol it is about."""
    cells = decide("hasty", "locked", [3, 2], ["together", "finishes"])
    words = {(cell.row.workers, cell.prop): pins.text(cell.verdict) for row in cells for cell in row}
    assert (words[3, "together"], words[2, "together"]) == ("2", "2")
    cell = next(cell for cell in cells[1] if cell.prop == "together")
    assert isinstance(cell.verdict, Refuted)
    assert str(cell.row) == "hasty locked, 2 ranks,"
    path = tmp_path / "toy.itf.json"
    traces.write(trace_of(cell), path)
    read = traces.read(path)
    assert (read.protocol, read.instance) == ("toy", Ranks(2))
    run = traces.verify(read)
    assert [str(action) for action in run.actions] == ["cast", "decide"]
    with pytest.raises(traces.TraceError, match="the trace is about 'room'"):
        traces.verify(attrs.evolve(read, protocol="room"))


def test_promela_has_its_steps() -> None:
    """One step for each row of each rank."""
    model = promela.promela(machine("hasty"), TOGETHER)
    assert model.count("d_step {  /*") == 4
    assert "breaks together" in model


@pytest.mark.skipif(promela.missing() is not None, reason=str(promela.missing()))
def test_spin_agrees() -> None:
    """As many states, and the same length."""
    found = promela.spin(promela.promela(machine("hasty"), TOGETHER))
    assert (found.states, found.length) == (9, 2)


def test_a_mutant_is_a_value_too() -> None:
    """A row replaced: whoever decides without having voted is found."""
    mutant = TOY.with_rows((TOY.rows[0], attrs.evolve(TOY.rows[1], when=TRUE)))
    assert TOY.with_rows(mutant.rows) is mutant
    found = explore(Machine.of(DESIGNS["patient"], "locked", "orderly", Ranks(2), mutant), TOY.properties)
    assert found.length("together") == 2
