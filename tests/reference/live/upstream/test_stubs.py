"""A stub may be passed on; what reads it as a decision is told so."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable
from typing import Any

import pytest

from kvlatch.reference.live.upstream.stubs import MET, Decision, StubModule, stub

DECISIONS: list[Callable[[Any], object]] = [
    bool,
    len,
    int,
    float,
    list,
    lambda thing: thing > 1,
    lambda thing: thing >= 1,
    lambda thing: 1 in thing,
    lambda thing: range(3)[thing],
]


@pytest.mark.parametrize("decide", DECISIONS, ids=range(len(DECISIONS)))
@pytest.mark.parametrize("thing", [stub("engine.thing"), stub("engine.thing")().size, stub("engine.thing")["key"]])
def test_a_stub_decides_nothing(thing: Any, decide: Callable[[Any], object]) -> None:
    """Neither a stub, nor what it returns, nor what it has, is true, or has a size; the line names it."""
    with pytest.raises(Decision, match=r"engine\.thing.* is replaced, and was read as a decision"):
        decide(thing)


def test_what_a_module_does_with_a_stub_when_it_is_imported() -> None:
    """It derives classes from it, beside others; uses it as a decorator; and annotates with it."""
    base: Any = stub("engine.Base")

    class Derived(base, ABC):  # type: ignore[misc]  # any class may be a base here
        def __init__(self, value: int) -> None:
            self.value = value

    assert Derived(3).value == 3
    assert isinstance(Derived(3), base)
    assert not isinstance(3, base)

    assert base.cached(len) is len
    assert base[int] is base


def test_what_was_met_is_remembered() -> None:
    """Each name that was looked up, in full; special names are not stubs."""
    module = StubModule("engine.part")
    _ = module.some.name
    assert {"engine.part.some", "engine.part.some.name"} <= MET
    with pytest.raises(AttributeError):
        _ = module.__path_of_nothing__
