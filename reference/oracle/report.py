"""What the oracle has found out about one manager."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import attrs

from kvlatch.reference.laws import Judgement
from kvlatch.reference.oracle.findings import Finding


@attrs.frozen
class Report:
    """What the oracle has found out about one manager: a judgement for each law, and what they rest on."""

    subject: str
    judgements: tuple[Judgement, ...]
    findings: Mapping[str, Finding]
    looked_at: Mapping[str, int]
    notes: tuple[str, ...]
    """What was not looked at, and why, in sentences."""
    complete: bool
    """No play within the stages' bounds was left out."""
    seed: int

    @property
    def laws(self) -> tuple[str, ...]:
        """The laws that were asked about."""
        return tuple(one.law for one in self.judgements)

    @property
    def summary(self) -> str:
        """What was judged and what was looked at, in a line."""
        counts = Counter(one.verdict for one in self.judgements)
        said = [f"{counts[verdict]} {verdict}" for verdict in ("kept", "broken", "not judged") if counts[verdict]]
        looks = ", ".join(f"{what}: {count:,}" for what, count in self.looked_at.items())
        return "; ".join([f"{self.subject}: laws: {', '.join(said)}", f"looked at {looks}", *self.notes])

    @property
    def kept(self) -> tuple[str, ...]:
        """The laws that were looked at, and that no play broke."""
        return tuple(one.law for one in self.judgements if one.verdict == "kept")
