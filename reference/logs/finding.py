"""A law that is broken in a log, and where."""

from __future__ import annotations

import attrs

from kvlatch.reference.logs.events import Room, name_of


@attrs.frozen
class Finding:
    """A law that is broken in one entry, at one line; ``before`` and ``after`` are statuses where they broke it.

    ``needs`` are operations that must be logged somewhere in that table for the finding to count.
    """

    law: str
    room: Room
    node: str | None
    rank: str | None
    line: int
    sentence: str
    scenario: str = ""
    op: str = ""
    incoming: str | None = None
    before: str = ""
    after: str = ""
    needs: frozenset[str] = frozenset()
    source: str = ""
    """Which log it is in, where there are several."""
    log: int = 0
    """The number of that log, from 0."""
    process: str | None = None
    """The process whose table it is in, if its log says so."""

    def text(self, unit: str) -> str:
        """As a line: ``room 7, line 5: …``; ``room 7 is pinned: …`` where no line broke the law."""
        room = name_of(self.room, self.node, self.rank)
        if self.line:
            return f"{room}, {self.source}{unit} {self.line}: {self.sentence}"
        return f"{room} is {self.sentence}" if self.sentence.startswith("pinned:") else f"{room}: {self.sentence}"
