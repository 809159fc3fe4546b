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

from collections.abc import Mapping
from typing import Any, Final

import attrs

from kvlatch.proofs.search import Search, explore
from kvlatch.spec.designs import DESIGNS
from kvlatch.spec.merges import Kept, failure_overrides, first_terminal_wins
from kvlatch.spec.model import Instance, Machine
from kvlatch.spec.protocol import RULES, bootstrap_gen, drained, gen, job_gen, latch, pages, phase, present, status
from kvlatch.spec.ranks import DESIGNS as RANKS_DESIGNS
from kvlatch.spec.ranks import RANKS, Ranks, clock, decided, entry, live, open_here
from kvlatch.spec.room import ROOM
from kvlatch.spec.schema import ANY, AnyDesign, Atomicity, Network, Protocol, Rule, Sizes
from kvlatch.spec.status import ABSENT, B, F, KVPoll, S
from kvlatch.spec.terms import Field, LastChunk, Term, where

LATCH: Final = DESIGNS["latch"]
SMALLEST: Final = Instance(workers=1, chunks=1)
ONCE_MORE: Final = Instance(workers=1, chunks=1, requests=ANY)
ROWS: Final = {rule.name: rule for rule in RULES}


@attrs.frozen(eq=False)
class Mutant:
    """One change of a protocol or of a design, the property that it must break, and what else it breaks."""

    name: str
    prop: str
    says: str
    rules: tuple[Rule, ...] = RULES
    design: AnyDesign = LATCH
    atomicity: Atomicity = "locked"
    network: Network = "orderly"
    instance: Sizes = SMALLEST
    also: tuple[str, ...] = ()
    of: Protocol = ROOM

    @property
    def machine(self) -> Machine:
        """The mutant, running."""
        return Machine.of(self.design, self.atomicity, self.network, self.instance, self.of.with_rows(self.rules))


def search(mutant: Mutant) -> Search:
    """Every state that the mutant reaches, and every property that it breaks."""
    return explore(mutant.machine, mutant.of.properties)


def refute(mutant: Mutant) -> int:
    """The length of the shortest run in which the mutant breaks its property; ValueError if there is none."""
    length = search(mutant).length(mutant.prop)
    if length is None:
        raise ValueError(f"the mutant {mutant.name!r} does not break {mutant.prop}")
    return length


def changed(
    name: str, then: Mapping[Field, str | Term] | None = None, *, of: Protocol = ROOM, **parts: Any
) -> tuple[Rule, ...]:
    """The protocol with parts of one row replaced, and of its effects those in ``then``."""
    rows = {rule.name: rule for rule in of.rows}
    row = rows[name]
    return tuple((rows | {name: attrs.evolve(row, then={**row.then, **(then or {})}, **parts)}).values())


def without(name: str) -> tuple[Rule, ...]:
    """The protocol without one row."""
    return tuple(rule for rule in RULES if rule is not ROWS[name])


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
)  # fmt: skip
