"""Mutants of the protocols around the room: one for each property, of the recommended design of its protocol.

Most are a design that answers one question otherwise; where every such answer breaks something else as well, one row is
changed.
"""

from __future__ import annotations

from typing import Final

from kvlatch.proofs.mutation import Mutant, changed
from kvlatch.spec import decode
from kvlatch.spec.schema import Network, Rule
from kvlatch.spec.terms import ForAll


def of_decode(
    name: str,
    prop: str,
    says: str,
    rules: tuple[Rule, ...] = decode.ROWS,
    design: str = "latch",
    network: Network = "orderly",
    also: tuple[str, ...] = (),
) -> Mutant:
    """A mutant of the decode protocol, with one sender."""
    chosen = decode.DESIGNS[f"decode-{design}"]
    return Mutant(
        name, prop, says, rules, chosen, network=network, instance=decode.Decode(1), also=also, of=decode.DECODE
    )


PATH_MUTANTS: Final = (
    of_decode(
        "released with the failure", "decode-pages-held",
        "Decode releases the pages of a failed request at once.",
        design="at-once",
    ),
    of_decode(
        "any end counts", "decode-complete",
        "Decode counts the reports of senders, whatever they say.",
        changed("conclude_success", when=ForAll("sender", decode.report == "read"), of=decode.DECODE),
        also=("decode-settles",),
    ),
    of_decode(
        "missed late", "decode-sticky",
        "The heartbeat sees a live request, and writes Failed when it is a success.",
        design="late-heartbeat",
    ),
    of_decode(
        "clock before queue", "no-false-timeout",
        "A poll looks at the clock before it reads the reports that are there.",
        design="clock-first",
    ),
    of_decode(
        "registered late", "failure-told",
        "A failure is not told to a decode that registers after it.",
        design="one-shot",
    ),
    of_decode(
        "waits for ever", "decode-settles",
        "Nothing limits the time that decode waits for reports.",
        design="no-timer",
    ),
)  # fmt: skip
