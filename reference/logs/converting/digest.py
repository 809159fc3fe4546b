"""What a converter found beside the events: how often SGLang said what, and which requests have no end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import attrs

SHOWN: Final = 3
"""Open ends of each kind that are listed."""

Said = dict[str, Any]
"""The members of an event, as they are written."""


@attrs.frozen
class Place:
    """Where a line stands: the file and the number of the line, or of the span; the room that it names, if any."""

    file: str
    line: int
    room: int | None = None

    def __str__(self) -> str:
        room = "" if self.room is None else f"room {self.room}, "
        return f"{room}{self.file}:{self.line}"


@attrs.define
class Tally:
    """How often something was said, and where first."""

    says: str
    first: Place
    count: int = 0


@attrs.define
class Digest:
    """Counts of what was read. ``tallies`` are by message; ``open`` are requests that no line says the end of."""

    unit: str
    read: int = 0
    events: int = 0
    tallies: dict[str, Tally] = attrs.field(factory=dict)
    open: dict[str, list[Place]] = attrs.field(factory=dict)
    left_out: dict[str, int] = attrs.field(factory=dict)
    """Lines or spans that would have been events, by the reason why they are none."""

    @property
    def known(self) -> int:
        """Lines or spans that the converter knows."""
        return sum(tally.count for tally in self.tallies.values()) + sum(self.left_out.values())

    def take(self, name: str, says: str, place: Place) -> None:
        """Something was said."""
        self.tallies.setdefault(name, Tally(says, place)).count += 1

    def leave_out(self, why: str) -> None:
        """Something was said that could not be made into an event."""
        self.left_out[why] = self.left_out.get(why, 0) + 1

    def lines(self) -> list[str]:
        """For a reader: the most frequent first."""
        found = [f"{self.read:,} {self.unit}s, {self.known:,} of them known; {self.events:,} events"]
        often = sorted(self.tallies.values(), key=lambda tally: -tally.count)
        found += [f"{tally.count:>8,}  {tally.says}; first: {tally.first}" for tally in often]
        found += [f"{count:>8,}  left out: {why}" for why, count in self.left_out.items()]
        for says, places in self.open.items():
            listed = "; ".join(map(str, places[:SHOWN]))
            more = f"; and {len(places) - SHOWN:,} more" if len(places) > SHOWN else ""
            found.append(f"{len(places):>8,}  {says}: {listed}{more}")
        return found

    def members(self) -> Mapping[str, object]:
        """For machines; ids are strings."""

        def said(place: Place) -> dict[str, object]:
            return {"file": place.file, self.unit: place.line, "room": None if place.room is None else str(place.room)}

        return {
            "read": self.read, "known": self.known, "events": self.events, "unit": self.unit,
            "said": [
                {"message": name, "says": tally.says, "count": tally.count, "first": said(tally.first)}
                for name, tally in self.tallies.items()
            ],
            "left_out": self.left_out,
            "open": [{"says": says, "places": [said(place) for place in places]} for says, places in self.open.items()],
        }  # fmt: skip
