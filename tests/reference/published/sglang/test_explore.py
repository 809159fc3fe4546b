"""Exploration: which plays, and that it finds what is wrong, on a tiny manager of our own and on a real one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from math import inf
from pathlib import Path

import pytest

from kvlatch.reference.laws import LAWS, Judgement
from kvlatch.reference.published.sglang.explore import Explored, drawn, explore, lives, plays_of_interest
from kvlatch.reference.published.sglang.plays import REST
from kvlatch.reference.published.sglang.scripts import check
from kvlatch.reference.published.sglang.subjects import resolve
from tests.reference.published.sglang.sglang_fake import make_wheel
from tests.reference.published.sglang.test_judge import LAWFUL

NONCE = "room-reusable"


def explored(laws: Sequence[str] = (), most: float = inf) -> tuple[Explored, dict[str, Judgement]]:
    """What exploration says of version 0: however slow the machine is, by the same plays."""
    found = explore(resolve("0"), "common", laws or [*LAWS], most=most)
    return found, {one.law: one for one in found.judgements}


def test_plays_make_sense_and_come_to_rest() -> None:
    """Each can be carried out, and ends with nothing left to do; those without a pause come first."""
    plays = [*islice(plays_of_interest(0), 3_000), *islice(plays_of_interest(1), 10)]
    for one in plays:
        check(one.script)
        assert tuple(one.script[-3:]) == REST
    assert all(one.place is None for one in plays[: len([*lives()])])
    for script in islice(drawn(7), 300):
        check(script)
    assert [*islice(drawn(7), 20)] == [*islice(drawn(7), 20)] != [*islice(drawn(8), 20)]


def test_a_lawful_manager_is_not_accused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is played; and every law is judged, by plays that could have broken it."""
    make_wheel(tmp_path, monkeypatch, LAWFUL)
    found, laws = explored(most=2_000)
    assert found.plays > 0
    assert {law for law, one in laws.items() if one.verdict != "kept"} <= {NONCE}


@pytest.mark.parametrize(
    ("law", "old", "new"),
    [
        ("terminal-sticky", "current in TERMINAL:", "current == KVPoll.Success:"),
        ("told-once", "if life and not life.told:", "if life:"),
        ("success-complete", "elif chunk.last:", "else:"),
        ("pages-held", "status in TERMINAL and self.life.outstanding", "status in TERMINAL and False"),
        (
            "settlement",
            "if not ended_well:\n            self.fail(chunk.room)",
            "if not ended_well:\n            return",
        ),
        ("no-deadlock", "RLock()", "Lock()"),
    ],
)
def test_a_wrong_one_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, law: str, old: str, new: str) -> None:
    """Nobody has told it where to look."""
    assert old in LAWFUL
    make_wheel(tmp_path, monkeypatch, LAWFUL.replace(old, new, 1))
    found, laws = explored([law])
    assert laws[law].verdict == "broken"
    assert found.steps[f"{law}/explored"] > 0


@pytest.mark.network
@pytest.mark.parametrize(
    "laws",
    [
        ["no-lost-wakeup"],
        pytest.param(["no-resurrection", "pages-held", "no-lost-wakeup"], marks=pytest.mark.thorough),
    ],
    ids=len,
)
def test_the_newest_version(laws: list[str]) -> None:
    """The lost failure, the pages that are released too early and the lost wake-up, by itself."""
    found = explore(resolve("0.5.23"), "nixl", laws)
    assert {one.verdict for one in found.judgements} == {"broken"}
