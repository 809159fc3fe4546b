"""Tiny wheels of our own, for the offline tests of the sglang adapter."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest

from kvlatch.reference.published.sglang import wheels as sglang_wheels
from kvlatch.reference.published.wheels import Package

BASE = """
class KVPoll:
    Failed, Bootstrapping, WaitingForInput, Transferring, Success = range(5)
"""

UTILS = """
import enum

class DisaggregationMode(enum.Enum):
    PREFILL = "prefill"
    DECODE = "decode"

def poll_and_all_reduce(pollers, group):
    polls = torch.tensor([poller.poll() for poller in pollers])
    dist.all_reduce(polls, op=dist.ReduceOp.MIN, group=group)
    return polls.tolist()
"""

PREFILL = """
from sglang.srt.disaggregation.base.conn import KVPoll

class SchedulerDisaggregationPrefillMixin:
    def process_disagg_prefill_inflight_queue(self):
        undone = []
        for request in self.disagg_prefill_inflight_queue:
            if request.disagg_kv_sender.poll() in (KVPoll.Failed, KVPoll.Success):
                request.disagg_kv_sender.clear()
                self.tree_cache.cache_finished_req(request)
            else:
                undone.append(request)
        self.disagg_prefill_inflight_queue = undone
"""


DECODE = """
class CommonKVReceiver:
    def send_metadata(self, indices, aux_index):
        self.tell([b"METADATA", b"7", str(self.required_dst_info_num).encode()])

    def abort(self):
        self.tell([b"ABORT", b"7"])

    def tell(self, frames):
        self._connect_to_bootstrap_server(self.bootstrap_info)[0].send_multipart(frames)
"""
"""Decode's side of a backend; its frames are heard by the manager's own bootstrap thread."""


def make_wheel(cache: Path, monkeypatch: pytest.MonkeyPatch, conn: str) -> Path:
    """Version 0 is pinned and in the cache; its one backend is `common`, with this source."""
    wheel = cache / "sglang-0-py3-none-any.whl"
    sources = {"common/conn": conn + DECODE, "base/conn": BASE, "utils": UTILS, "prefill": PREFILL}
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, source in {**sources, "common/__init__": "", "base/__init__": ""}.items():
            archive.writestr(f"sglang/srt/disaggregation/{name}.py", source)
    pins = cache / "pins.txt"
    pins.write_text(f"0 {wheel.name} {hashlib.sha256(wheel.read_bytes()).hexdigest()}\n")
    monkeypatch.setattr(sglang_wheels, "PACKAGE", Package("sglang", "sglang", pins))
    monkeypatch.setenv("KVLATCH_CACHE", str(cache))
    return wheel
