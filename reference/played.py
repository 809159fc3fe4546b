"""Traces of somebody's real code: what was played, move by move, and what an onlooker saw after each move.

Such a trace is a finding of ``kvlatch conform``. The spec does not say what comes next in it, so it is not verified but
played again: :func:`code_of` and the actions are the text that ``--play`` takes.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

from kvlatch.reference.laws import LAWS
from kvlatch.reference.story import Kind, Line, Story
from kvlatch.spec.traces import Step, Trace

_THREADS: Final = "threads"
_SHOWN_APART: Final = ("status", "poll")


def atomicity(code: str) -> str:
    """What stands in the place of an atomicity: that these were real threads, and what its player has to know."""
    return f"{_THREADS} {code}".strip()


def is_played(trace: Trace) -> bool:
    """Whether a trace is one of real code."""
    return trace.atomicity.partition(" ")[0] == _THREADS


def code_of(trace: Trace) -> str:
    """What its player has to know beside the moves. Raises ValueError for a trace of the spec."""
    if not is_played(trace):
        raise ValueError("this trace is not one that `kvlatch conform` has written")
    return trace.atomicity.partition(" ")[2]


def moves_of(trace: Trace) -> str:
    """The moves of a trace, as text."""
    return " ".join(step.action or "" for step in trace.steps[1:])


def sentence(trace: Trace) -> str:
    """What the trace shows."""
    return f"{trace.prop} is broken: {LAWS.get(trace.prop or '', '')}" if trace.prop else "No law is broken."


def story(trace: Trace) -> Story:
    """The trace as a table; what a move has changed beside the status is said with it."""
    lines = tuple(_line(number, *steps) for number, steps in enumerate(pairwise(trace.steps), 1))
    return Story(f"{trace.design}: {len(lines)} moves", lines, len(lines) or None, sentence(trace))


def _line(number: int, before: Step, after: Step) -> Line:
    changed = [name for name, label in after.state.items() if before.state.get(name) != label]
    words = [(after.action or "").replace("_", " "), *(_change(n, after) for n in changed if n not in _SHOWN_APART)]
    kind: Kind = "writes the table" if "status" in changed else "else"
    entry, poll = after.state.get("status", ""), after.state.get("poll", "")
    return Line(number, after.thread or "", ", ".join(words), entry, poll, kind)


def _change(name: str, after: Step) -> str:
    return f"{name.replace('_', ' ')} {after.state[name]}"
