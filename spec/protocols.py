"""Every protocol that ships, by name: what ``kvlatch prove`` decides and what a trace or a certificate may be about."""

from __future__ import annotations

from typing import Final

from kvlatch.spec.changes import changed
from kvlatch.spec.contract import CONTRACT
from kvlatch.spec.decode import DECODE
from kvlatch.spec.lease import LEASE
from kvlatch.spec.ranks import RANKS
from kvlatch.spec.room import ROOM
from kvlatch.spec.router import ROUTER
from kvlatch.spec.schema import AnyDesign, Protocol
from kvlatch.spec.stages import STAGES

PROTOCOLS: Final[dict[str, Protocol]] = {
    protocol.name: protocol for protocol in (ROOM, RANKS, DECODE, LEASE, ROUTER, STAGES, CONTRACT)
}


def all_designs() -> dict[str, AnyDesign]:
    """The designs of all protocols, by name; no two have the same."""
    return {name: design for protocol in PROTOCOLS.values() for name, design in protocol.designs.items()}


def protocol_of(design: AnyDesign) -> Protocol:
    """The protocol of a design, with the rows and lemmas that the design changes; KeyError if it is none that ships."""
    return changed(PROTOCOLS[design.protocol], design)
