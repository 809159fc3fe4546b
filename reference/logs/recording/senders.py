"""What is watched of senders and receivers: whose request a thread is about, polls, and what they conclude."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any, Final

from kvlatch.reference.logs.recording.containers import WATCHED as DONE
from kvlatch.reference.logs.recording.recorder import Recorder

RECORDER: Final = "_kvlatch_recorder"
REQUEST: Final = "_kvlatch_request"
LATCH: Final = "conclude_state"
WATCHED: Final = ("__init__", "init", "poll", "send", "abort", "clear", "failure_exception")


def watch(cls: type) -> None:
    """Watch the methods that a class defines, and those that it has from others. Twice is once.

    A sender whose manager is not recorded is left alone.
    """
    for one in cls.__mro__:
        for name in WATCHED:
            method = vars(one).get(name)
            if isinstance(method, FunctionType) and not hasattr(method, DONE):
                wrapped = _watched(name, method)
                setattr(wrapped, DONE, True)
                setattr(one, name, wrapped)


def recorder_of(manager: Any) -> Recorder | None:
    """The recorder of a manager, if it has one."""
    found: Recorder | None = getattr(manager, "__dict__", {}).get(RECORDER)
    return found


def _watched(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(sender: Any, *arguments: Any, **named: Any) -> Any:
        manager = getattr(sender, "__dict__", {}).get("kv_mgr")
        if manager is None and name == "__init__":
            manager = arguments[0] if arguments else named.get("mgr")
        recorder = recorder_of(manager)
        if recorder is None or recorder.mine.sender is sender:  # `super()` of a method that is watched
            return method(sender, *arguments, **named)
        mine = recorder.mine
        before = mine.sender, mine.request, mine.op
        latch = vars(sender).get(LATCH)
        if name == "__init__":
            vars(sender)[REQUEST] = recorder.new_request()
        mine.sender, mine.request = sender, vars(sender).get(REQUEST)
        mine.op = {"__init__": "create", "abort": "abort"}.get(name, "")
        try:
            return method(sender, *arguments, **named)
        finally:
            mine.op = ""
            if name == "__init__":
                recorder.made(refused=vars(sender).get(LATCH) is not None)
            room = vars(sender).get("bootstrap_room")
            if name == "poll" and latch is None:
                recorder.polled(room)
            if latch is None:
                recorder.concluded(room, vars(sender).get(LATCH))
            mine.sender, mine.request, mine.op = before

    return call
