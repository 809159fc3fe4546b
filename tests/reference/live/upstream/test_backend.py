"""The classes of a transfer backend, and when a transfer of Mooncake's starts and ends."""

from __future__ import annotations

import sys
import time
from types import ModuleType
from typing import Any

import pytest

from kvlatch.reference.live.upstream.backend import Backend, follow_transfers
from kvlatch.reference.live.upstream.stubs import Missing
from kvlatch.reference.live.upstream.tensors import tensor


@pytest.mark.parametrize(("name", "prefix"), [("nixl", "Nixl"), ("mooncake", "Mooncake")])
def test_a_class_is_replaced_wherever_it_is_looked_up(name: str, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the package and in its module, under the name that the backend gives it."""
    package = f"sglang.srt.disaggregation.{name}"
    for module in ("sglang", "sglang.srt", "sglang.srt.disaggregation", package, f"{package}.conn"):
        monkeypatch.setitem(sys.modules, module, ModuleType(module))
    vars(sys.modules[f"{package}.conn"])[f"{prefix}KVSender"] = int
    backend = Backend(name)
    assert backend.get("KVSender") is int
    backend.put("KVSender", str)
    assert backend.get("KVSender") is str
    assert vars(sys.modules[package])[f"{prefix}KVSender"] is str


def test_a_call_of_mooncake_is_one_transfer_over_a_slow_wire() -> None:
    """It begins before the call and ends after the wire's time, also where it raises; what it returns stays."""
    seen: list[tuple[str, Any]] = []

    class Manager:
        def send_kvcache(self, answer: Any) -> Any:
            seen.append(("sends", answer))
            if isinstance(answer, Exception):
                raise answer
            return answer

        def send_kvcache_slice(self, answer: Any) -> Any:
            return answer

    follow_transfers(
        Manager, lambda handle: seen.append(("begun", handle)), lambda one: seen.append(("ended", one)), 0.05
    )
    begun = time.monotonic()
    assert Manager().send_kvcache(7) == 7
    assert time.monotonic() - begun >= 0.05
    assert [what for what, _ in seen] == ["begun", "sends", "ended"]
    assert seen[0][1] == seen[2][1]
    with pytest.raises(KeyError):
        Manager().send_kvcache(KeyError(1))
    assert [what for what, _ in seen[3:]] == ["begun", "sends", "ended"]
    assert Manager().send_kvcache_slice(8) == 8
    assert len(seen) == 8


def test_a_tensor_says_what_it_has_not_got() -> None:
    """Nobody else is to blame for what is missing here."""
    one = tensor([1, 2])
    assert one.copy_(tensor([3, 4])).tolist() == [3, 4]
    with pytest.raises(Missing, match="a tensor has no pin_memory here"):
        one.pin_memory()
