"""Scripts as text: what ``kvlatch conform sglang==VERSION --play TEXT`` takes, and what a finding prints.

A step is ``[THREAD:]OP[=STATUS][.PART][*TIMES]``; spaces stand between steps. Most ops have a thread of their own,
which need not be named; ``_`` stands for the space in a thread's name. A step without a part is whole. ``*TIMES``
repeats it: ``work.step`` leaves the worker before its first access, and ``work.step*3`` before its third.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import groupby
from typing import Final, get_args

from kvlatch.reference.published.sglang.scripts import STATUSES, Op, Part, Script, Step, check

THREADS: Final[Mapping[Op, str]] = {
    "metadata": "bootstrap", "register": "bootstrap", "abort_notice": "bootstrap", "pop_infos": "bootstrap",
    "work": "worker 0", "conclude": "worker 0", "write": "bootstrap", "put": "nobody", "break_transfer": "network",
    "receive": "decode", "lose_prefill": "heartbeat",
}  # fmt: skip
"""Whose thread an op is in, unless the text says otherwise: the scheduler's, if it is not listed."""
_STEP: Final = re.compile(r"(?:([^\s:]+):)?([a-z_]+)(?:=(\w+))?(?:\.([a-z]+))?(?:\*(\d+))?")
_MOST: Final = 10_000


def text_of(script: Script) -> str:
    """The text of a script."""
    return " ".join(words for words, _ in grouped(script))


def grouped(script: Script) -> list[tuple[str, int]]:
    """The words of a script's text, each with the number of the last step that it stands for."""
    words: list[tuple[str, int]] = []
    number = -1
    for step, run in groupby(script):
        times = len([*run])
        word = _word(step)
        if step.part == "step" and times > 1:
            number += times
            words.append((f"{word}*{times}", number))
            continue
        for _ in range(times):
            number += 1
            words.append((word, number))
    return words


def _word(step: Step) -> str:
    thread = "" if step.thread == _thread(step.op) else f"{step.thread.replace(' ', '_')}:"
    status = f"={step.status}" if step.status else ""
    return f"{thread}{step.op}{status}{'' if step.part == 'whole' else f'.{step.part}'}"


def _thread(op: Op) -> str:
    return THREADS.get(op, "scheduler")


def parse(text: str) -> tuple[Step, ...]:
    """The script that a text tells. Raises ValueError for what is none, with the word that is wrong."""
    steps: list[Step] = []
    for word in text.split():
        found = _STEP.fullmatch(word)
        op = next((op for op in get_args(Op) if found and op == found[2]), None)
        if found is None or op is None:
            raise ValueError(f"{word!r} is no step of a script: an op is one of {', '.join(get_args(Op))}")
        part = next((part for part in get_args(Part) if part == (found[4] or "whole")), None)
        if part is None:
            raise ValueError(f"{word!r}: the part of an op is one of {', '.join(get_args(Part))}")
        times = int(found[5] or 1)
        if len(steps) + times > _MOST:
            raise ValueError(f"more than {_MOST:,} steps")
        if found[3] not in (None, *STATUSES):
            raise ValueError(f"{word!r}: a status is one of {', '.join(STATUSES)}")
        try:
            step = Step((found[1] or _thread(op)).replace("_", " "), op, part, found[3])
        except ValueError as error:
            raise ValueError(f"{word!r}: {error}") from error
        steps += [step] * times
    if not steps:
        raise ValueError("there is no step in it")
    check(steps)
    return tuple(steps)
