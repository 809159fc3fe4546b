"""The designs: each a row of positions, checked when it is written down."""

from __future__ import annotations

import attrs
import pytest

from kvlatch.spec import designs, merges
from kvlatch.spec.designs import DESIGNS, SWITCHES, Design
from kvlatch.spec.merges import Kept, first_terminal_wins
from kvlatch.spec.status import KVPoll
from kvlatch.spec.terms import Field

RUNS = {"rows", "without", "lemmas", "without_lemmas", "name", "merge", "atomicities", "says"}
SEED = DESIGNS["seed-control"]


def differences(design: Design) -> dict[str, object]:
    """What a design answers otherwise than ``seed-control``."""
    ours, theirs = attrs.asdict(design), attrs.asdict(SEED)
    return {name: ours[name] for name in ours if ours[name] != theirs[name] and name not in ("name", "says")}


def test_every_switch_is_a_question_to_each_design() -> None:
    """A design has one attribute for each switch, but for the two that belong to a run: atomicity and network."""
    asked = {switch.name for switch in SWITCHES} - {"atomicity", "network"}
    assert {attribute.name for attribute in attrs.fields(Design)} - RUNS == asked


def test_every_switch_of_the_module_is_listed() -> None:
    """``SWITCHES`` lists each switch that the module defines."""
    assert {field.name for field in vars(designs).values() if isinstance(field, Field)} == {
        switch.name for switch in SWITCHES
    }


@pytest.mark.parametrize("design", DESIGNS.values(), ids=list(DESIGNS))
def test_design_says_what_it_is(design: Design) -> None:
    """Every design stands under its own name, has a sentence, and claims at least one atomicity."""
    assert DESIGNS[design.name] is design
    assert design.says.endswith(".")
    assert design.atomicities


@pytest.mark.parametrize("design", DESIGNS.values(), ids=list(DESIGNS))
def test_positions_are_indices_of_the_labels(design: Design) -> None:
    """In each atomicity and network, each switch is in the position that the design names."""
    for level in design.atomicities:
        positions = design.positions(level, "late")
        assert designs.atomicity.labels[positions[designs.atomicity]] == level
        assert designs.network.labels[positions[designs.network]] == "late"
        for switch in SWITCHES[2:]:
            assert switch.labels[positions[switch]] == getattr(design, switch.name)


def test_the_fixes_change_what_they_say() -> None:
    """Fix A is a merge, Fix B a skip guard, and both together are nothing else."""
    assert differences(DESIGNS["fix-a"]) == {"merge": first_terminal_wins}
    assert differences(DESIGNS["fix-b"]) == {"guard": "fails"}
    assert differences(DESIGNS["fix-ab"]) == {"merge": first_terminal_wins, "guard": "fails"}


def test_what_is_not_said_is_as_in_seed_control() -> None:
    """A design of one's own needs a merge and its atomicities, and differs from ``seed-control`` in nothing else."""
    assert differences(Design("mine", merges.failed_else_max, ("locked", "split"))) == {}


def test_only_latch_remembers_generations_and_drains() -> None:
    """Of all designs, only the recommended ones leave tombstones, drain, count chunks and tell what stands."""
    for switch, position in {
        "clear": "tombstone",
        "release": "drained",
        "success": "counted",
        "tell": "standing",
    }.items():
        assert [name for name, design in DESIGNS.items() if getattr(design, switch) == position] == [
            "latch", "latch-local",
        ]  # fmt: skip


def test_unknown_position_is_refused() -> None:
    """A position that its switch does not have raises, and the error lists those that it has."""
    with pytest.raises(TypeError, match=r"^guard is never 'maybe': it is one of skips, fails$"):
        Design("mine", first_terminal_wins, ("locked",), guard="maybe")
    with pytest.raises(TypeError, match=r"^atomicity is never 'loose'"):
        Design("mine", first_terminal_wins, ("loose",))  # type: ignore[arg-type]  # the point


def test_merge_with_a_hole_is_refused() -> None:
    """A merge that does not answer every cell with a status, or with KEEP, is no merge."""

    def hole(current: KVPoll | None, incoming: KVPoll) -> KVPoll | Kept:
        return None if current is None else incoming  # type: ignore[return-value]  # the point

    with pytest.raises(ValueError, match=r"^merge hole: Absent <- Failed gives None"):
        Design("mine", hole, ("locked",))
