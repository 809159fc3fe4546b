"""Managers that are each wrong in one thing: ``latch`` with another merge, another switch or another row.

Each breaks one law at its very first answer that is not ``latch``'s own, within small bounds. So there is a test vector
for every law on which somebody fails. (``proofs/mutants.py`` asks the same of the proofs, at the finer grain of steps.)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import attrs

from kvlatch.reference.oracle.moves import Bounds
from kvlatch.reference.oracle.spec_manager import SpecManager
from kvlatch.spec.designs import DESIGNS, Design
from kvlatch.spec.merges import failed_else_max, failure_overrides
from kvlatch.spec.protocol import RULES, bootstrap_gen, gen, pages, present, stamp, status
from kvlatch.spec.schema import Rule
from kvlatch.spec.status import B, S
from kvlatch.spec.terms import Field, Term, where

LATCH: Final = DESIGNS["latch"]


@attrs.frozen(eq=False)
class Wrong:
    """A manager, the law that it breaks, what is wrong with it, and bounds within which that shows."""

    law: str
    says: str
    design: Design = LATCH
    rules: tuple[Rule, ...] = RULES
    bounds: Bounds = attrs.field(factory=Bounds)
    manager: SpecManager = attrs.field(
        default=attrs.Factory(lambda self: SpecManager(self.design, self.rules), takes_self=True), init=False
    )


def _changed(name: str, then: Mapping[Field, str | Term] | None = None, **parts: Any) -> tuple[Rule, ...]:
    """The protocol with parts of one row replaced, and of its effects those in ``then``."""
    rows = {rule.name: rule for rule in RULES}
    rows[name] = attrs.evolve(rows[name], then={**rows[name].then, **(then or {})}, **parts)
    return tuple(rows.values())


WRONG: Final = (
    Wrong(
        "terminal-sticky", "lets late metadata revive a failed room, by max(Failed, WaitingForInput)",
        attrs.evolve(LATCH, merge=failed_else_max), bounds=Bounds(network="disorderly"),
    ),
    Wrong(
        "no-resurrection", "lets a transfer that ends after an abort make the room a Success, by max(Failed, Success)",
        attrs.evolve(LATCH, merge=failed_else_max),
    ),
    Wrong(
        "success-not-overwritten", "lets an abort replace Success",
        attrs.evolve(LATCH, merge=failure_overrides, tell="own"),
    ),
    Wrong(
        "success-complete", "concludes with the last chunk, while another worker still has an earlier one",
        attrs.evolve(LATCH, success="last"), bounds=Bounds(chunks=2, workers=2),
    ),
    Wrong(
        "no-pin", "leaves the room as it is when a transfer fails",
        rules=_changed("break", to="idle"),
    ),
    Wrong(
        "settlement", "never gives pages back",
        rules=tuple(rule for rule in RULES if rule.name != "release"),
    ),
    Wrong(
        "no-ghost", "leaves no tombstone: a transfer that ends after the room was cleared makes an entry for it",
        attrs.evolve(LATCH, clear="absent"),
    ),
    Wrong(
        "pages-held", "gives pages back while a transfer reads them",
        attrs.evolve(LATCH, release="at once"),
    ),
    Wrong(
        "released-once", "gives pages back when it forgets the status, and again when it forgets the metadata",
        rules=_changed("clear_status", then={pages: where(pages == "held", "released", pages)}),
    ),
    Wrong(
        "one-outcome", "tells decode Success although the room has failed",
        attrs.evolve(LATCH, tell="own"),
    ),
    Wrong(
        "no-lost-wakeup", "writes Bootstrapping over what early metadata has written",
        rules=_changed("create", then={status: B, stamp: gen}, write=None), bounds=Bounds(network="disorderly"),
    ),
    Wrong(
        "room-reusable", "takes an abort notice about the first request for one about the second",
        rules=_changed("hear_stale_abort", to=where(present & (status != S), "aborting", "idle"),
                       then={bootstrap_gen: gen}),
        bounds=Bounds(network="late", requests=2),
    ),
)  # fmt: skip
