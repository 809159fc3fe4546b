"""The protocols around the room: what each design breaks, what each switch and lemma is for, and that every row fires.

The figures are those of a search in the protocol's own worlds, to the end, or in the disorderly ones until it breaks.
"""

from __future__ import annotations

from functools import cache

import pytest

from kvlatch.proofs.induction import Invariant
from kvlatch.proofs.mutants import MUTANTS
from kvlatch.proofs.mutation import Mutant
from kvlatch.proofs.parametric import AnyNumber
from kvlatch.proofs.search import Search, explore
from kvlatch.proofs.verdicts import Case, Proved, earn
from kvlatch.spec.contract import CONTRACT
from kvlatch.spec.decode import DECODE
from kvlatch.spec.lease import LEASE
from kvlatch.spec.model import ANY, Machine
from kvlatch.spec.router import ROUTER
from kvlatch.spec.schema import Protocol, Rule
from kvlatch.spec.stages import STAGES

BROKEN = {
    "decode-latch": {},
    "decode-at-once": {"decode-pages-held": 6},
    "decode-impatient": {"decode-pages-held": 7},
    "decode-fenced": {},
    "decode-outlived": {"decode-pages-held": 7},
    "decode-hasty-ack": {"decode-pages-held": 10},
    "decode-ack-cleared": {"decode-settles": 7},
    "decode-posts-on": {"decode-pages-held": 10},
    "decode-forgets": {"decode-pages-held": 10},
    "decode-notice-once": {"decode-settles": 6},
    "decode-success-only": {"failure-told": 5},
    "decode-one-shot": {"failure-told": 5},
    "decode-hasty-report": {"decode-complete": 8, "decode-pages-held": 9},
    "decode-counts-all": {"no-false-timeout": 10},
    "decode-counts-any": {"decode-complete": 8, "decode-settles": 11},
    "decode-no-timer": {"decode-settles": 3},
    "decode-finishes": {"decode-complete": 2, "decode-settles": 5},
    "decode-no-conclusion": {"no-false-timeout": 10},
    "decode-clock-first": {"no-false-timeout": 9},
    "decode-late-heartbeat": {"decode-sticky": 6},
    "decode-no-heartbeat": {"decode-settles": 5},
    "lease-latch": {},
    "lease-unchecked": {"lease-read-whole": 8},
    "lease-checked-early": {"lease-read-whole": 9},
    "lease-from-answer": {"lease-honoured": 5, "lease-read-whole": 8},
    "lease-no-margin": {"lease-honoured": 5, "lease-read-whole": 8},
    "lease-anonymous": {"lease-honoured": 6, "lease-read-whole": 9},
    "lease-presumed": {"lease-honoured": 6, "lease-read-whole": 9},
    "lease-revived": {"lease-honoured": 4, "lease-read-whole": 7},
    "lease-evicted": {"lease-honoured": 4, "lease-read-whole": 7},
    "contract-latch": {},
    "contract-told-early": {"success-is-there": 8, "both-ends-agree": 11},
    "contract-last-word": {"success-is-there": 14, "both-ends-agree": 16},
    "contract-posted": {"written-when-done": 12},
    "contract-left-out": {"success-is-there": 2, "both-ends-agree": 5},
    "router-latch": {},
    "router-in-turn": {},
    "router-own-ids": {"legs-paired": 4},
    "router-old-id": {"own-cancel": 5},
    "router-one-leg": {"legs-paired": 5},
    "router-silent-failure": {"partner-told": 5},
    "router-silent-hangup": {"partner-told": 6},
    "router-empty-answer": {"error-told": 4},
    "router-error-kept": {"request-settles": 4},
    "router-no-clocks": {"request-settles": 6},
    "router-early-clock": {"waits-for-work": 3},
    "router-into-decode": {"request-settles": 6},
    "router-circle": {"request-settles": 2},
    "stages-latch": {},
    "stages-blind-waiting": {"none-in-vain": 4},
    "stages-blind-inflight": {"stages-settle": 6},
    "stages-early-deadline": {"stages-settle": 5},
    "stages-idle-clock": {"stages-settle": 1},
    "stages-hasty-retract": {"jobs-hold-pages": 4},
    "stages-hasty-leave": {"jobs-hold-pages": 6},
    "stages-asserts": {"stages-settle": 4},
    "stages-pin-left": {"stages-settle": 3},
    "stages-copy-left": {"stages-settle": 7},
    "stages-hasty-flush": {"pins-hold": 2},
    "stages-event-gauge": {"gauges-true": 3},
    "stages-one-counter": {"counters-true": 3},
    "stages-one-counted": {"counters-true": 3},
}
"""What each design breaks with the protocol's own numbers, and in how many steps."""

PATH = {protocol.name: protocol for protocol in (DECODE, LEASE, ROUTER, STAGES, CONTRACT)}
WITHSTANDS = {"decode-fenced": {"death"}, "router-in-turn": {"order"}}
"""Designs that hold what their name says although another switch is at a harmful position."""
FEWEST = {"router": 2}
"""How many of its sort a protocol needs to show all its rows: a retry needs a second attempt."""
PROTOCOL = pytest.mark.parametrize("protocol", PATH.values(), ids=PATH)


def machine(protocol: Protocol, design: str, count: int | None = None, world: int = 0) -> Machine:
    where = protocol.worlds[world]
    sizes = where.instance(protocol.counts[0] if count is None else count)
    return Machine.of(protocol.designs[design], "locked", where.network, sizes, protocol)


@cache
def searched(protocol: Protocol, design: str, count: int | None = None, world: int = 0) -> Search:
    return explore(machine(protocol, design, count, world), protocol.properties)


@pytest.mark.parametrize("design", BROKEN)
def test_what_each_design_breaks(design: str) -> None:
    """In the orderly world to the end; what needs a rougher one is searched for there."""
    (protocol,) = (one for one in PATH.values() if design in one.designs)
    found = searched(protocol, design)
    lengths = {name: found.length(name) for name in found.violations}
    for name, length in BROKEN[design].items():
        if name not in lengths:
            rough = machine(protocol, design, world=-1)
            lengths[name] = explore(rough, protocol.properties, until=[name]).length(name)
        assert lengths[name] == length
    assert lengths.keys() == BROKEN[design].keys()
    assert not found.cyclic


@PROTOCOL
def test_every_design_is_expected(protocol: Protocol) -> None:
    assert set(protocol.designs) == {name for name in BROKEN if name in protocol.designs}


@PROTOCOL
def test_every_switch_has_a_design(protocol: Protocol) -> None:
    """Every position but the first of each switch, the network's apart, is in a design, and breaks something there."""
    chosen = {name: dict(getattr(design, "chosen", {})) for name, design in protocol.designs.items()}
    harmful = {pair for name, one in chosen.items() if BROKEN[name] and len(one) == 1 for pair in one.items()}
    withstood = {pair for name in WITHSTANDS for pair in chosen.get(name, {}).items()}
    wanted = {(s.name, label) for s in protocol.switches if s.name != "network" for label in s.labels[1:]}
    assert harmful <= wanted <= harmful | withstood


@PROTOCOL
def test_every_row_fires(protocol: Protocol) -> None:
    """Nothing is vacuous: each row happens with one of its sort in some design; the names of designs say in which."""
    fired: set[Rule] = set()
    for design in protocol.designs:
        found = searched(protocol, design, FEWEST.get(protocol.name, 1), -1)
        fired |= {action.rule for action in found.taken}
    assert fired == set(protocol.rows)


@PROTOCOL
def test_the_recommended_design_is_proved_for_any_number(protocol: Protocol) -> None:
    """By both solvers, from all the lemmas at once."""
    found = verdicts(protocol, f"{protocol.name}-latch", [lemma.name for lemma in protocol.lemmas])
    assert all(found.values())


def verdicts(protocol: Protocol, design: str, lemmas: list[str]) -> dict[str, bool]:
    """For each property, whether it is proved for any number from these lemmas."""
    sizes = protocol.everything.instance(ANY)
    model = Machine.of(protocol.designs[design], "locked", protocol.everything.network, sizes, protocol)
    theory = AnyNumber.of(model)
    case = Case.of(Invariant(theory, tuple(theory.claim(protocol.lemma(name)) for name in lemmas)), protocol.properties)
    return {prop.name: isinstance(earn(case, prop, set()), Proved) for prop in protocol.properties}


@pytest.mark.parametrize(
    ("protocol", "dropped"),
    [pytest.param(one, lemma.name, id=f"{one.name}-{lemma.name}") for one in PATH.values() for lemma in one.lemmas],
)
def test_every_lemma_is_needed(protocol: Protocol, dropped: str) -> None:
    """Without it, the few lemmas for some property do not prove it in some design that keeps it with them."""
    for name, few in protocol.few.items():
        if dropped in few:
            for design in protocol.designs:
                if name not in BROKEN[design]:
                    less = verdicts(protocol, design, [lemma for lemma in few if lemma != dropped])
                    if not less[name] and verdicts(protocol, design, list(few))[name]:
                        return
    pytest.fail(f"{dropped} is needed nowhere")


@pytest.mark.parametrize("mutant", [one for one in MUTANTS if one.of.name in PATH], ids=lambda one: one.name)
def test_a_mutant_is_not_proved(mutant: Mutant) -> None:
    """For any number, what a mutant breaks does not follow from the lemmas."""
    protocol = mutant.of
    sizes = protocol.everything.instance(ANY)
    model = Machine.of(mutant.design, "locked", "disorderly", sizes, protocol.with_rows(mutant.rules))
    theory = AnyNumber.of(model)
    broken = protocol.prop(mutant.prop)
    case = Case.of(Invariant(theory, tuple(map(theory.claim, protocol.lemmas))), [broken])
    assert not isinstance(earn(case, broken, set()), Proved)
