"""The faults of the network: each one alone, what it makes possible, and that it makes nothing else possible."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kvlatch.proofs.search import explore
from kvlatch.spec.designs import DESIGNS
from kvlatch.spec.model import Instance, Machine
from kvlatch.spec.protocol import metadata, notice, phase, straggler
from kvlatch.spec.protocols import PROTOCOLS
from kvlatch.spec.schema import NETWORKS, Network, Property, World
from kvlatch.spec.terms import Field, Term

SETTLED = ("create", "hear_metadata", "write_w", "abort", "settle_failed", "clear_status", "clear_infos", "release")

NEEDS: dict[tuple[str, ...], Network] = {
    ("create", "hear_abort"): "lossy",
    ("hear_metadata", "create"): "early",
    ("hear_abort", "create"): "early",
    ("create", "hear_metadata", "write_w", "hear_metadata"): "doubling",
    ("create", "time_out", "hear_metadata"): "overdue",
    (*SETTLED, "hear_abort"): "overdue",
    (*SETTLED, "reuse", "hear_stale_abort"): "late",
}
"""The shortest runs that only one fault allows, and the disorderly network."""


def possible(run: Sequence[str], network: Network) -> bool:
    """The incident's design can take these steps in this network."""
    machine = Machine.of(DESIGNS["seed-control"], "locked", network, Instance(workers=1, chunks=1, requests=2))
    state = machine.initial()
    for name in run:
        actions = [action for action in machine.enabled(state) if action.name == name]
        if not actions:
            return False
        state = machine.step(state, actions[0])
    return True


def _reached(formula: Term) -> Property:
    return Property("reached", "some state is as the formula says", formula, broken="it is reached")


@pytest.mark.parametrize("run", NEEDS, ids=" ".join)
def test_a_fault_alone_makes_possible_what_no_other_does(run: tuple[str, ...]) -> None:
    """Early messages may overtake, so they too allow a notice without metadata; else each run takes its own fault."""
    allowed = {network for network in NETWORKS if possible(run, network)}
    overtakes = {"early"} if run == ("create", "hear_abort") else set()
    assert allowed == {NEEDS[run], "disorderly"} | overtakes


def test_what_is_lost_does_not_come_later() -> None:
    """Metadata that has been lost does not follow the notice; metadata that has been overtaken does."""
    overtaken = ("create", "hear_abort", "write_f", "abort_pop", "hear_metadata")
    assert [network for network in NETWORKS if possible(overtaken, network)] == ["early", "disorderly"]


def test_tcp_doubles_nothing() -> None:
    """Where the transport is TCP, the doubling network is the orderly one."""
    twice = _reached((metadata == "twice") | (notice == "twice"))
    for network in ("doubling", "disorderly"):
        machine = Machine.of(DESIGNS["sglang-0.5.23"], "split", network, Instance(workers=1, chunks=1))
        assert explore(machine, [twice]).length("reached") is None
        ours = Machine.of(DESIGNS["seed-control"], "split", network, Instance(workers=1, chunks=1))
        assert explore(ours, [twice]).length("reached") is not None


@pytest.mark.parametrize(
    ("network", "never"),
    [
        ("orderly", (notice != "none") & (metadata == "none")),
        ("lossy", (phase == "new") & (metadata != "none")),
        ("overdue", (notice != "none") & (metadata == "none")),
        ("late", (phase == "new") & (notice != "none")),
        ("early", straggler == "due"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_a_network_does_not_do_is_nowhere_reached(network: Network, never: Term) -> None:
    """In the whole space of two requests; in the disorderly network each of these is reached."""
    prop = _reached(never)
    sizes = Instance(workers=1, chunks=1, requests=2)
    design = DESIGNS["seed-control"]
    assert explore(Machine.of(design, "locked", network, sizes), [prop]).length("reached") is None
    assert explore(Machine.of(design, "locked", "disorderly", sizes), [prop]).length("reached") is not None


@pytest.mark.parametrize("name", PROTOCOLS)
def test_the_parts_of_a_world_are_parts_of_it(name: str) -> None:
    """A part has the sizes of its world and one fault of its network: letters of its own, and no other's."""
    protocol = PROTOCOLS[name]
    suffixes = [world.suffix for world in protocol.all_worlds]
    assert len(suffixes) == len(set(suffixes))
    for world in protocol.worlds:
        for part in world.parts:
            assert part.sizes == world.sizes
            assert _within(part, world, protocol.switches)


def _within(part: World, world: World, switches: Sequence[Field]) -> bool:
    (network,) = (switch for switch in switches if switch.name == "network")
    known = {part.network, world.network} <= set(network.labels)
    return known and (world.network == "disorderly" or part.network == "orderly")
