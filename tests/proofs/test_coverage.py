"""Nothing in the protocol is dead: every step happens, and every label is reached, in some run of some design."""

from __future__ import annotations

from collections import defaultdict

import attrs
import pytest

from kvlatch.proofs.search import Search, explore
from kvlatch.spec.designs import DESIGNS
from kvlatch.spec.model import Instance, Machine, build
from kvlatch.spec.properties import BY_NAME

ONE = Instance(workers=1, chunks=1, requests=2)


@pytest.fixture(scope="module")
def searches() -> list[Search]:
    """Every design with one worker, one chunk and two requests; early messages; a chunk that is not the last."""
    machines = [Machine.of(design, level, "late", ONE) for design in DESIGNS.values() for level in design.atomicities]
    machines.append(Machine.of(DESIGNS["latch"], "cas", "disorderly", ONE))
    machines.append(Machine.of(DESIGNS["sglang-0.5.19"], "split", "orderly", attrs.evolve(ONE, chunks=2, requests=1)))
    return [explore(machine, [BY_NAME["settlement"]]) for machine in machines]


def test_every_step_happens(searches: list[Search]) -> None:
    """A row that no design ever takes would be a row that proves nothing."""
    taken = {action.name for search in searches for action in search.taken}
    never = {action.name for action in build(ONE).actions} - taken
    # The designs that mark a chunk twice are published ones, and take no lock.
    assert never == {"write_t_again", "write_t_again.swap", "write_t_again.retry"}


def test_every_label_is_reached(searches: list[Search]) -> None:
    """A status, a phase or a program counter that no run has would be a typo; only a mutant releases pages twice."""
    reached = defaultdict[str, set[str]](set)
    for search in searches:
        for var in search.layout.machine.model.variables:
            for level in search.levels:
                column = search.layout.column(level.packed, var)
                reached[var.field.name] |= {var.labels[index] for index in set(column.tolist())}
    missing = {
        f"{var.field.name} = {label}"
        for var in build(ONE).variables
        for label in {*var.labels} - reached[var.field.name]
    }
    assert missing == {"pages = released twice"}
