"""What of a published version runs in an engine of ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvlatch.reference.live.upstream import inventory
from kvlatch.reference.live.upstream.subject import Published
from kvlatch.reference.published.sglang import wheels
from kvlatch.reference.published.wheels import CannotFetch

pytest.importorskip("zmq", reason="needs the extra live")
pytest.importorskip("nixl_cu12", reason="needs nixl-cu12")

PAGE = Path(__file__).parents[4] / "docs" / "replaced.md"
REAL = {
    "sglang.srt.managers.scheduler",
    "sglang.srt.managers.schedule_batch",
    "sglang.srt.disaggregation.prefill",
    "sglang.srt.disaggregation.decode",
    "sglang.srt.disaggregation.nixl.conn",
    "sglang.srt.disaggregation.common.conn",
    "sglang.srt.mem_cache.common",
}


@pytest.mark.network
@pytest.mark.parametrize("version", inventory.VERSIONS)
def test_the_page_says_what_is_replaced(version: str) -> None:
    """The committed page has the section that is computed from the wheel; the parts that matter are upstream's own."""
    try:
        wheels.fetch(version)
    except CannotFetch as error:
        pytest.skip(f"no wheel: {error}")
    found = inventory.of(Published.of(f"sglang=={version}").subject.code)
    assert set(found.real) >= REAL
    assert not REAL & set(found.stubs)
    assert inventory.section(version, found) in PAGE.read_text("utf-8")
