"""Whole lives without any interleaving, in which every call happens: to learn what the threads of a manager share."""

from __future__ import annotations

from typing import Final

from kvlatch.reference.oracle.moves import BOOTSTRAP, EVENTS, ROOM, SCHEDULER, Call, Event, Script, Step


def _life(*lines: str) -> Script:
    """Whole calls, from their words.

    ``start1!/0`` is worker 0 with the second and last chunk, ``create.2@9`` the second request on room 9.
    """
    steps = []
    for word in " ".join(lines).split():
        rest, _, room = word.partition("@")
        rest, _, request = rest.partition(".")
        rest, _, worker = rest.partition("/")
        event, last = rest.rstrip("0123456789!"), rest.endswith("!")
        chunk = int(rest.strip("!")[len(event) :] or 0)
        thread = f"worker {worker}" if worker else BOOTSTRAP if event in ("metadata", "abort_notice") else SCHEDULER
        steps.append(Step(thread, Call(_event(event), int(request or 1), chunk, last, int(room or ROOM))))
    return tuple(steps)


def _event(name: str) -> Event:
    found: dict[str, Event] = {event: event for event in EVENTS}
    return found[name]


LIVES: Final = (
    _life(
        "create metadata poll start!/0 finish!/0 poll clear metadata.2 create.2 metadata.2 poll.2",
        "start!/0.2 finish!/0.2 poll.2 clear.2",
    ),
    _life("metadata create metadata poll start0/0 start1!/1 finish0/0 poll finish1!/1 abort_notice poll clear"),
    _life("create metadata abort_notice poll clear metadata create.2 abort.2 poll.2 clear.2"),
    _life(
        "create metadata poll start0/0 start1!/1 break0/0 finish1!/1 poll clear abort_notice create.2",
        "metadata metadata.2 poll.2 clear.2",
    ),
    _life(
        "create create@9 metadata@9 metadata poll@9 poll start!/0 start!/1@9 finish!/1@9 finish!/0 poll poll@9",
        "clear@9 tick clear tick metadata@9 create.2@9 abort_notice.2@9 poll.2@9 clear.2@9",
    ),
    _life("create abort metadata poll start!/0 clear create.2 metadata.2 poll.2 start!/1.2 abort.2 break!/1.2 clear.2"),
    _life("create metadata poll start!/0 abort poll clear finish!/0 create.2 metadata.2 poll.2"),
)
"""Lives in which every call happens on its thread, early and late: to learn what threads share, not what they do."""
