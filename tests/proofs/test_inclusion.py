"""Plays of published managers are runs of their designs' rows, but for the kinds that are listed; and of no other's."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import permutations
from typing import Final

import attrs
import pytest

from kvlatch.proofs import lacks
from kvlatch.proofs.inclusion import Follower, Included, include
from kvlatch.proofs.search import explore
from kvlatch.reference.published.sglang.lives import Plays, lives
from kvlatch.reference.published.sglang.plays import REST, Play
from kvlatch.reference.published.sglang.scenarios import ABORT, BREAK, CREATE, METADATA, NOTICE, POLL, SEND_LAST
from kvlatch.reference.published.sglang.scripts import Observation, check
from kvlatch.reference.published.sglang.subjects import resolve
from kvlatch.spec.designs import DESIGNS
from kvlatch.spec.model import Machine
from kvlatch.spec.properties import PROPERTIES
from kvlatch.spec.protocols import protocol_of
from kvlatch.spec.room import Instance

SAYS_SUCCESS: Final = ("sglang-0.5.23", "mooncake-0.5.15.post1")
"""There a word to decode says so; in NIXL up to 0.5.19 the transfer itself does."""
FOUND: Final = {
    "sglang-0.5.23": {"failed-pops", "record-fails", "cleared-is-left", "nobody-to-tell", "bootstrap-dies"},
    "sglang-0.5.19": {"failure-untold", "reads-again", "bootstrap-dies"},
    "sglang-0.5.15.post1": {"failure-untold", "reads-again", "bootstrap-dies", "notice-kills"},
    "mooncake-0.5.15.post1": {"overtaken-keeps", "bootstrap-dies", "worker-dies"},
}
"""The kinds of differences in all plays with one preemption, by design."""


def subject(design: str, every: int) -> Plays:
    """Plays of the version that the design describes: all lives without a preemption, and every n-th play with one."""
    name, _, version = design.partition("-")
    return Plays(resolve(version), "mooncake" if name == "mooncake" else "nixl", every)


@cache
def sample(design: str) -> tuple[Play, ...]:
    """Few plays."""
    return tuple(subject(design, 23))


def included(own: str, design: str, plays: tuple[Play, ...] | Plays) -> Included:
    """What becomes of a version's plays on the rows of any design, with the kinds that its own is known to lack."""
    return include(DESIGNS[design], plays, hears_success=own in SAYS_SUCCESS, known=lacks.of(own))


# --------------------------------------------------------------------------------------------------------------------
# Offline


def test_there_are_at_most_ten_kinds_and_each_says_why() -> None:
    assert len(lacks.KINDS) <= 10
    assert all(kind.why and kind.designs and (kind.rows or kind.raises) for kind in lacks.KINDS)
    assert {kind.name for kind in lacks.KINDS} == set().union(*FOUND.values())
    for design, found in FOUND.items():
        assert {kind.name for kind in lacks.of(design)} == found


def test_lives_are_those_of_one_request_with_its_messages_in_order() -> None:
    known = list(lives())
    assert len(known) == len(set(known))
    for life in known:
        check((*life, *REST))
        assert life.count(CREATE) == 1
        assert life.index(CREATE) == 0
        assert all(life.count(step) <= 1 for step in life if step is not CREATE)
        assert NOTICE not in life or life.index(METADATA) < life.index(NOTICE)
        if ABORT in life and SEND_LAST in life:
            assert not life.index(POLL) < life.index(ABORT) < life.index(SEND_LAST)
    assert any(BREAK in life and ABORT in life for life in known)


def uneventful() -> Play:
    """A request that is sent and settles, as 0.5.23 shows it."""
    script = (CREATE, METADATA, POLL, SEND_LAST, *REST[:2])

    def seen(status: str, **more: object) -> Observation:
        return Observation(status, **({"infos": False, "value": None, "held": False, "error": None} | more))  # type: ignore[arg-type]  # members by name

    one = {"created": 1}
    told = {"told": ((1, "Success"),), "chunks": ((1, "done"),)}
    return Play(script, (
        seen("Bootstrapping", **one),
        seen("WaitingForInput", infos=True, **one),
        seen("WaitingForInput", infos=True, value="WaitingForInput", **one),
        seen("WaitingForInput", infos=True, inflight=1, chunks=((1, "queued"),), **one),
        seen("Success", inflight=1, **told, **one),
        seen("Absent", ended=((1, "Success"),), released=(1,), **told, **one),
    ))  # fmt: skip


@pytest.mark.parametrize("design", [name for name, one in DESIGNS.items() if "split" in one.atomicities])
def test_a_request_without_incident_is_a_run_of_every_design(design: str) -> None:
    follower = Follower(DESIGNS[design])
    assert follower.follow(uneventful()) is None
    assert 0 < len(follower.met) < follower.reachable()
    assert len(follower.steps) == len(uneventful().script)


@pytest.mark.parametrize(
    ("number", "wrong"),
    [
        (0, {"status": "WaitingForInput"}),
        (1, {"infos": False}),
        (2, {"value": "Bootstrapping"}),
        (2, {"value": "Failed"}),
        (3, {"chunks": ()}),
        (3, {"inflight": 0}),
        (4, {"told": ()}),
        (4, {"told": ((1, "Success"), (1, "Failed"))}),
        (4, {"chunks": ((1, "flying"),)}),
        (4, {"status": "Failed"}),
        (4, {"infos": True}),
        (4, {"error": "KeyError: 7"}),
        (5, {"ended": ((1, "Failed"),)}),
        (5, {"released": ()}),
    ],
)
def test_what_is_seen_otherwise_is_a_difference_at_that_step(number: int, wrong: dict[str, object]) -> None:
    """No kind explains it, either, but that without metadata nobody is told."""
    right = uneventful()
    seen = list(right.seen)
    seen[number] = attrs.evolve(seen[number], **wrong)  # type: ignore[arg-type]  # members by name
    design = DESIGNS["sglang-0.5.23"]
    difference = Follower(design).follow(Play(right.script, seen))
    assert difference is not None
    assert difference.number == number
    assert len(include(design, [Play(right.script, seen)], hears_success=True).new) == 1


def broken(design: str, network: str, *, with_kinds: bool) -> dict[str, int]:
    """In how many steps each property is broken, by one request of one chunk; with the rows of the kinds or without."""
    rows = tuple(row for kind in lacks.of(design) for row in kind.rows) if with_kinds else ()
    sizes = Instance(workers=1, chunks=1, requests=1 if network == "disorderly" else 2)
    changed = attrs.evolve(DESIGNS[design], rows=rows)
    machine = Machine.of(changed, "split", network, sizes, protocol_of(changed))  # type: ignore[arg-type]  # one of NETWORKS
    return {name: depth for name, (depth, _) in explore(machine, PROPERTIES).violations.items()}


@pytest.mark.parametrize(
    ("design", "network"),
    [
        ("sglang-0.5.23", "disorderly"),
        *(
            pytest.param(design, network, marks=pytest.mark.thorough)
            for design in FOUND
            for network in ("disorderly", "orderly", "late")
        ),
    ],
)
def test_no_verdict_hangs_on_the_rows_that_are_lacking(design: str, network: str) -> None:
    """With them, the same properties are broken, in as many steps."""
    assert broken(design, network, with_kinds=True) == broken(design, network, with_kinds=False) != {}


# --------------------------------------------------------------------------------------------------------------------
# Published managers


def pairs() -> Iterator[tuple[str, str]]:
    """Each version's design with those of the others, and the newest with the incident's."""
    yield "sglang-0.5.23", "seed-control"
    yield from permutations(FOUND, 2)


@pytest.mark.network
@pytest.mark.parametrize("design", FOUND)
def test_sampled_plays_are_runs_of_their_design(design: str) -> None:
    found = included(design, design, sample(design))
    assert found.plays > 60
    assert found.new == (), f"{found}\n{found.new[0]}"
    assert set(found.kinds) <= FOUND[design]


@pytest.mark.network
@pytest.mark.parametrize(("own", "other"), list(pairs()))
def test_sampled_plays_are_no_runs_of_another_design(own: str, other: str) -> None:
    """Not even with all that its own design is known to lack."""
    assert included(own, other, sample(own)).new


@pytest.mark.network
@pytest.mark.thorough
@pytest.mark.parametrize("design", FOUND)
def test_all_plays_are_runs_of_their_design(design: str) -> None:
    """But for the kinds that are listed, each of which is met."""
    found = included(design, design, subject(design, 1))
    print(found)
    assert found.new == (), f"{found}\n{found.new[0]}"
    assert set(found.kinds) == FOUND[design] == set(found.shortest)
