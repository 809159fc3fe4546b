"""The properties: each a sentence, a formula about one room, and what a trace says when it breaks."""

from __future__ import annotations

import re
from string import Formatter

import pytest

from kvlatch.spec.designs import DESIGNS, SWITCHES
from kvlatch.spec.model import Instance, Machine, named
from kvlatch.spec.properties import BY_NAME, PROPERTIES
from kvlatch.spec.protocol import STATE, pages, phase
from kvlatch.spec.schema import Property
from kvlatch.spec.terms import fields, free

EACH = pytest.mark.parametrize("prop", PROPERTIES, ids=list(BY_NAME))
LATCH = DESIGNS["latch"]


def test_there_are_twelve_with_names_of_their_own() -> None:
    """Twelve properties, each found under its name."""
    assert len(PROPERTIES) == len(BY_NAME) == 12
    assert all(BY_NAME[prop.name] is prop for prop in PROPERTIES)


@EACH
def test_property_is_one_sentence(prop: Property) -> None:
    """A property says what it claims in a sentence."""
    assert prop.says[0].isupper()
    assert prop.says.endswith(".")


@EACH
def test_property_speaks_of_one_room(prop: Property) -> None:
    """The formula reads fields of the state and switches, and leaves no worker and no chunk open."""
    assert fields(prop.bad) <= {*STATE, *SWITCHES}
    assert free(prop.bad) <= {"room", "switch"}


@EACH
def test_initial_state_is_good(prop: Property) -> None:
    """Before anything has happened no property is broken."""
    machine = Machine.of(LATCH, "locked", "orderly", Instance())
    assert not machine.holds(machine.model.claim(prop.bad), machine.initial())


@EACH
def test_violation_reads_as_a_sentence(prop: Property) -> None:
    """What a trace says at its end names nothing but the room's fields and a summary of its chunks."""
    machine = Machine.of(LATCH, "locked", "orderly", Instance())
    state = named(machine, machine.initial()) | {"chunks": "1 done, 1 lost"}
    text = prop.broken.format(**state)
    names = [name for _, name, _, _ in Formatter().parse(prop.broken) if name]
    assert "{" not in text
    assert all(state[name] in text for name in names)


@EACH
def test_property_names_public_reports(prop: Property) -> None:
    """Every property would have caught at least two public bugs, named as project#number."""
    assert len(set(prop.reports)) == len(prop.reports) >= 2
    assert all(re.fullmatch(r"[A-Za-z][\w.-]*#\d+", report) for report in prop.reports)


def test_profile_belongs_to_the_one_property_that_takes_sides() -> None:
    """Only whether Failed may replace Success depends on the reading of "terminal"; the rest holds in both."""
    assert {prop.name: prop.profile for prop in PROPERTIES if prop.profile != "both"} == {
        "success-not-overwritten": "first terminal wins"
    }


@pytest.mark.parametrize(
    ("place", "kept", "settled"),
    [
        ("new", "none", True), ("boot", "none", False), ("inflight", "held", False), ("releasing", "held", False),
        ("done", "none", True), ("done", "released", True), ("done", "held", False),
    ],
)  # fmt: skip
def test_a_request_settles_with_its_pages(place: str, kept: str, settled: bool) -> None:
    """A request that is done has settled only if its pages are not still held; one that never came had none."""
    machine = Machine.of(LATCH, "locked", "orderly", Instance())
    by_name = {var.name: var for var in machine.model.variables}
    state = {**machine.initial(), by_name["phase"]: phase.index(place), by_name["pages"]: pages.index(kept)}
    assert machine.holds(machine.model.claim(BY_NAME["settlement"].bad), state) is not settled


def test_only_settlement_is_liveness() -> None:
    """Everything else is broken by a single state."""
    assert [prop.name for prop in PROPERTIES if prop.kind == "liveness"] == ["settlement"]
