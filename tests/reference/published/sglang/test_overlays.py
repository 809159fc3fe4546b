"""What the overlays that ship turn, on the real code."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from functools import cache

import pytest

from kvlatch.reference.published.sglang.judge import examine, judge_play
from kvlatch.reference.published.sglang.script_text import parse
from kvlatch.reference.published.wheels import CannotFetch

pytestmark = pytest.mark.network
INCIDENT = "0.5.15.post1"
FIX_A = {"terminal-sticky/plain", "terminal-sticky/in-flight", "success-not-overwritten/plain"}
LOCK = {"terminal-sticky/two-writers", "success-not-overwritten/decode", "no-lost-wakeup/early-metadata"}
NEEDS_A_NONCE = "room-reusable/stale-metadata"


@cache
def broken(code: str, backend: str) -> frozenset[str]:
    """The scenarios that a subject breaks."""
    try:
        return frozenset(one.name for one in examine(code, backend).judgements if one.verdict == "broken")
    except CannotFetch as reason:
        pytest.skip(str(reason))


@pytest.mark.parametrize(
    ("overlay", "mended", "spoilt"),
    [
        ("fix-a", FIX_A, {"room-reusable/uncleared"}),
        ("fix-b", set(), set()),
        pytest.param("fix-ab", FIX_A, {"room-reusable/uncleared"}, marks=pytest.mark.thorough),
        ("fix-a+lock", FIX_A | LOCK | {"no-resurrection/under-worker"}, {"room-reusable/uncleared"}),
        pytest.param("fix-b+lock", {"no-lost-wakeup/early-metadata"}, set(), marks=pytest.mark.thorough),
    ],
)
def test_the_fixes_of_the_incident(overlay: str, mended: AbstractSet[str], spoilt: AbstractSet[str]) -> None:
    """Fix A mends stickiness, with a lock for two threads too; Fix B nothing here; each leaves the rest."""
    before, after = broken(INCIDENT, "nixl"), broken(f"{INCIDENT}+{overlay}", "nixl")
    assert (before - after, after - before) == (mended, spoilt)


@pytest.mark.parametrize(
    "backend",
    ["nixl", pytest.param("mooncake", marks=pytest.mark.thorough), pytest.param("mori", marks=pytest.mark.thorough)],
)
def test_what_can_be_mended_locally(backend: str) -> None:
    """All but the metadata that comes late, which takes a field on the wire; and nothing by not being judged."""
    examination = examine("0.5.23+latch-local", backend)
    verdicts = {one.name: one.verdict for one in examination.judgements}
    assert {name for name, verdict in verdicts.items() if verdict == "broken"} == {NEEDS_A_NONCE}
    assert {name for name, verdict in verdicts.items() if verdict == "not judged"} == set()


@pytest.mark.parametrize(
    "backend",
    ["nixl", pytest.param("mooncake", marks=pytest.mark.thorough), pytest.param("mori", marks=pytest.mark.thorough)],
)
def test_what_a_nonce_mends(backend: str) -> None:
    """All that is left; and nothing by not being judged."""
    try:
        found = examine("0.5.23+latch-wire", backend).judgements
    except CannotFetch as reason:
        pytest.skip(str(reason))
    assert {one.name: one.verdict for one in found if one.verdict != "kept"} == {}


@pytest.mark.parametrize(
    ("overlay", "play", "law", "verdict"),
    [
        ("latch-local", "create metadata clear metadata create", "room-reusable", "kept"),  # taken for an early one
        ("latch-wire", "create clear metadata create", "room-reusable", "kept"),
        ("latch-wire", "create metadata clear metadata create poll send_last work settle settle", "settlement", "kept"),
        ("latch-local", "create abort create.step*2 metadata create.finish poll settle", "terminal-sticky", "kept"),
        ("latch-wire", "create abort create.step*2 metadata create.finish poll send_last work settle settle settle",
         "told-once", "kept"),
    ],
)  # fmt: skip
def test_a_play(overlay: str, play: str, law: str, verdict: str) -> None:
    """Metadata that is early, late, or heard while the next sender is constructed."""
    try:
        (one,) = judge_play(f"0.5.23+{overlay}", "nixl", parse(play), [law]).judgements
    except CannotFetch as reason:
        pytest.skip(str(reason))
    assert one.verdict == verdict


@pytest.mark.parametrize("backend", ["nixl", "mori"])
def test_a_second_request_after_a_clear_finds_its_own_infos(backend: str) -> None:
    """MoRI stores metadata by `setdefault`, which must not find what the thread knows of the request before."""
    script = parse("create metadata abort clear create metadata send_last work settle settle")
    try:
        found = judge_play("0.5.23+latch-local", backend, script, ["told-once", "room-reusable"])
    except CannotFetch as reason:
        pytest.skip(str(reason))
    assert {one.law: one.verdict for one in found.judgements} == {"told-once": "kept", "room-reusable": "kept"}
