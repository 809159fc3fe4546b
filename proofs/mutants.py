"""Named mutants: the protocol with one thing dropped or changed, so that one property breaks.

A proof that nothing could have refuted proves nothing. So every property has mutants here: of the recommended design of
its protocol, for which all are proved, each on a small instance on which explicit search refutes it.

Ten of the room's properties have a mutant that breaks nothing else; ``also`` names what else the others break. Two
properties cannot have one:

* ``success-not-overwritten``: whoever writes Success tells decode so. A poll that reads Failed after that makes the
  sender say something else than decode was told, and that breaks ``one-outcome``.
* ``no-pin``: a pinned request has nobody left to move it, so it never settles, and that breaks ``settlement``.
"""

from __future__ import annotations

from typing import Final

import attrs

from kvlatch.proofs.mutation import LATCH, Mutant, changed, without
from kvlatch.proofs.path_mutants import PATH_MUTANTS
from kvlatch.spec.merges import Kept, failure_overrides, first_terminal_wins
from kvlatch.spec.model import Instance
from kvlatch.spec.protocol import bootstrap_gen, drained, gen, job_gen, latch, pages, phase, present, status
from kvlatch.spec.ranks import DESIGNS as RANKS_DESIGNS
from kvlatch.spec.ranks import RANKS, Ranks, clock, decided, entry, live, open_here
from kvlatch.spec.schema import ANY, Rule
from kvlatch.spec.status import ABSENT, B, F, KVPoll, S
from kvlatch.spec.terms import LastChunk, where

ONCE_MORE: Final = Instance(workers=1, chunks=1, requests=ANY)


def transferring_revives(current: KVPoll | None, incoming: KVPoll) -> KVPoll | Kept:
    """One cell of ``latch``'s merge changed, to ``max(Failed, Transferring)``."""
    if (current, incoming) == (KVPoll.Failed, KVPoll.Transferring):
        return KVPoll.Transferring
    return first_terminal_wins(current, incoming)


def metadata_revives(current: KVPoll | None, incoming: KVPoll) -> KVPoll | Kept:
    """One cell of ``latch``'s merge changed: WaitingForInput sends a failed room straight back to Transferring."""
    if (current, incoming) == (KVPoll.Failed, KVPoll.WaitingForInput):
        return KVPoll.Transferring
    return first_terminal_wins(current, incoming)


def of_ranks(
    name: str,
    prop: str,
    says: str,
    rules: tuple[Rule, ...] = RANKS.rows,
    design: str = "latch",
    also: tuple[str, ...] = (),
) -> Mutant:
    """A mutant of the ranks protocol, with two ranks."""
    chosen = RANKS_DESIGNS[f"ranks-{design}"]
    return Mutant(name, prop, says, rules, chosen, instance=Ranks(2), also=also, of=RANKS)


MUTANTS: Final = (
    Mutant(
        "reopened", "terminal-sticky",
        "An abort notice that finds the request still in the bootstrap queue re-opens its room, for other metadata.",
        changed("abort_pop", then={status: where((phase == "boot") & (status == F), B, status)}),
    ),
    Mutant(
        "revived by metadata", "no-resurrection",
        "Late metadata takes a failed room to Transferring; the sender's latch hides that from the scheduler's polls.",
        design=attrs.evolve(LATCH, merge=metadata_revives),
    ),
    Mutant(
        "revived by max", "no-resurrection",
        "The incident: the merge is max(Failed, Transferring) = Transferring.",
        design=attrs.evolve(LATCH, merge=transferring_revives), also=("terminal-sticky", "one-outcome"),
    ),
    Mutant(
        "failure overrides", "success-not-overwritten",
        "The other reading of terminal: a late Failed replaces Success.",
        design=attrs.evolve(LATCH, merge=failure_overrides), also=("one-outcome",),
    ),
    Mutant(
        "uncounted", "success-complete",
        "Whoever transfers the last chunk concludes, although another worker may still have an earlier one.",
        changed("complete", to=where(LastChunk(), "concluding", "idle")), instance=Instance(workers=2, chunks=2),
    ),
    Mutant(
        "unreported failure", "no-pin",
        "A worker whose transfer fails goes on to the next chunk without failing the room.",
        changed("break", to="idle"), also=("settlement",),
    ),
    Mutant(
        "no timeout", "settlement",
        "A request whose metadata never comes is never timed out.",
        without("time_out"),
    ),
    Mutant(
        "kept for ever", "settlement",
        "Settling a request does not give its pages back.",
        changed("release", then={pages: pages}),
    ),
    Mutant(
        "never cleared", "no-ghost",
        "Clearing pops the transfer infos, and leaves the status.",
        changed("clear_status", then={status: status}),
    ),
    Mutant(
        "no tombstone", "no-ghost",
        "Clearing leaves no entry instead of a tombstone, and a worker that is still concluding creates one.",
        changed("clear_status", then={status: ABSENT}), also=("one-outcome",),
    ),
    Mutant(
        "no drain", "pages-held",
        "Pages are released as soon as the request is cleared, whoever still reads them.",
        changed("release", when=phase == "releasing"),
    ),
    Mutant(
        "released by abort", "released-once",
        "An abort releases the pages if no transfer is running, and settling the request releases them again.",
        changed("abort", then={pages: where(drained & (pages == "held"), "released", pages)}),
    ),
    Mutant(
        "latched blindly", "one-outcome",
        "An abort latches Failed in the sender even where Success stands in the table.",
        changed("abort", then={latch: F}),
    ),
    Mutant(
        "no early metadata", "no-lost-wakeup",
        "Metadata that arrives before the room is created is stored, and wakes nobody.",
        changed("hear_metadata", to=where(present, "registered", "idle")), network="disorderly",
    ),
    Mutant(
        "notice without generation", "room-reusable",
        "An abort notice about the first request is taken for one about the second.",
        changed("hear_stale_abort", to=where(present & (status != S), "aborting", "idle"), then={bootstrap_gen: gen}),
        network="late", instance=Instance(workers=1, chunks=1, requests=2),
    ),
    Mutant(
        "bootstrap thread without generation", "room-reusable",
        "What the bootstrap thread is still doing for one request it does to the next one, whichever that is.",
        changed("reuse_again", then={bootstrap_gen: bootstrap_gen}),
        network="late", instance=ONCE_MORE, also=("no-pin", "settlement"),
    ),
    Mutant(
        "worker without generation", "room-reusable",
        "A chunk that was taken for one request is transferred for the next one, whichever that is.",
        changed("reuse_again", then={job_gen: job_gen}),
        network="late", instance=ONCE_MORE, also=("settlement",),
    ),
    Mutant(
        "queue without generation", "room-reusable",
        "A chunk of an older request that is still queued is taken for one of this request.",
        changed("take_stale", then={job_gen: gen}),
        network="late", instance=ONCE_MORE, also=("settlement", "success-complete"),
    ),
    of_ranks(
        "given up after success", "rank-agreement",
        "A rank whose time is up gives the request up although the group has agreed on Success.",
        changed("give_up", when=open_here & ((decided == F) | ((decided == S) & (clock == "up"))), of=RANKS),
    ),
    of_ranks(
        "dropped on admission", "admission-agreement",
        "A rank that polls again before it admits a request drops it by itself.",
        design="looks-again", also=("all-settle",),
    ),
    of_ranks(
        "metadata beside the vote", "success-everywhere",
        "A rank votes Success before its metadata is there.",
        design="metadata-apart",
    ),
    of_ranks(
        "failure after success", "failure-wins",
        "What fails after Success was written still writes Failed.",
        changed("break", when=(live | (entry == S)) & open_here, of=RANKS), also=("success-everywhere",),
    ),
    of_ranks(
        "voted, not written", "group-outcome",
        "A rank whose time is up votes Failed, and does not write it into its table.",
        design="clock-voted",
    ),
    of_ranks(
        "reason left behind", "reason-fidelity",
        "The reason of a failure stays on the rank where it arose.",
        design="reason-local",
    ),
    of_ranks(
        "loop that ends", "all-settle",
        "An error while a failure is handled ends the scheduler loop of one rank.",
        design="loop-left",
    ),
    *PATH_MUTANTS,
)  # fmt: skip
