"""Mutants of the protocols around the room: one for each property, of the recommended design of its protocol.

Most are a design that answers one question otherwise; where every such answer breaks something else as well, one row is
changed.
"""

from __future__ import annotations

from typing import Final

from kvlatch.proofs.mutation import Mutant, changed
from kvlatch.spec import contract, decode, lease, router, stages
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


def of_contract(name: str, prop: str, says: str, design: str, also: tuple[str, ...] = ()) -> Mutant:
    """A mutant of the contract, with one rank: a clause that is not kept."""
    chosen = contract.DESIGNS[f"contract-{design}"]
    return Mutant(name, prop, says, contract.ROWS, chosen, instance=contract.Ends(1), also=also, of=contract.CONTRACT)


def of_router(name: str, prop: str, says: str, design: str, attempts: int = 1) -> Mutant:
    """A mutant of the router protocol: another answer to one question."""
    chosen = router.DESIGNS[f"router-{design}"]
    return Mutant(name, prop, says, router.ROWS, chosen, instance=router.Router(attempts), of=router.ROUTER)


def of_stages(name: str, prop: str, says: str, design: str) -> Mutant:
    """A mutant of the stages protocol, with one request: another answer to one question."""
    chosen = stages.DESIGNS[f"stages-{design}"]
    return Mutant(name, prop, says, stages.ROWS, chosen, instance=stages.Stages(1), of=stages.STAGES)


def of_lease(name: str, prop: str, says: str, design: str, also: tuple[str, ...] = ()) -> Mutant:
    """A mutant of the lease protocol, with one reader: the design that answers one question otherwise."""
    chosen = lease.DESIGNS[f"lease-{design}"]
    return Mutant(name, prop, says, lease.ROWS, chosen, instance=lease.Leases(1), also=also, of=lease.LEASE)


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
    of_router(
        "an id for each leg", "legs-paired",
        "Each server makes an id of its own for the request, and looks for its partner by that.",
        design="own-ids",
    ),
    of_router(
        "hang-up kept back", "partner-told",
        "The router stops when the client hangs up, and tells neither server.",
        design="silent-hangup",
    ),
    of_router(
        "retried under the old id", "own-cancel",
        "A cancel of the attempt that failed finds the next one under its id.",
        design="old-id", attempts=2,
    ),
    of_router(
        "clock from dispatch", "waits-for-work",
        "Decode's clock runs while prefill is still computing.",
        design="early-clock",
    ),
    of_router(
        "error as an answer", "error-told",
        "The client gets an empty answer instead of an error.",
        design="empty-answer",
    ),
    of_router(
        "error in the log", "request-settles",
        "The router logs the error, and the client waits.",
        design="error-kept",
    ),
    of_stages(
        "started dead", "none-in-vain",
        "A request that has failed in the waiting queue is started all the same.",
        design="blind-waiting",
    ),
    of_stages(
        "retracted from its jobs", "jobs-hold-pages",
        "A retracted request gives its pages away, whoever still works on them.",
        design="hasty-retract",
    ),
    of_stages(
        "flushed under a pin", "pins-hold",
        "The cache is flushed, whatever is pinned in it.",
        design="hasty-flush",
    ),
    of_stages(
        "gauge of events", "gauges-true",
        "The gauge is lowered by success alone.",
        design="event-gauge",
    ),
    of_stages(
        "failures of one kind", "counters-true",
        "Whatever ends a request is counted as a transfer that failed.",
        design="one-counter",
    ),
    of_stages(
        "first deadline alone", "stages-settle",
        "Only the first queue has a deadline.",
        design="early-deadline",
    ),
    of_lease(
        "counted from the answer", "lease-honoured",
        "The reader counts the length of its lease from when it hears that it has one.",
        "from-answer", also=("lease-read-whole",),
    ),
    of_lease(
        "lease outlasted", "lease-read-whole",
        "The reader looks at its limit before it reads, and not when the read has ended.",
        "checked-early",
    ),
    of_contract(
        "failed after all", "both-ends-agree",
        "A rank writes Failed over the Success that decode was told.",
        "last-word", also=("success-is-there",),
    ),
    of_contract(
        "reported unwritten", "success-is-there",
        "A rank tells decode of its success before its table says so.",
        "told-early", also=("both-ends-agree",),
    ),
    of_contract(
        "done when posted", "written-when-done",
        "A rank writes Success when it has posted its write.",
        "posted",
    ),
)  # fmt: skip
