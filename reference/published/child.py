"""Foreign code runs in a child process: one JSON document in, one out, under a time limit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any


class Unusable(Exception):
    """The child has not done what it was asked; the message says how."""


def ask(module: str, request: Mapping[str, object], *, timeout: float, hidden: Sequence[str]) -> dict[str, Any]:
    """What a module, run as a child process, answers to a request.

    Environment variables that begin with one of ``hidden`` are kept from it: what the user has set for an engine must
    not change what is observed. Raises Unusable, also for an answer with a ``fault``, which is then the message.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith(tuple(hidden))}
    try:
        child = subprocess.run(
            [sys.executable, "-P", "-m", module],
            input=json.dumps(request),
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            env=environment,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Unusable(f"no answer in {timeout:g} s") from None
    if child.returncode != 0:
        said = child.stderr.strip().splitlines() or ["nothing said"]
        raise Unusable(f"exit status {child.returncode}: {said[-1]}")
    try:
        answer = json.loads(child.stdout)
    except ValueError as error:
        raise Unusable(f"unusable answer: {error!r}") from error
    if not isinstance(answer, dict) or "fault" in answer:
        raise Unusable(str(answer["fault"]) if isinstance(answer, dict) else f"unusable answer: {answer!r:.80}")
    return answer
