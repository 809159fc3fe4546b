"""Designs: a choice for every open question, one row each. ``latch`` is what we recommend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final

import attrs

from kvlatch.spec import merges
from kvlatch.spec.merges import Merge
from kvlatch.spec.schema import NETWORKS, Atomicity, Lemma, Network, Rule
from kvlatch.spec.terms import Field

# The open questions, as switches: the rules of the protocol read them like any other field.
atomicity = Field("atomicity", "switch", ("locked", "split", "cas"))
"""An update is one step; or a read, then a write; or a read, then compare-and-swap until it fits."""
network = Field("network", "switch", NETWORKS)
"""Orderly: each message comes once, in order, while its room is live. Or one fault of ``NETWORKS`` besides, or all;
a message is doubled only if ``transport`` allows it."""
guard = Field("guard", "switch", ("skips", "fails"))
"""What a worker does with a chunk whose transfer infos are gone: skip it silently; or force the room to Failed."""
absent = Field("absent", "switch", ("passes", "skips"))
"""What a worker's status check makes of a room without an entry: takes it for a live one; or skips the chunk."""
enqueue = Field("enqueue", "switch", ("always", "drops"))
"""What the scheduler does with a chunk whose transfer infos are gone: enqueue it; or drop it silently."""
abort = Field("abort", "switch", ("keeps", "pops"))
"""What an abort notice does to the transfer infos after it has written Failed."""
clear = Field("clear", "switch", ("absent", "tombstone"))
"""What clearing leaves in the table: nothing; or a tombstone with the generation, and every write carries its own."""
release = Field("release", "switch", ("at once", "drained"))
"""When the pages of a settled request are released: at once; or when no worker is left in its transfer."""
success = Field("success", "switch", ("last", "counted"))
"""Who concludes Success: whoever transfers the last chunk; or whoever completes the count of all chunks."""
conclude = Field("conclude", "switch", ("blind", "rechecks"))
"""Whether the concluding worker looks at the status once more before it writes Success (0.5.20)."""
poll_latch = Field("poll_latch", "switch", ("ignored", "honoured"))
"""Whether a sender that has reported a terminal status (or has aborted) goes on reporting it."""
poll_hold = Field("poll_hold", "switch", ("no", "yes"))
"""Whether a sender shows Success as Transferring while chunks are outstanding (0.5.19)."""
poll_absent = Field("poll_absent", "switch", ("Failed", "WaitingForInput"))
"""What a sender reports for a room without an entry."""
timeout = Field("timeout", "switch", ("bootstrapping", "never"))
"""Whether a request that stays Bootstrapping is timed out; no published version times out any other status."""
mark = Field("mark", "switch", ("once", "again", "never"))
"""How often a worker writes Transferring for a chunk: before it; before and after; never (Mooncake)."""
tell = Field("tell", "switch", ("own", "standing"))
"""What a writer of a terminal status passes on: what it meant to write; or what stands in the table after its write."""
queues = Field("queues", "switch", ("shared", "sharded"))
"""Which workers send the chunks of one room: any; or always the same one, where each worker has a queue of its own and
a room goes to one of them by its destination (NIXL and Mooncake)."""
transport = Field("transport", "switch", ("any", "tcp"))
"""Whether a message of decode's may come twice in a disorderly network; TCP loses and delays, and never doubles."""
nonce = Field("nonce", "switch", ("wire", "none"))
"""With tombstones: whether decode's messages say which request they are about; else each is taken for one about the
newest. A nonce is a field in the messages, which published versions do not have."""

SWITCHES: Final = (
    atomicity, network, guard, absent, enqueue, abort, clear, release,
    success, conclude, poll_latch, poll_hold, poll_absent, timeout, mark, tell, queues, transport,
    nonce,
)  # fmt: skip


@attrs.frozen
class Design:
    """One design: a merge and a position for each switch, in each atomicity that it claims.

    ``Design("mine", first_terminal_wins, ("locked",), guard="fails")``: what is not said is as in ``seed-control``.
    A position that its switch does not have raises TypeError, a merge with a hole in its table ValueError. ``rows``
    and ``without`` change the protocol's rows, ``lemmas`` and ``without_lemmas`` its lemmas (``schema.AnyDesign``).
    """

    protocol: ClassVar[str] = "room"
    name: str
    merge: Merge
    atomicities: tuple[Atomicity, ...]
    guard: str = "skips"
    absent: str = "passes"
    enqueue: str = "drops"
    abort: str = "pops"
    clear: str = "absent"
    release: str = "at once"
    success: str = "last"
    conclude: str = "blind"
    poll_latch: str = "honoured"
    poll_hold: str = "no"
    poll_absent: str = "Failed"
    timeout: str = "bootstrapping"
    mark: str = "once"
    tell: str = "own"
    queues: str = "shared"
    transport: str = "any"
    nonce: str = "wire"
    rows: tuple[Rule, ...] = attrs.field(default=(), kw_only=True)
    without: tuple[str, ...] = attrs.field(default=(), kw_only=True)
    lemmas: tuple[Lemma, ...] = attrs.field(default=(), kw_only=True)
    without_lemmas: tuple[str, ...] = attrs.field(default=(), kw_only=True)
    says: str = attrs.field(default="", kw_only=True)

    def __attrs_post_init__(self) -> None:
        merges.table(self.merge)
        for level in self.atomicities:
            self.positions(level, "orderly")

    def positions(self, level: Atomicity, net: Network) -> Mapping[Field, int]:
        """The index of each switch's position, in one atomicity and one network."""
        chosen = {"atomicity": level, "network": net}
        return {switch: switch.index(chosen.get(switch.name) or getattr(self, switch.name)) for switch in SWITCHES}


_SEED = Design(
    "seed-control", merges.failed_else_max, ("locked", "split"),
    says="The build of the incident: Failed overrides, else max; an abort pops the infos; missing infos are skipped.",
)  # fmt: skip

DESIGNS: Final[dict[str, Design]] = {
    design.name: design
    for design in (
        _SEED,
        attrs.evolve(_SEED, name="fix-a", merge=merges.first_terminal_wins,
                     says="Fix A: the merge is terminal-sticky."),
        attrs.evolve(_SEED, name="fix-b", guard="fails", says="Fix B: the skip guard forces a live room to Failed."),
        attrs.evolve(_SEED, name="fix-ab", merge=merges.first_terminal_wins, guard="fails", says="Fix A and Fix B."),
        Design(
            "sglang-0.5.15.post1", merges.failed_else_max_if_present, ("split",),
            guard="fails", enqueue="always", abort="keeps", poll_latch="ignored", poll_absent="WaitingForInput",
            mark="again", timeout="never", queues="sharded", transport="tcp",
            says="NIXL 0.5.12 to 0.5.15.post1: a late Failed creates no entry; Failed is not sticky; missing infos "
            "trip an assert that ends in Failed.",
        ),
        Design(
            "sglang-0.5.19", merges.nixl_override, ("split",),
            abort="keeps", poll_latch="ignored", poll_hold="yes", poll_absent="WaitingForInput", mark="again",
            queues="sharded", transport="tcp",
            says="NIXL 0.5.16 to 0.5.19: Failed is sticky; late T and S still create; missing infos are skipped.",
        ),
        Design(
            "sglang-0.5.23", merges.sglang_0_5_20, ("split",),
            absent="skips", abort="keeps", conclude="rechecks", poll_hold="yes", queues="sharded", transport="tcp",
            says="NIXL since 0.5.20: Failed is sticky, only B and W create (as in all backends), conclude looks again.",
        ),
        Design(
            "mooncake-0.5.15.post1", merges.failed_else_max_if_present, ("split",),
            enqueue="drops", abort="keeps", mark="never", queues="sharded", transport="tcp",
            says="Mooncake: never writes Transferring, so its resurrection is Failed to Success.",
        ),
        Design(
            "latch", merges.first_terminal_wins, ("locked", "cas"),
            guard="fails", absent="skips", clear="tombstone", release="drained", success="counted", tell="standing",
            says="What we recommend: first terminal wins, tombstones with a generation, drain before release, "
            "counted chunks, and decode is told what stands.",
        ),
        Design(
            "latch-local", merges.first_terminal_wins, ("locked", "cas"),
            guard="fails", absent="skips", clear="tombstone", release="drained", success="counted", tell="standing",
            nonce="none",
            says="latch without a change of the wire format: a late message of an older request is taken for one about "
            "the request that has its room id now.",
        ),
    )
}  # fmt: skip
