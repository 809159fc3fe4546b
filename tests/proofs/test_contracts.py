"""The contract: the room keeps every clause, each could be broken, and each side is the protocol that it is made of."""

from __future__ import annotations

import ast
from pathlib import Path

import attrs
import pytest

import kvlatch.spec
from kvlatch.proofs.contracts import neighbours, obligations, unkept
from kvlatch.proofs.induction import Invariant
from kvlatch.proofs.mutation import LATCH
from kvlatch.proofs.parametric import AnyNumber
from kvlatch.proofs.search import explore
from kvlatch.proofs.solvers import discharge
from kvlatch.proofs.verdicts import Case, Proved, Unknown, earn
from kvlatch.spec.clauses import Clause, Contract
from kvlatch.spec.contract import CLAUSES, CONTRACT, DESIGNS, PREFILL, RECEIVER, ROWS, Ends, Side
from kvlatch.spec.decode import Decode
from kvlatch.spec.designs import DESIGNS as ROOM_DESIGNS
from kvlatch.spec.designs import Design
from kvlatch.spec.merges import failure_overrides
from kvlatch.spec.model import ANY, Machine
from kvlatch.spec.protocols import PROTOCOLS
from kvlatch.spec.ranks import Ranks
from kvlatch.spec.room import ROOM
from kvlatch.spec.schema import Network, Sizes
from kvlatch.spec.terms import FALSE, TRUE


def test_the_room_keeps_every_clause() -> None:
    """In each atomicity of its recommended design, by both solvers; and each clause is asked about."""
    assert CONTRACT.contract is not None
    assert unkept(CONTRACT.contract) == ()
    for invariant in neighbours(CONTRACT.contract):
        asked = [
            obligation.name.split()[1].removesuffix(",") for obligation in obligations(CONTRACT.contract, invariant)
        ]
        assert set(asked) == {clause.row for clause in CLAUSES}


def broken(design: Design, *clauses: Clause) -> set[str]:
    """The rows whose clauses the room does not keep in a design, locked."""
    room = attrs.evolve(ROOM, designs={**ROOM.designs, "asked": attrs.evolve(design, atomicities=("locked",))})
    contract = Contract(clauses, room, "asked")
    (invariant,) = neighbours(contract)
    asked = discharge(invariant, list(obligations(contract, invariant)))
    return {said.name.split()[1].removesuffix(",") for said in asked if not said.discharged}


@pytest.mark.parametrize("clause", CLAUSES[:3], ids=lambda clause: clause.row)
def test_what_a_clause_is_about_happens(clause: Clause) -> None:
    """Its event comes about: a demand that nothing meets is not kept."""
    assert broken(LATCH, attrs.evolve(clause, demand=FALSE)) == {clause.row}


def test_a_room_that_keeps_less() -> None:
    """A merge in which a late Failed replaces Success, and that of the incident."""
    assert broken(LATCH, *CLAUSES) == set()
    assert broken(attrs.evolve(LATCH, merge=failure_overrides), *CLAUSES) == {"ranks.fail_late"}
    assert broken(ROOM_DESIGNS["seed-control"], *CLAUSES) == {"ranks.fail_late"}


def test_lemmas_of_a_neighbour_are_not_taken_on_trust() -> None:
    """A room that does not keep the lemmas keeps no contract, even an empty one."""
    assert any(": step " in name for name in unkept(Contract((), ROOM, "seed-control")))


def test_no_proof_without_the_neighbour() -> None:
    """Where the neighbour breaks a clause, nothing that rests on it is proved, and the verdict says why."""
    for contract, kind in ((CONTRACT.contract, Proved), (Contract((), ROOM, "seed-control"), Unknown)):
        protocol = attrs.evolve(CONTRACT, contract=contract)
        machine = Machine.of(DESIGNS["contract-latch"], "locked", "disorderly", Ends(ANY), protocol)
        theory = AnyNumber.of(machine)
        invariant = Invariant(theory, tuple(map(theory.claim, protocol.lemmas)))
        prop = protocol.prop("both-ends-agree")
        verdict = earn(Case.of(invariant, [prop]), prop, set())
        assert isinstance(verdict, kind)
        assert not isinstance(verdict, Unknown) or "the neighbour does not keep" in verdict.reason


@pytest.mark.parametrize(
    ("side", "design", "sizes", "network"),
    [
        (PREFILL, "ranks-latch", Ranks(2), "orderly"),
        (RECEIVER, "decode-latch", Decode(1), "disorderly"),
        (RECEIVER, "decode-latch", Decode(2), "orderly"),
    ],
)
def test_a_side_is_its_protocol(side: Side, design: str, sizes: Sizes, network: Network) -> None:
    """Alone, without clauses, it reaches exactly as many states."""
    ours = Ends(sizes.count(str(sizes.crowd)))
    alone = attrs.evolve(CONTRACT, state=tuple(side.fields.values()), rows=tuple(side.rows()), threads=side.threads())
    mine = explore(Machine.of(DESIGNS["contract-latch"], "locked", network, ours, alone), ())
    theirs = explore(Machine.of(side.of.designs[design], "locked", network, sizes, side.of), ())
    assert mine.states == theirs.states
    assert [len(level.packed) for level in mine.levels] == [len(level.packed) for level in theirs.levels]


def test_a_clause_is_a_guard() -> None:
    """Each is in the guard of the row that it names, and of no other."""
    plain = {rule.name: rule for side in (PREFILL, RECEIVER) for rule in side.rows()}
    assert {clause.row for clause in CLAUSES} <= {rule.name for rule in ROWS}
    for rule in ROWS:
        assumed = [clause for clause in CLAUSES if clause.row == rule.name]
        if rule.name in plain and not assumed and rule.name != "decode.leave_out":
            assert (rule.when is TRUE) == (plain[rule.name].when is TRUE)


def test_no_protocol_knows_another() -> None:
    """The contract alone imports several of them."""
    for name in PROTOCOLS.keys() - {"room", "contract"}:
        source = Path(str(kvlatch.spec.__file__)).with_name(f"{name}.py").read_text()
        imported = {node.module for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)}
        assert not imported & {f"kvlatch.spec.{other}" for other in (*PROTOCOLS, "protocol")}, name
