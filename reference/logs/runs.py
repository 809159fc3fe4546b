"""The log that an instrumented server writes of a run of the spec: which line of code logs what, row by row.

It says no more than the code at each row knows: its thread, its room, its request and chunk, and what it has just done
to a table, a queue, a page or decode. It is how the judge is scored (``bench/logs_score.py``), and a guide to whoever
instruments a manager.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import attrs

from kvlatch.reference.logs.events import Event
from kvlatch.spec.model import Action, Machine
from kvlatch.spec.status import ABSENT, TOMBSTONE, F, S
from kvlatch.spec.terms import State

STEP: Final = 0.01
"""Seconds from one step of a run to the next."""
POLLED_FOR: Final = 400
"""Seconds for which a scheduler that has a request in a queue at the end of a run goes on polling it."""
_REQUEST: Final = {"first": "1", "second": "2"}
_WRITES: Final = ("", "store", "swap")
LOGS: Final[Mapping[str, tuple[str, ...]]] = {
    "create": ("create",), "time_out": ("conclude", "write"), "abort": ("abort", "conclude"), "admit": ("poll", "hold"),
    "enqueue": ("enqueue",), "settle_failed": ("poll", "conclude"), "settle_success": ("poll", "conclude"),
    "clear_status": ("clear",), "hear_metadata": ("infos",), "hear_stale_metadata": ("infos",), "write_f": ("abort",),
    "take": ("take",), "take_stale": ("take",), "check_status": ("poll", "drop"), "check_infos": ("drop",),
    "post": ("post",), "complete": ("arrive",), "break": ("fail",), "conclude": ("poll",), "tell_success": ("tell",),
    "tell_failed": ("tell",),
}  # fmt: skip
"""What each row logs. Any other that writes a status logs a write; releases, forgotten metadata and the end of a
thread's work are logged by whichever row brings them about."""


@attrs.frozen(eq=False)
class Recording:
    """One run of one room, as one rank of one node logs it."""

    machine: Machine
    room: int
    node: str | None = None
    rank: str | None = None

    def events(self, run: Iterable[tuple[Action | None, State]], *, polled: bool = False) -> Iterator[Event]:
        """The events of a run, as engines give it, a step every hundredth of a second.

        ``polled``: the run is over, and the scheduler goes on polling a request that is still in one of its queues.
        """
        before: dict[str, str] = {}
        time = 0.0
        for action, state in run:
            after = {var.name: var.labels[index] for var, index in state.items()}
            if action is not None:
                for op, more in self._ops(action, before, after):
                    yield self._event(op, action, after, before, round(time, 6), **more)
            before = after
            time += STEP
        if polled and self._of(before, "phase") in ("boot", "inflight") and self._of(before, "latch") == "none":
            for seconds in range(10, POLLED_FOR + 10, 10):
                yield Event(0, self.room, "poll", _shown(self._of(before, "status")), None, self.node, self.rank,
                            _REQUEST[self._of(before, "gen")], None, "scheduler", round(time + seconds, 6))  # fmt: skip

    def _of(self, labels: dict[str, str], field: str) -> str:
        return labels.get(f"{field}@0", labels.get(field, ""))

    def _event(
        self, op: str, action: Action, after: dict[str, str], before: dict[str, str], time: float, **more: Any
    ) -> Event:
        status = None
        if op in ("create", "clear", "poll", "abort", "write"):
            status = _shown(self._of(after, "status"))
        worker = action.arguments.get("worker")
        match action.rule.actor:
            case "scheduler":
                gen = self._of(after, "gen")
            case "bootstrap":
                gen = self._of(after, "bootstrap_gen")
            case _:
                takes = action.rule.name in ("take", "take_stale")
                gen = _at(after if takes else before, "job_gen", worker) or ""
        chunk = more.pop("chunk", None)
        return Event(0, self.room, op, status, node=self.node, rank=self.rank, request=_REQUEST[gen or "first"],
                     chunk=chunk, thread=action.thread, time=time, **more)  # fmt: skip

    def _ops(
        self, action: Action, before: dict[str, str], after: dict[str, str]
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """What one step logs."""
        rule, worker = action.rule, action.arguments.get("worker")
        chunk = action.arguments.get("chunk")
        if chunk is None and rule.actor == "worker":
            chunk = int(_at(before, "job", worker) or 0)
        if action.part in _WRITES:
            for op in LOGS.get(rule.name, ("write",) if rule.write is not None else ()):
                yield from self._op(op, action, before, after, chunk)
        pages = self._of(before, "pages"), self._of(after, "pages")
        if pages[0] != pages[1] and pages[1].startswith("released"):
            yield "release", {}
        if rule.name == "release":
            yield "settle", {}
        if self._of(before, "infos") != "none" and self._of(after, "infos") == "none":
            yield "forget", {}
        if self._through(action, before, after):
            yield "end", {"chunk": chunk} if rule.actor == "worker" else {}

    def _op(
        self, op: str, action: Action, before: dict[str, str], after: dict[str, str], chunk: int | None
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """One operation, if the code at that row got that far."""
        rule = action.rule.name
        latched = self._of(before, "latch") != "none"
        match op:
            case "enqueue":
                queued = _at(after, "chunk", chunk) == "queued"
                yield "enqueue" if queued else "drop", {"chunk": chunk, "last": self._of(after, "phase") == "inflight"}
            case "drop":
                if _at(after, "worker", action.arguments.get("worker")) in ("idle", "failing"):
                    yield "drop", {"chunk": chunk}
            case "take" | "post" | "arrive" | "fail":
                yield op, {"chunk": chunk}
            case "conclude" if rule in ("abort", "time_out"):
                yield op, {"incoming": self._of(after, "latch")}
            case "poll" | "conclude" if rule.startswith("settle"):  # a sender that has concluded does not look again
                if not latched:
                    yield op, {"incoming": F if rule == "settle_failed" else S} if op == "conclude" else {}
            case "tell":
                yield op, {"incoming": S if rule == "tell_success" else F, "peer": "decode"}
            case "infos":
                stored = self._of(before, "infos") != self._of(after, "infos")
                if stored or self._of(after, "bootstrap") == "registered":
                    yield op, {}
            case "write":
                yield op, {"incoming": action.rule.write}
            case _:
                yield op, {}

    def _through(self, action: Action, before: dict[str, str], after: dict[str, str]) -> bool:
        """The thread has gone back to waiting, with a message or a chunk behind it."""
        if action.rule.actor == "bootstrap":
            heard = self._of(before, "bootstrap") != "idle" or self._of(before, "infos") != self._of(after, "infos")
            return heard and self._of(after, "bootstrap") == "idle"
        worker = action.arguments.get("worker")
        idle = _at(before, "worker", worker) == "idle", _at(after, "worker", worker) == "idle"
        return action.rule.actor == "worker" and idle == (False, True)


def _shown(status: str) -> str:
    return ABSENT if status == TOMBSTONE else status


def _at(labels: dict[str, str], field: str, at: int | None) -> str | None:
    """A field of a worker, or of a chunk."""
    return labels.get(f"{field}_{at}", labels.get(field))
