"""The oracle on published sglang code: its own exploration finds the interleavings that break a law.

Real are the sender's constructor, poll, abort and clear, the loop of the bootstrap thread and ``update_status``, each
held before every access to the table. The transfer workers are played: past their checks, they write what the real
ones write. ``laws.py`` runs the real workers, in scripts that somebody has thought of; here nobody has.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kvlatch.reference.faults import AdapterFault
from kvlatch.reference.oracle.adapter import turns
from kvlatch.reference.oracle.moves import Call, Event, Script, Seen
from kvlatch.reference.published.sglang import scripts as sglang
from kvlatch.reference.published.sglang.scripts import ABSENT, LockHeld, Observation, Op, Step
from kvlatch.spec.status import KVPoll

LAWS: Final = (
    "terminal-sticky", "no-resurrection", "success-not-overwritten", "no-ghost", "no-lost-wakeup", "room-reusable",
)  # fmt: skip
"""The laws that the table alone can break."""

_OPS: Final[dict[Event, tuple[Op, str | None]]] = {
    "create": ("create", None),
    "poll": ("poll", None),
    "abort": ("abort", None),
    "clear": ("clear", None),
    "metadata": ("metadata", None),
    "stale_metadata": ("metadata", None),
    "abort_notice": ("abort_notice", None),
    "stale_abort_notice": ("abort_notice", None),
    "start": ("write", "Transferring"),
    "finish": ("write", "Success"),
    "break": ("write", "Failed"),
}


_AT_MOST: Final = 2
"""A call that nobody disturbs is two steps: up to its first access, and on."""


class SglangPlayer:
    """A :class:`~kvlatch.reference.oracle.explore.Player` for a version and backend; ``timeout`` is for each level."""

    def __init__(self, version: str, backend: str, timeout: float = 120.0) -> None:
        self._version, self._backend, self._timeout = version, backend, timeout
        self._ended: set[Script] = set()
        self._status: dict[Script, KVPoll | None] = {(): None}

    def play(self, scripts: Sequence[Script]) -> list[Seen]:
        """What is seen after the last step of each script. Raises what :func:`sglang.outcomes` raises."""
        steps = [self._steps(script) for script in scripts]
        plays = sglang.outcomes(self._version, self._backend, steps, timeout=self._timeout) if steps else []
        return [self._seen(script, play) for script, (play,) in zip(scripts, plays, strict=True)]

    def _steps(self, script: Script) -> list[Step]:
        steps: list[Step] = []
        calls: dict[str, Call] = {}
        played: Script = ()
        for turn in turns(script):
            thread = turn.step.thread
            call = turn.step.call or calls[thread]
            calls[thread] = call
            op, status = _OPS[call.event]
            if call.event == "finish" and not call.last:
                op, status = "poll", None  # a chunk that is not the last writes nothing
            played = script[: len(played) + 1 + turn.passes]
            if turn.undisturbed:
                steps.append(Step(thread, op, "whole", status))
                continue
            moves = 1 + turn.passes + (turn.step.call is not None)  # the first one stops before the first access
            steps += [Step(thread, op, "step", status if number == 0 else None) for number in range(moves)]
            if played in self._ended:
                steps.append(Step(thread, op, "finish"))
        return steps

    def _seen(self, script: Script, play: list[Observation] | AdapterFault) -> Seen:
        if isinstance(play, LockHeld):
            return Seen(None, held="waits for a lock", blocked=True)
        if isinstance(play, AdapterFault):
            raise play
        last = play[-1]
        status = None if last.status == ABSENT else KVPoll[last.status]
        self._status[script] = status
        mine = [number for number, step in enumerate(script) if step.thread == script[-1].thread]
        while script[mine[0]].call is None or any(script[number].call for number in mine[1:]):
            mine.pop(0)  # what belongs to earlier calls
        call = script[mine[0]].call
        if last.held:
            # What an access has found is what the table said before it.
            trail = tuple(("found", self._status[script[:number]]) for number in mine)
            return Seen(status, held="is at the table", trail=trail)
        self._ended.add(script)
        answer: KVPoll | bool | None = None
        said = next((seen.value for seen in reversed(play[-_AT_MOST:]) if seen.value), ABSENT)
        if (
            call is not None and call.event == "poll" and said != ABSENT
        ):  # it may have come to its end before the last step
            answer = KVPoll[said]
        elif call is not None and call.event == "start":
            answer = True
        return Seen(status, answer=answer)
