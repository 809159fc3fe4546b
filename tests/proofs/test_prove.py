"""How a row is decided, and that a contradiction between engines is never a verdict."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from kvlatch.proofs import prove
from kvlatch.proofs.prove import Cell, Disagreement, Row, UnknownName, decide, design_of, select, trace_name, trace_of
from kvlatch.proofs.verdicts import Proved, Refuted, Unknown
from kvlatch.proofs.worlds import WORLDS
from kvlatch.spec.lemmas import BY_NAME as BY_LEMMA
from kvlatch.spec.protocols import PROTOCOLS
from kvlatch.spec.room import ROOM
from kvlatch.spec.traces import verify

MINE = """
import attrs
from kvlatch.spec.designs import DESIGNS
from kvlatch.spec.merges import failed_else_max
DESIGN = attrs.evolve(DESIGNS["latch"], name="mine", {change})
NUMBER = 7
"""


def mine(directory: Path, monkeypatch: pytest.MonkeyPatch, module: str, change: str) -> str:
    """A design of the reader's own, in a module in the current directory: ``latch`` with one answer changed."""
    (directory / f"{module}.py").write_text(MINE.format(change=change), encoding="utf-8")
    monkeypatch.chdir(directory)
    monkeypatch.syspath_prepend(directory)
    return f"{module}:DESIGN"


@pytest.mark.parametrize(
    ("module", "change", "atomicity", "broken"),
    [
        ("no_lock", 'atomicities=("split",)', "split", "terminal-sticky"),
        ("no_tombstone", 'clear="absent"', "locked", "no-ghost"),
        ("no_drain", 'release="at once"', "locked", "pages-held"),
        ("no_count", 'success="last"', "locked", "success-complete"),
        ("no_standing", 'tell="own"', "locked", "one-outcome"),
        ("max_again", "merge=failed_else_max", "locked", "no-resurrection"),
    ],
)
def test_a_changed_latch_breaks_what_the_change_was_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, change: str, atomicity: str, broken: str
) -> None:
    """One answer changed: the right property is refuted, by a run that the spec takes, and the others are decided."""
    name = mine(tmp_path, monkeypatch, module, change)
    ((first, second),) = decide(name, atomicity, [2], [broken, "released-once"])  # type: ignore[arg-type]  # as from the command line
    assert isinstance(first.verdict, Refuted)
    assert isinstance(second.verdict, Proved)
    verify(trace_of(first), design_of(name))


def test_latch_is_proved_for_one_and_for_two_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proof for two workers is one for any number, is passed on to one, and says so.

    Here one lemma is enough; but not to take all older requests as one, so no more than two are claimed.
    """
    monkeypatch.setitem(PROTOCOLS, "room", attrs.evolve(ROOM, lemmas=(BY_LEMMA["first terminal Failed"],)))
    two, one = decide("latch", "locked", [2, 1], ["no-resurrection"])
    assert [type(cell.verdict) for cell in (*two, *one)] == [Proved] * 2
    assert {cell.verdict.scope for cell in (*two, *one) if isinstance(cell.verdict, Proved)} == {
        "any number of rooms, workers and chunks; 2 requests on a room id, disorderly network"
    }


def test_the_gentlest_world_is_named() -> None:
    """A lost wake-up takes an early message and an unlocked update; in an orderly network there is none."""
    ((cell,),) = decide("sglang-0.5.23", "split", [1], ["no-lost-wakeup"])
    assert isinstance(cell.verdict, Refuted)
    assert cell.verdict.world.network == "early"
    assert cell.verdict.world in WORLDS[1].parts
    assert [name for name, _ in cell.verdict.run][-1] == "create.store"


def test_thorough_asks_z3_for_the_length() -> None:
    """A length that Z3 does not confirm is a disagreement, not a verdict."""
    ((cell,),) = decide("seed-control", "locked", [1], ["no-ghost"], thorough=True)
    assert isinstance(cell.verdict, Refuted)
    row = prove._Row(Row("seed-control", "locked", 1), ROOM, {})
    longer = Refuted(WORLDS[0], (*cell.verdict.run, ("take", {"worker": 0, "chunk": 0})))
    row.decided["no-ghost"] = Cell(row.row, "no-ghost", longer, 0)
    with pytest.raises(Disagreement, match="8 steps by search, 7 by Z3"):
        row.confirm(thorough=True)


def test_a_proof_of_what_the_search_breaks_is_a_disagreement() -> None:
    """The search goes on after a proof, and contradicts it if it can."""
    row = prove._Row(Row("seed-control", "locked", 1), ROOM, {})
    proof = Proved("nothing", (), {})
    row.decided["no-ghost"] = Cell(row.row, "no-ghost", proof, 0)
    with pytest.raises(Disagreement, match="no-ghost is proved, and broken in 7 steps"):
        row.search(WORLDS[0], to_the_end=True)
    with pytest.raises(Disagreement, match="proved for more workers"):
        row.inherit({"no-pin": proof})


def test_what_no_engine_decides_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a lemma there is no proof, and without a counterexample no refutation."""
    monkeypatch.setitem(PROTOCOLS, "room", attrs.evolve(ROOM, lemmas=()))
    ((cell,),) = decide("latch", "locked", [1], ["no-ghost"])
    assert isinstance(cell.verdict, Unknown)
    with pytest.raises(ValueError, match="not refuted"):
        trace_of(cell)


def test_names_that_nothing_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong name is one line that says what is known."""
    name = mine(tmp_path, monkeypatch, "wrong_names", "guard='fails'")
    for wrong in ("nope", "no.such:DESIGN", "wrong_names:NOPE", "wrong_names:NUMBER"):
        with pytest.raises(UnknownName) as error:
            design_of(wrong)
        assert "\n" not in str(error.value)
    assert design_of(name).name == "mine"
    with pytest.raises(UnknownName, match="latch claims no split"):
        select(["latch"], ["split"], [])


def test_the_rows_of_the_matrix() -> None:
    """Every design of every protocol, in every atomicity that it claims, with each number of workers or ranks."""
    rows = select([], [], [])
    for protocol in PROTOCOLS.values():
        ours = [row for row in rows if row.protocol is protocol]
        claimed = sum(len(design.atomicities) for design in protocol.designs.values())
        assert len(ours) == claimed * len(protocol.counts)
        assert {row.workers for row in ours} == set(protocol.counts)


def test_file_names_say_what_does_not_go_without_saying() -> None:
    """Locked and one worker go without saying."""
    refuted = Refuted(WORLDS[0], ())
    assert trace_name(Cell(Row("fix-a", "locked", 1), "no-pin", refuted, 0)) == "fix-a.no-pin.itf.json"
    assert trace_name(Cell(Row("fix-a", "split", 2), "no-pin", refuted, 0)) == "fix-a.split.2-workers.no-pin.itf.json"
