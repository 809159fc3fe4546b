"""What a line says that was proved: computed from the instance, in words and as fields."""

from __future__ import annotations

import pytest

from kvlatch.proofs.worlds import bounds_of, scope_of, scope_of_machine
from kvlatch.spec.designs import DESIGNS
from kvlatch.spec.model import ANY, Instance, Machine, build
from kvlatch.spec.properties import BY_NAME
from kvlatch.spec.ranks import RANKS, Ranks
from kvlatch.spec.room import ROOM


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        (Instance(ANY, ANY, ANY), "any number of rooms, workers, chunks and requests on a room id"),
        (Instance(ANY, ANY, 2), "any number of rooms, workers and chunks; 2 requests on a room id"),
        (Instance(ANY, 3, 1), "any number of rooms and workers; 3 chunks, 1 request on a room id"),
        (Instance(1, 2, 2), "one room, one worker; 2 chunks, 2 requests on a room id"),
        (Instance(3, 2, ANY), "one room, up to 3 workers, any number of requests on a room id; 2 chunks"),
    ],
    ids=str,
)
def test_a_scope_in_words(sizes: Instance, said: str) -> None:
    """What there is any number of comes first, then what is counted."""
    network = "; disorderly network" if said.endswith("room id") and "; " not in said else ", disorderly network"
    assert scope_of(ROOM, sizes, "disorderly") == said + network


def test_ranks_are_of_no_room() -> None:
    assert scope_of(RANKS, Ranks(ANY), "orderly") == "any number of ranks; orderly network"
    assert scope_of(RANKS, Ranks(3), "orderly") == "up to 3 ranks; orderly network"
    assert scope_of(RANKS, Ranks(1), "orderly") == "one rank; orderly network"


@pytest.mark.parametrize(
    ("sizes", "rooms", "fairness"),
    [
        (Instance(ANY, ANY, ANY), "any", "weak fairness, and strong fairness of take and take_stale"),
        (Instance(ANY, 2, 1), "any", "weak fairness, and strong fairness of take"),
        (Instance(2, 2, 2), 1, "weak fairness"),
    ],
    ids=str,
)
def test_a_scope_as_fields(sizes: Instance, rooms: object, fairness: str) -> None:
    """Of liveness with the fairness that it needs: strong, where a worker may be elsewhere whenever it is needed."""
    machine = Machine.of(DESIGNS["latch"], "locked", "late", sizes)
    counts = {"workers": sizes.workers or "any", "chunks": sizes.chunks or "any", "requests": sizes.requests or "any"}
    expected = {**counts, "rooms": rooms, "network": "late"}
    assert bounds_of(machine, BY_NAME["settlement"]) == {**expected, "fairness": fairness}
    assert bounds_of(machine, BY_NAME["no-pin"]) == {**expected, "fairness": None}


def test_open_switches_are_about_no_network() -> None:
    model = build(Instance())
    with pytest.raises(TypeError, match="about no network"):
        scope_of_machine(Machine(model, ()))
