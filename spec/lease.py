"""The lease protocol: pages that are held for a reader for some time, and no longer, every atomic step a row.

A *holder* (prefill, or a store) keeps pages for whoever asks, for a length of time. A *reader* (decode) fetches them
by itself, and the holder sees nothing of that. So the reader must know when the holder may have given the pages away:
it has a *limit* by its own clock, and uses what it has read only if the limit has not passed when the read ends. It
renews its lease for as long as it likes. Requests and answers may take long and may be lost, clocks differ by a skew.
In vLLM this is the lease of a NIXL connector, in Mooncake that of an object in the store.

**Time.** How long a lease, a message or a read takes is in no row. A lease that ends demands an ``order``: the reader
no longer counts on it. ``TIMING``, at the end, says why that is so, in real numbers, for any length and any skew.

**Switches.** The first position of each is the recommended one; ``DESIGNS`` has a design for each of the others.

**Assumed.** Over the length of a lease the two clocks differ by the skew at most.
"""

from __future__ import annotations

from typing import ClassVar, Final

import attrs

from kvlatch.spec.schema import NETWORKS, Choice, Lemma, Property, Protocol, Rule, Sizes, Thread, World
from kvlatch.spec.terms import Field, ForAll, Term, implies, some, where
from kvlatch.spec.timing import ZERO, Moment, Timing, equal, real, timed

# --------------------------------------------------------------------------------------------------------------------
# Switches

check = Field("check", "switch", ("after the read", "before the read", "never"))
"""When does the reader look whether its limit has passed?"""
counted = Field("counted", "switch", ("from the request", "from the answer"))
"""When does the time of a lease begin for the reader: when it has asked, or when it hears that it may?"""
margin = Field("margin", "switch", ("for skew", "none"))
"""Is the limit of the reader earlier than the end of the lease by as much as the clocks may differ?"""
answers = Field("answers", "switch", ("name their request", "anonymous"))
"""Does the reader know to which of its requests an answer belongs?"""
extends = Field("extends", "switch", ("when answered", "when asked"))
"""Does a renewal count for the reader once the holder has granted it, or as soon as it is asked for?"""
renewal = Field("renewal", "switch", ("while pages are held", "always"))
"""Does the holder grant a lease on pages that it has given away?"""
eviction = Field("eviction", "switch", ("spares leased pages", "takes any"))
"""What does a holder give away that needs room?"""
network = Field("network", "switch", NETWORKS)
"""May a message be lost? Each may be late in any network; other faults make no difference here."""

SWITCHES: Final = (check, counted, margin, answers, extends, renewal, eviction, network)

# --------------------------------------------------------------------------------------------------------------------
# State

pages = Field("pages", "room", ("held", "given away"))
"""The holder's pages; given away, they are another request's, and what is read from them is worth nothing."""
stage = Field("stage", "reader", ("waits", "reads", "has read", "uses", "gave up"))
"""The reader waits for its turn, reads the pages, has read them, uses what it has read, or computes it anew."""
whole = Field("whole", "reader", ("yes", "no"))
"""History: the pages were held until the read ended. Nobody can see that."""
request = Field("request", "reader", ("none", "sent"))
"""The reader's request for a lease, the first one or a renewal, on its way."""
answer = Field("answer", "reader", ("none", "to the last request", "to an earlier one"))
"""The holder's answer, a grant, on its way."""
lease = Field("lease", "reader", ("none", "runs", "over"))
"""The lease of this reader, by the holder's clock."""
limit = Field("limit", "reader", ("none", "ahead", "passed"))
"""Until when the reader counts on the pages, by its own clock."""

within = Field("within", "reader", ("yes", "no"))
"""History: a limit that is ahead is no later than the end of the lease. Nobody can see that."""

STATE: Final = (pages, stage, whole, request, answer, lease, limit, within)

lossy = network.in_("lossy", "disorderly")
sound = (counted == "from the request") & (margin == "for skew")
"""A limit that follows from an answer to the last request is no later than the end of the lease: see ``TIMING``."""
asks: dict[Field, str | Term] = {
    request: "sent", answer: where(answer == "to the last request", "to an earlier one", answer),
    within: where((extends == "when asked") & (limit == "ahead"), "no", within),
}  # fmt: skip

# --------------------------------------------------------------------------------------------------------------------
# Rows

ROWS: Final = (
    # A lease is asked for and granted.
    Rule("ask", "reader", "waits", "waits", request == "none", asks, fair=False,
         says="The reader asks for a lease, or for a longer one, while it waits for its turn."),
    Rule("renew", "reader", "reads", "reads", request == "none", asks, fair=False,
         says="The reader asks for a longer lease while it reads."),
    Rule("grant", "holder", "sent", "none", (pages == "held") | (renewal == "always"),
         {lease: "runs", answer: "to the last request"},
         says="The holder grants a lease of its length from now on, and answers."),
    Rule("refuse", "holder", "sent", "none", (pages == "given away") & (renewal != "always"),
         says="The holder has given the pages away, and grants nothing."),
    Rule("lose_request", "holder", "sent", "none", lossy, fair=False,
         says="The request is lost."),
    Rule("hear", "answer", "to the last request", "none", then={limit: "ahead", within: where(sound, "yes", "no")},
         order=~sound | (lease == "runs"),
         says="The reader hears that its last request is granted: it counts on the pages until its new limit."),
    Rule("hear_late", "answer", "to the last request", "none", then={limit: "passed", within: "yes"},
         says="The answer has taken so long that the new limit has passed, too."),
    Rule("ignore", "answer", "to an earlier one", "none", answers == "name their request",
         says="An answer to an earlier request says nothing about the last one: the reader takes no notice of it."),
    Rule("mistake", "answer", "to an earlier one", "none", answers == "anonymous", {limit: "ahead", within: "no"},
         says="The reader takes an answer to an earlier request for one to its last."),
    Rule("lose_answer", "answer", "to the last request", "none", lossy, fair=False,
         says="The answer is lost."),

    # Time passes.
    Rule("pass_limit", "clock", "ahead", "passed", then={within: "yes"},
         says="By its own clock, the reader can no longer count on the pages."),
    Rule("expire", "lease", "runs", "over", order=(limit != "ahead") | (within == "no"),
         says="The lease has lasted for its length, by the holder's clock, and ends."),
    Rule("give_away", "keeper", "held", "given away",
         ForAll("reader", lease != "runs") | (eviction == "takes any"), fair=False,
         says="Nobody has a lease on the pages: the holder gives them to another request."),

    # The pages are read.
    Rule("start", "reader", "waits", "reads", (limit == "ahead") | ((check == "never") & (limit == "passed")),
         says="It is the reader's turn: it begins to read."),
    Rule("finish", "reader", "reads", "has read", then={whole: where(pages == "held", "yes", "no")},
         says="The read ends."),
    Rule("use", "reader", "has read", "uses", (limit == "ahead") | (check != "after the read"),
         says="The reader uses what it has read: the limit has not passed, or it does not look."),
    Rule("give_up", "reader", "has read", "gave up", (limit != "ahead") & (check == "after the read"),
         says="The limit has passed: what was read may be anybody's, and the reader computes it anew."),
)  # fmt: skip

# --------------------------------------------------------------------------------------------------------------------
# Properties

PROPERTIES: Final = (
    Property(
        "lease-honoured", "As long as a reader counts on pages, they are held for it.",
        (pages == "given away") & some("reader", limit == "ahead"),
        reports=("vllm-project/vllm#21570",),
        broken="the holder has given the pages away, and a reader still counts on them",
    ),
    Property(
        "lease-read-whole", "A reader uses only what it has read from pages that were held until the read ended.",
        some("reader", (stage == "uses") & (whole == "no")),
        reports=("vllm-project/vllm#21570", "kvcache-ai/Mooncake#778"),
        broken="a reader uses what it has read from pages that had been given away",
    ),
)  # fmt: skip

# --------------------------------------------------------------------------------------------------------------------
# Lemmas

LEMMAS: Final = (
    Lemma("answered what was granted", implies(answer != "none", lease != "none")),
    Lemma("limits are within leases", within == "yes"),
    Lemma("counts on a lease", implies((limit == "ahead") & (within == "yes"), lease == "runs")),
    Lemma("leased pages are held", implies(pages == "given away", lease != "runs")),
    Lemma("spoilt by giving away", implies(whole == "no", pages == "given away")),
    Lemma("uses what is whole", implies(stage == "uses", whole == "yes")),
)
FEW: Final = {
    "lease-honoured": (
        "answered what was granted", "limits are within leases", "counts on a lease", "leased pages are held",
    ),
    "lease-read-whole": tuple(lemma.name for lemma in LEMMAS),
}  # fmt: skip
"""For each property, lemmas that suffice in most designs."""

# --------------------------------------------------------------------------------------------------------------------
# Time

length, skew = real("length"), real("skew")
"""Of a lease, by the holder's clock; and the most by which the reader's clock is wrong about so long a time."""
now, asked, end, until = real("now"), real("asked"), real("end"), real("until")
"""The time; when the reader last asked; when its lease ends; and when its limit passes."""

_presumed = (extends == "when asked") & (limit == "ahead")
_asks = Moment(
    (*equal(asked.after, now), *equal(until.after, until, ~_presumed),
     timed(until <= until.after, _presumed), timed(until.after <= now + length + skew, _presumed)),
    sets=(asked, until),
)  # fmt: skip
_from_request, _from_answer = counted == "from the request", counted == "from the answer"
_hears = (
    timed(until.after <= asked + length, _from_request & (margin == "for skew")),
    timed(until.after <= now + length, _from_answer & (margin == "for skew")),
    timed(until.after <= asked + length + skew, _from_request & (margin == "none")),
    timed(until.after <= now + length + skew, _from_answer & (margin == "none")),
)
"""The limit is a length after the start, less the skew if there is a margin, by a clock that is wrong by the skew."""

TIMING: Final = Timing(
    durations=(length, skew),
    instants=(now, asked, end, until),
    always=(timed(length > ZERO), timed(skew >= ZERO)),
    begins=(timed(asked <= now),),
    lemmas=(
        timed(asked <= now),
        timed(asked + length <= end, answer == "to the last request"),
        timed(end < now, lease == "over"),
        timed(now <= until, limit == "ahead"),
        timed(until <= now + length, (limit == "ahead") & (within == "yes")),
        timed(until <= end, (limit == "ahead") & (within == "yes")),
    ),
    rows={
        "ask": _asks,
        "renew": _asks,
        "grant": Moment(equal(end.after, now + length), sets=(end,)),
        "hear": Moment((*_hears, timed(now <= until.after)), sets=(until,)),
        "hear_late": Moment((*_hears, timed(until.after < now)), sets=(until,)),
        "mistake": Moment((*_hears, timed(now <= until.after)), sets=(until,)),
        "pass_limit": Moment((timed(until <= now),)),
        "expire": Moment((timed(end < now),)),
    },
    passing=Moment((timed(now <= now.after), timed(now.after <= until, limit == "ahead")), sets=(now,)),
)
"""A lease runs to its last instant. Time does not pass a limit that is ahead without ``pass_limit``."""

# --------------------------------------------------------------------------------------------------------------------
# Designs


def _design(name: str, says: str, **chosen: str) -> Choice:
    return Choice(f"lease-{name}", "lease", SWITCHES, chosen, says=says)


DESIGNS: Final = {
    design.name: design
    for design in (
        _design("latch", "The recommended one: each switch at its first position."),
        _design("unchecked", "The reader does not know that the lease ends (vllm#21570).", check="never"),
        _design("checked-early", "A slow read outlasts its lease (Mooncake#778).", check="before the read"),
        _design("from-answer", "The reader counts from when it hears the answer.", counted="from the answer"),
        _design("no-margin", "The reader takes its clock for the holder's.", margin="none"),
        _design("anonymous", "An answer to any request counts for the last.", answers="anonymous"),
        _design("presumed", "A renewal counts as soon as it is asked for.", extends="when asked"),
        _design("revived", "A lease is renewed although its pages are gone.", renewal="always"),
        _design("evicted", "A holder that needs room gives leased pages away.", eviction="takes any"),
    )
}


@attrs.frozen
class Leases(Sizes):
    """How many readers of the same pages there are, or any number."""

    crowd: ClassVar[str | None] = "reader"
    readers: int = 2


LEASE: Final = Protocol(
    "lease",
    "Pages are held for each reader for some time, and no longer.",
    sizes=Leases,
    sorts=("reader",),
    state=STATE,
    threads={
        "reader": Thread(stage), "holder": Thread(request), "answer": Thread(answer), "clock": Thread(limit),
        "lease": Thread(lease), "keeper": Thread(pages),
    },
    rows=ROWS,
    switches=SWITCHES,
    designs=DESIGNS,
    properties=PROPERTIES,
    worlds=(
        World("orderly network", "", "orderly", Leases()), World("a message is lost", "x", "lossy", Leases()),
    ),
    everything=World("everything", "", "disorderly", Leases()),
    counts=(2,),
    lemmas=LEMMAS,
    few=FEW,
    timing=TIMING,
)  # fmt: skip
