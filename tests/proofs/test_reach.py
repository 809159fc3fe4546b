"""The labels that a variable can have: never fewer than the search finds, and few enough for three workers."""

from __future__ import annotations

import numpy as np
import pytest

from kvlatch.proofs import search
from kvlatch.proofs.columns import Layout
from kvlatch.proofs.reach import Possible, possible
from kvlatch.proofs.search import explore
from kvlatch.spec.designs import DESIGNS
from kvlatch.spec.model import Instance, Machine
from kvlatch.spec.properties import PROPERTIES
from kvlatch.spec.protocol import phase, status, wire, worker
from kvlatch.spec.schema import Network, Sizes
from kvlatch.spec.terms import Var

WORLDS: list[tuple[Network, Sizes]] = [
    ("orderly", Instance(workers=1, chunks=2)),
    ("disorderly", Instance(workers=2, chunks=1)),
    ("late", Instance(workers=1, chunks=1, requests=2)),
]
DESIGN = pytest.mark.parametrize(
    ("design", "level"), [(d.name, level) for d in DESIGNS.values() for level in d.atomicities]
)


def machine(design: str, level: str, network: Network, instance: Sizes) -> Machine:
    known = DESIGNS[design]
    (atomicity,) = (each for each in known.atomicities if each == level)
    return Machine.of(known, atomicity, network, instance)


def everything(on: Machine) -> dict[Var, frozenset[int]]:
    return {var: frozenset(range(len(var.labels))) for var in on.model.variables}


@DESIGN
@pytest.mark.parametrize(("network", "instance"), WORLDS, ids=str)
def test_no_label_that_is_reached_is_excluded(
    monkeypatch: pytest.MonkeyPatch, design: str, level: str, network: Network, instance: Sizes
) -> None:
    """A search with a digit for every label reaches the same number of states, and only labels that were foreseen."""
    on = machine(design, level, network, instance)
    foreseen = possible(on)
    narrow = explore(on, PROPERTIES)
    monkeypatch.setattr(search, "possible", everything)
    wide = explore(on, PROPERTIES)
    assert narrow.states == wide.states
    assert {name: depth for name, (depth, _) in narrow.violations.items()} == {
        name: depth for name, (depth, _) in wide.violations.items()
    }
    for var in on.model.variables:
        reached = {int(label) for level_ in wide.levels for label in np.unique(wide.layout.column(level_.packed, var))}
        assert reached <= foreseen[var], var.name


def test_what_a_design_cannot_do_is_excluded() -> None:
    """A locked design never stands between a read and a store, and an orderly network tells decode one thing only."""
    labels = {
        (var.field, label)
        for var, indices in possible(machine("latch", "locked", "orderly", Instance())).items()
        for label in (var.labels[index] for index in indices)
    }
    assert (worker, "write_t*") not in labels
    assert (worker, "transferring") in labels
    assert (phase, "done") in labels
    assert (status, "Absent") in labels
    assert (wire, "Success") in labels


def test_three_workers_fit() -> None:
    """With a digit for every label a state of three workers and two chunks needs 65 bits."""
    found = explore(machine("latch", "locked", "orderly", Instance(workers=3)), PROPERTIES)
    assert found.states == 12_833
    assert not found.violations


def test_a_label_that_was_not_foreseen_stops_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the sets were too small, the search would say so, and not go on with a wrong state."""
    on = machine("latch", "locked", "orderly", Instance(workers=1, chunks=1))
    small = possible(on)
    (at,) = (var for var in on.model.variables if var.field is phase)
    monkeypatch.setattr(search, "possible", lambda _: {**small, at: frozenset({0, 1})})
    with pytest.raises(AssertionError, match="phase has a label that it was taken not to have"):
        explore(on, PROPERTIES)
    with pytest.raises(AssertionError, match="phase has a label"):
        Layout.of(on, {**small, at: {0}}).pack({**on.initial(), at: 3})


def test_sets_of_truths() -> None:
    """The connectives on what can be true, what can be false, and what can be either."""
    yes, no, either = frozenset({True}), frozenset({False}), frozenset({True, False})
    algebra = Possible({}, ())
    assert algebra.all_([yes, either]) == either
    assert algebra.all_([either, no]) == no
    assert algebra.all_([]) == yes
    assert algebra.any_([no, either]) == either
    assert algebra.any_([either, yes]) == yes
    assert algebra.any_([]) == no
    assert algebra.not_(either) == either
    assert algebra.where(either, frozenset({1}), frozenset({2})) == {1, 2}
    assert algebra.where(no, frozenset({1}), frozenset({2})) == {2}
    with pytest.raises(TypeError, match="any number"):
        algebra.every(yes, "worker")
