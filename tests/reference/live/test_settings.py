"""A build is told what it is as data, and says what it is as a fingerprint."""

from __future__ import annotations

import json

import attrs
import pytest

from kvlatch.reference.live.settings import Rules, Settings
from kvlatch.spec import merges
from kvlatch.spec.designs import DESIGNS, Design

ALL = [Rules(design, level) for design in DESIGNS.values() for level in design.atomicities]


@pytest.mark.parametrize("rules", ALL, ids=lambda rules: f"{rules.design.name}/{rules.level}")
def test_rules_survive_the_way_to_the_engine(rules: Rules) -> None:
    """As JSON and back, a design has the same switches and the same merge in all thirty cells."""
    back = Rules.from_json(json.loads(json.dumps(rules.as_json())))
    assert back.design.positions(back.level, "orderly") == rules.design.positions(rules.level, "orderly")
    assert merges.table(back.design.merge) == merges.table(rules.design.merge)
    assert back.fingerprint == rules.fingerprint


def test_no_two_builds_have_one_fingerprint() -> None:
    """Every shipped design in every atomicity is another build; its name alone makes no difference."""
    assert len({rules.fingerprint for rules in ALL}) == len(ALL)
    seed = DESIGNS["seed-control"]
    assert Rules(attrs.evolve(seed, name="else"), "locked").fingerprint == Rules(seed, "locked").fingerprint


def test_a_design_with_a_misspelt_switch_is_refused() -> None:
    """What an engine is told is checked as any design is."""
    data = Rules(DESIGNS["latch"], "cas").as_json()
    data["switches"]["release"] = "sometimes"
    with pytest.raises((TypeError, ValueError), match="sometimes"):
        Rules.from_json(data)


@pytest.mark.parametrize(("words", "chunks"), [(1, 1), (64, 1), (65, 2), (640, 10)])
def test_a_prompt_is_cut_into_chunks(words: int, chunks: int) -> None:
    """The last chunk may be shorter."""
    assert Settings(chunk_tokens=64).chunks_of("word " * words) == chunks


def test_a_prompt_that_no_pool_can_hold_is_refused() -> None:
    """Waiting would not help it."""
    with pytest.raises(ValueError, match="the prompt needs 12 pages: there are 8"):
        Settings(chunk_tokens=1, chunk_pages=4, pages=8).chunks_of("three short words")


def test_a_design_of_a_readers_own_is_a_build() -> None:
    """Its merge is a table by the time it reaches the engine."""
    mine = Design("mine", merges.plain_max, ("locked",), guard="fails")
    back = Rules.from_json(json.loads(json.dumps(Rules(mine, "locked").as_json())))
    assert back.design.guard == "fails"
    assert merges.table(back.design.merge) == merges.table(merges.plain_max)
