"""An unknown verdict says which step breaks which lemma, in which two states, and how far the search went."""

from __future__ import annotations

import json

import attrs
import pytest

from kvlatch.commands import matrix
from kvlatch.proofs.gaps import gap
from kvlatch.proofs.induction import Invariant, Theory, keep
from kvlatch.proofs.obligations import Obligation
from kvlatch.proofs.parametric import AnyNumber
from kvlatch.proofs.prove import decide
from kvlatch.proofs.solvers import discharge
from kvlatch.proofs.verdicts import Proved, Refuted, Unknown
from kvlatch.proofs.worlds import EVERYTHING
from kvlatch.spec.designs import DESIGNS
from kvlatch.spec.lemmas import LEMMAS
from kvlatch.spec.model import ANY, Machine
from kvlatch.spec.protocol import phase
from kvlatch.spec.protocols import PROTOCOLS
from kvlatch.spec.room import ROOM
from kvlatch.spec.schema import Lemma, Protocol

UNDRAINED = ROOM.with_rows(
    attrs.evolve(row, when=phase == "releasing") if row.name == "release" else row for row in ROOM.rows
)
"""The room whose pages are released before the workers have left: the lemma "drained" does not hold any more."""


GENTLE = attrs.evolve(UNDRAINED, worlds=ROOM.worlds[:2])
"""The same, searched in two worlds only, which is quicker."""


def invariant(workers: int, protocol: Protocol = ROOM, lemmas: tuple[Lemma, ...] = LEMMAS) -> Invariant:
    machine = Machine.of(
        DESIGNS["latch"],
        "locked",
        EVERYTHING.network,
        (EVERYTHING if workers == ANY else ROOM.bounded).instance(workers),
        protocol,
    )
    theory = (AnyNumber if workers == ANY else Theory).of(machine)
    return Invariant(theory, tuple(map(theory.claim, lemmas)))


@pytest.mark.parametrize("workers", [1, ANY])
def test_a_gap_is_a_step_from_a_state_that_the_lemmas_allow(workers: int) -> None:
    """The step is enabled before, sets what the second line says, and breaks the lemma that is named."""
    undrained = invariant(workers, UNDRAINED)
    (release,) = (o for o in undrained.inductive if o.name == "step release")
    found = gap(undrained, release)
    assert found.lemma == "drained"
    assert (found.before["phase"], found.after["phase"]) == ("releasing", "done")
    assert found.before["worker_0"] not in ("idle", "taken")
    assert found.lines[0] == "step release does not keep the lemma 'drained'"
    assert len(found.lines) == 3


def test_a_gap_of_one_state_has_no_second() -> None:
    """Where lemmas do not exclude a bad state, that state is shown, and no step."""
    fewer = invariant(1, lemmas=LEMMAS[:3])
    prop = ROOM.prop("released-once")
    found = gap(fewer, fewer.obligations(prop)[-1])
    assert (found.lemma, found.after) == (None, {})
    assert found.before["pages"] == "released twice"


def test_a_lemma_that_is_false_at_first_is_named() -> None:
    wrong = invariant(1, lemmas=(Lemma("never new", phase != "new"),))
    assert gap(wrong, wrong.starts).lemma == "never new"


def test_what_z3_cannot_decide_shows_no_state() -> None:
    """An obligation that is discharged has no gap either."""
    sound = invariant(1)
    found = gap(sound, Obligation("step create", sound.inductive[0].assertions))
    assert (found.before, found.after) == ({}, {})
    assert str(found) == "step create is not discharged: the solvers cannot decide it"


def test_a_release_that_does_not_drain_leaves_no_bare_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each unknown names the step and the lemma, and the worlds that were searched to the end; one cell is refuted."""
    monkeypatch.setitem(PROTOCOLS, "room", GENTLE)
    (cells,) = decide("latch", "locked", [1], ["no-pin", "pages-held", "no-resurrection"])
    pin, held, resurrection = (cell.verdict for cell in cells)
    assert isinstance(held, Refuted)
    assert isinstance(resurrection, Proved)
    assert resurrection.bounds["workers"] == "any"
    assert isinstance(pin, Unknown)
    assert pin.gap is not None
    assert pin.gap.lemma == "drained"
    assert [world.partition(" (")[0] for world in pin.searched] == [world.name for world in GENTLE.worlds]
    assert all(world.endswith("to the end") for world in pin.searched)
    said = json.loads(json.dumps(matrix.as_json(cells[0])))
    assert said["gap"]["obligation"] == "step release"
    assert said["searched"] == list(pin.searched)
    assert "step release does not keep the lemma 'drained'\n  before: " in pin.reason


def test_with_fewer_workers_the_gap_is_that_of_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """What could not be proved for any number is not tried again, and yet explained."""
    monkeypatch.setitem(PROTOCOLS, "room", GENTLE)
    for cells in decide("latch", "locked", [2, 1], ["no-pin"]):
        assert isinstance(cells[0].verdict, Unknown)
        assert cells[0].verdict.gap is not None


def test_what_is_kept_is_kept_for_any_number() -> None:
    """Houdini's algorithm drops what the changed row breaks, for any number of workers as for one."""
    names = {
        workers: [claim.lemma.name for claim in keep(invariant(workers, UNDRAINED).theory, LEMMAS).claims]
        for workers in (1, ANY)
    }
    assert "drained" not in names[ANY]
    assert set(names[ANY]) <= set(names[1])
    assert len(names[ANY]) > len(LEMMAS) / 2
    kept = keep(invariant(ANY, UNDRAINED).theory, LEMMAS)
    assert all(answer.discharged for answer in discharge(kept, [kept.starts, *kept.inductive]))
