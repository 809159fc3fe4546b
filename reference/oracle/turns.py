"""Scripts in fewer steps: what a thread does in one go."""

from __future__ import annotations

import attrs

from kvlatch.reference.oracle.moves import Script, Step


@attrs.define
class Turn:
    """A step, with those after it in which its thread just goes on.

    ``passes``: how many hold points the thread runs through.

    ``undisturbed``: this is a whole call, from its first access to its end, as the next step of its thread shows. It
    has been played before, held at each place, and nobody came in between: so it needs no thread of its own now.
    """

    step: Step
    passes: int = 0
    undisturbed: bool = False


def turns(script: Script) -> list[Turn]:
    """The turns of a script; its last step is a turn of its own, since that is what is to be seen."""
    turns: list[Turn] = []
    *before, last = script
    for step in before:
        if turns and step.call is None and step.thread == turns[-1].step.thread:
            turns[-1].passes += 1
        else:
            turns.append(Turn(step))
    turns.append(Turn(last))
    begins_next: dict[str, bool] = {}
    for turn in reversed(turns):
        begins = turn.step.call is not None
        turn.undisturbed = begins and begins_next.get(turn.step.thread, False)
        begins_next[turn.step.thread] = begins
    return turns
