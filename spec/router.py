"""The router protocol: a request of a client is two requests, one to prefill and one to decode.

In front of a disaggregated server stands a router. For a client's request it makes an *attempt*: it chooses a prefill
and a decode server, gives the attempt an id (SGLang's ``bootstrap_room``, vLLM's ``transfer_id``) by which the two find
each other, and sends each its *leg*. Prefill computes, and holds the KV pages until decode has read them; decode waits
for them, reads, and answers. The two servers hear of each other by the id alone. So whatever happens to one leg, or to
the client, only the router can tell the other leg: it must *cancel* it, and a clock in each server is what remains when
that message is lost. If an attempt fails the router may *retry*, with servers of its choice, or tell the client.

**Switches.** The first position of each is the recommended one; ``DESIGNS`` has a design for each of the others.

**Fair.** A server that can move does so eventually, and so does the router: it sees each leg end, as an answer or as a
broken connection. A cancel may be lost. Nobody owes the router that a server accepts, or lives; nor that it retries.

**What is subtle.** A retry has an id of its own *and* sends both legs. With the old id, a cancel of the old attempt
hits the new one; with a new id for one leg only, the two legs wait for two partners that do not exist.
"""

from __future__ import annotations

from typing import ClassVar, Final

import attrs

from kvlatch.spec.schema import NETWORKS, Choice, Lemma, Property, Protocol, Rule, Sizes, Thread, World
from kvlatch.spec.terms import Field, ForAll, Term, implies, some, where

# --------------------------------------------------------------------------------------------------------------------
# Switches

order = Field("order", "switch", ("both at once", "prefill first"))
"""Are both legs sent together, or does decode hear of the request when prefill has finished?"""
ids = Field("ids", "switch", ("of the attempt", "of each leg"))
"""Under which id does a server expect its partner: the attempt's, or one that each server makes for itself?"""
retries = Field("retries", "switch", ("both legs, new id", "both legs, old id", "one leg, new id"))
"""What is sent again when an attempt has failed?"""
failures = Field("failures", "switch", ("cancel the partner", "end the attempt"))
"""One leg has failed: is the other one told?"""
hangups = Field("hangups", "switch", ("cancel both legs", "end the attempt"))
"""The client has hung up: are the servers told, or does the router just stop?"""
errors = Field("errors", "switch", ("told", "as an empty answer", "kept"))
"""No attempt is left: what does the client hear?"""
clocks = Field("clocks", "switch", ("in each server", "none"))
"""Does a server end its leg by itself when its partner does not come?"""
anchor = Field("anchor", "switch", ("prefill's end", "dispatch"))
"""From when on does decode's clock run?"""
buffer = Field("buffer", "switch", ("at prefill", "at decode"))
"""Where does prefill put the pages that it computes? Into decode's memory it can only when decode has its leg."""
network = Field("network", "switch", NETWORKS)
"""May a cancel be lost? Other faults make no difference here."""

SWITCHES: Final = (order, ids, retries, failures, hangups, errors, clocks, anchor, buffer, network)

# --------------------------------------------------------------------------------------------------------------------
# State

client = Field("client", "room", ("waits", "left", "served", "refused"))
"""The client: it waits, has hung up, has an answer, or has an error."""
turn = Field("turn", "room", ("to begin", "in an attempt", "between attempts"))
"""What the router does about the request."""

stage = Field("stage", "attempt", ("none", "prefill sent", "both sent", "over"))
"""How far the router is with this attempt."""
prefill_server = Field("prefill_server", "attempt", ("up", "down"))
decode_server = Field("decode_server", "attempt", ("up", "down"))
prefill_leg = Field(
    "prefill_leg", "attempt",
    ("none", "asked", "computes", "holds", "read", "cancelled", "failed", "expired", "forgotten"),
)  # fmt: skip
"""The leg of prefill. It holds its pages until decode has read them; expired is ended by its own clock."""
decode_leg = Field(
    "decode_leg", "attempt",
    ("none", "asked", "waits", "strays", "has all", "answered", "cancelled", "failed", "expired", "forgotten"),
)  # fmt: skip
"""The leg of decode. It strays if it waits for an id that prefill does not know.

History, of both legs: one that its clock has ended was forgotten if the router had ended the attempt without a word.
"""
prefill_cancel = Field("prefill_cancel", "attempt", ("none", "sent", "lost", "heard"))
decode_cancel = Field("decode_cancel", "attempt", ("none", "sent", "lost", "heard"))
"""The cancel to each leg."""

STATE: Final = (
    client, turn, stage, prefill_server, decode_server, prefill_leg, decode_leg, prefill_cancel, decode_cancel,
)  # fmt: skip

at_work = prefill_leg.in_("asked", "computes")
prefill_open = prefill_leg.in_("asked", "computes", "holds")
decode_open = decode_leg.in_("asked", "waits", "strays", "has all")
broken_off = prefill_leg.in_("failed", "expired", "cancelled") | decode_leg.in_("failed", "expired", "cancelled")
"""The router has seen a leg end without an answer."""
waiting = client == "waits"
sent = stage.in_("prefill sent", "both sent")
lossy = network.in_("lossy", "disorderly")

# --------------------------------------------------------------------------------------------------------------------
# Rows


def cancels(when: Term) -> dict[Field, str | Term]:
    """A cancel to each leg that has been sent and has not ended, where the formula holds."""
    return {
        prefill_cancel: where(when & prefill_open, "sent", prefill_cancel),
        decode_cancel: where(when & decode_open, "sent", decode_cancel),
    }


def expired(cancel: Field) -> Term:
    """How a leg ends that its clock ends."""
    return where((stage == "over") & (cancel == "none"), "forgotten", "expired")


def strays_in(cancel: Field) -> Term:
    """A cancel of another attempt is on its way under the same id."""
    return (retries == "both legs, old id") & (cancel == "none") & some("other attempt", cancel == "sent")


_decode_leg = where(order == "both at once", "asked", decode_leg)
_sent = where(order == "both at once", "both sent", "prefill sent")

ROWS: Final = (
    # The router makes attempts, and sees them end.
    Rule("dispatch", "router", "to begin", "in an attempt", waiting & (stage == "none"),
         {stage: _sent, prefill_leg: "asked", decode_leg: _decode_leg}, per="attempt",
         says="The router chooses two servers and an id, and sends each server its leg, or prefill's first."),
    Rule("dispatch_decode", "router", "in an attempt", "in an attempt",
         (stage == "prefill sent") & (prefill_leg == "holds") & waiting, {stage: "both sent", decode_leg: "asked"},
         per="attempt",
         says="Prefill has finished: the router sends decode its leg."),
    Rule("see_failure", "router", "in an attempt", "between attempts", sent & broken_off,
         {stage: "over", **cancels(failures == "cancel the partner")}, per="attempt",
         says="A leg has ended without an answer: the router ends the attempt, and cancels the other leg."),
    Rule("retry", "router", "between attempts", "in an attempt", waiting & (stage == "none"),
         {stage: _sent, prefill_leg: "asked", decode_leg: _decode_leg}, per="attempt", fair=False,
         says="The router makes a further attempt."),
    Rule("retry_prefill", "router", "in an attempt", "in an attempt",
         (retries == "one leg, new id") & waiting & (stage == "none")
         & some("other attempt", (stage == "both sent") & prefill_leg.in_("failed", "expired")),
         {stage: "both sent", prefill_leg: "asked"}, per="attempt", fair=False,
         says="Prefill's leg has failed: it alone is sent again, to another server, under an id of its own."),
    Rule("refuse", "router", "between attempts", "between attempts", waiting & (errors != "kept"),
         {client: where(errors == "told", "refused", "served")},
         says="The router gives up, and the client gets an error."),
    Rule("answer", "router", "in an attempt", "between attempts", sent & (decode_leg == "answered"),
         {stage: "over", client: where(waiting, "served", client)}, per="attempt",
         says="Decode's answer is passed on to the client."),
    Rule("hang_up", "client", "waits", "left", fair=False,
         says="The client hangs up."),
    Rule("see_hangup", "router", "in an attempt", "between attempts", (client == "left") & sent,
         {stage: "over", **cancels(hangups == "cancel both legs")}, per="attempt",
         says="The router sees that the client is gone, ends the attempt, and cancels both legs."),
    Rule("lose_prefill_cancel", "prefill", "up", "up", lossy & (prefill_cancel == "sent"),
         {prefill_cancel: "lost"}, fair=False,
         says="The cancel to prefill is lost."),
    Rule("lose_decode_cancel", "decode", "up", "up", lossy & (decode_cancel == "sent"),
         {decode_cancel: "lost"}, fair=False,
         says="The cancel to decode is lost."),

    # Prefill.
    Rule("accept_prefill", "prefill", "up", "up", prefill_leg == "asked", {prefill_leg: "computes"},
         says="Prefill takes up its leg."),
    Rule("refuse_prefill", "prefill", "up", "up", prefill_leg == "asked", {prefill_leg: "failed"}, fair=False,
         says="Prefill refuses its leg: it is overloaded, or does not like the request."),
    Rule("finish", "prefill", "up", "up",
         (prefill_leg == "computes") & ((buffer == "at prefill") | decode_leg.in_("waits", "strays")),
         {prefill_leg: "holds"},
         says="All pages are computed. Prefill holds them for decode."),
    Rule("expire_prefill", "prefill", "up", "up", (prefill_leg == "holds") & (clocks == "in each server"),
         {prefill_leg: expired(prefill_cancel)},
         says="Nobody has come for the pages in time: prefill releases them."),
    Rule("hear_prefill_cancel", "prefill", "up", "up", prefill_cancel == "sent",
         {prefill_cancel: "heard", prefill_leg: where(prefill_open, "cancelled", prefill_leg)},
         says="Prefill learns that its leg is cancelled, and releases what it has of it."),
    Rule("mistake_prefill_cancel", "prefill", "up", "up", prefill_open & strays_in(prefill_cancel),
         {prefill_leg: "cancelled"}, fair=False,
         says="A cancel of an older attempt has the id of this one, and ends it."),
    Rule("prefill_dies", "prefill", "up", "down", prefill_open, {prefill_leg: "failed"}, fair=False,
         says="The prefill server dies, and its pages with it. The router sees the connection break."),

    # Decode.
    Rule("accept_decode", "decode", "up", "up", decode_leg == "asked",
         {decode_leg: where(ids == "of the attempt", "waits", "strays")},
         says="Decode takes up its leg, and waits for the pages that prefill has under this id."),
    Rule("refuse_decode", "decode", "up", "up", decode_leg == "asked", {decode_leg: "failed"}, fair=False,
         says="Decode refuses its leg before it has told prefill anything."),
    Rule("read", "decode", "up", "up", (decode_leg == "waits") & (prefill_leg == "holds"),
         {decode_leg: "has all", prefill_leg: "read"},
         says="Decode reads the pages, and prefill, told so, releases them."),
    Rule("generate", "decode", "up", "up", decode_leg == "has all", {decode_leg: "answered"},
         says="Decode answers."),
    Rule("expire_decode", "decode", "up", "up",
         decode_leg.in_("waits", "strays") & (clocks == "in each server") & ((anchor == "dispatch") | ~at_work),
         {decode_leg: expired(decode_cancel)},
         says="The pages have not come in time: decode gives its leg up."),
    Rule("hear_decode_cancel", "decode", "up", "up", decode_cancel == "sent",
         {decode_cancel: "heard", decode_leg: where(decode_open, "cancelled", decode_leg)},
         says="Decode learns that its leg is cancelled, and gives it up."),
    Rule("mistake_decode_cancel", "decode", "up", "up", decode_open & strays_in(decode_cancel),
         {decode_leg: "cancelled"}, fair=False,
         says="A cancel of an older attempt has the id of this one, and ends it."),
    Rule("decode_dies", "decode", "up", "down", decode_open, {decode_leg: "failed"}, fair=False,
         says="The decode server dies. The router sees the connection break."),
)  # fmt: skip

# --------------------------------------------------------------------------------------------------------------------
# Properties

PROPERTIES: Final = (
    Property(
        "legs-paired", "Prefill never holds pages under an id by which decode does not look for them.",
        some("attempt", (prefill_leg == "holds")
             & (((stage == "both sent") & (decode_leg == "none")) | (decode_leg == "strays"))),
        reports=("sgl-project/sglang#40731", "NVIDIA/TensorRT-LLM#15309", "vllm-project/vllm#42839"),
        broken="prefill holds pages under an id by which decode does not look for them",
    ),
    Property(
        "partner-told", "No leg waits for its clock because the router ended its attempt without a word.",
        some("attempt", (prefill_leg == "forgotten") | (decode_leg == "forgotten")),
        reports=("vllm-project/vllm#41269", "ai-dynamo/dynamo#13855", "ai-dynamo/dynamo#13691", "llm-d/llm-d#1138"),
        broken="the router had ended the attempt, and a leg of it has waited until its time was up",
    ),
    Property(
        "own-cancel", "A leg is cancelled only if its attempt was.",
        some("attempt", ((prefill_leg == "cancelled") & (prefill_cancel == "none"))
             | ((decode_leg == "cancelled") & (decode_cancel == "none"))),
        broken="a leg was cancelled, and nobody had cancelled its attempt",
    ),
    Property(
        "waits-for-work", "Decode does not give up a leg while prefill is at work on the other.",
        some("attempt", decode_leg.in_("expired", "forgotten") & at_work),
        reports=("llm-d/llm-d-router#2438",),
        broken="decode's time is up, and prefill is still computing",
    ),
    Property(
        "error-told", "The client is told of an error as an error.",
        (client == "served") & ForAll("attempt", decode_leg != "answered"),
        broken="the client has been served, and no decode server has answered",
    ),
    Property(
        "request-settles", "Every client that waits hears something, and no server keeps anything of its request.",
        (client == "waits") | some("attempt", prefill_open | decode_open), kind="liveness",
        reports=("LMCache/LMCache#1215",),
        broken="the client {client}, and nobody will ever move the request again",
    ),
)  # fmt: skip

# --------------------------------------------------------------------------------------------------------------------
# Lemmas

LEMMAS: Final = (
    Lemma("nothing before the first", implies(turn == "to begin", stage == "none")),
    Lemma("in some attempt", implies(turn == "in an attempt", some("attempt", sent))),
    Lemma("nothing before it is sent", implies(stage == "none", (prefill_leg == "none") & (decode_leg == "none"))),
    Lemma("prefill is sent", implies(stage != "none", prefill_leg != "none")),
    Lemma("decode is not sent yet", implies(stage == "prefill sent", decode_leg == "none")),
    Lemma("both are sent", implies(stage == "both sent", decode_leg != "none")),
    Lemma("nothing strays", decode_leg != "strays"),
    Lemma("read by decode", implies(prefill_leg == "read", decode_leg != "none")),
    Lemma("read before it is answered", implies(decode_leg.in_("has all", "answered"), prefill_leg == "read")),
    Lemma("prefill died at work", implies(prefill_server == "down", prefill_leg == "failed")),
    Lemma("decode died at work", implies(decode_server == "down", decode_leg == "failed")),
    Lemma("prefill is told", implies((stage == "over") & prefill_open, prefill_cancel != "none")),
    Lemma("decode is told", implies((stage == "over") & decode_open, decode_cancel != "none")),
    Lemma("nobody is forgotten", (prefill_leg != "forgotten") & (decode_leg != "forgotten")),
    Lemma("forgotten when over", implies((prefill_leg == "forgotten") | (decode_leg == "forgotten"), stage == "over")),
    Lemma("cancelled by the router", implies(prefill_leg == "cancelled", prefill_cancel != "none")),
    Lemma("cancelled by the router, decode", implies(decode_leg == "cancelled", decode_cancel != "none")),
    Lemma("decode is patient", implies(decode_leg.in_("expired", "forgotten"), ~at_work)),
    Lemma("served with an answer", implies(client == "served", some("attempt", decode_leg == "answered"))),
)
FEW: Final = {
    "legs-paired": ("both are sent", "nothing strays"),
    "partner-told": (
        "nothing before it is sent", "read before it is answered", "prefill is told", "decode is told",
        "nobody is forgotten",
    ),
    "own-cancel": ("cancelled by the router", "cancelled by the router, decode"),
    "waits-for-work": ("nothing before it is sent", "decode is patient"),
    "error-told": ("served with an answer",),
    "request-settles": (
        "nothing before the first", "in some attempt", "nothing before it is sent", "prefill is sent",
        "decode is not sent yet", "read by decode", "prefill died at work", "decode died at work",
        "forgotten when over",
    ),
}  # fmt: skip
"""For each property, lemmas that suffice in most designs."""

POTENTIAL: Final = {
    client: {"waits": 1},
    stage: {"none": 20, "prefill sent": 10, "both sent": 6},
    prefill_server: {"up": 1}, decode_server: {"up": 1},
    prefill_leg: {"none": 4, "asked": 3, "computes": 2, "holds": 1},
    decode_leg: {"none": 4, "asked": 3, "waits": 2, "strays": 2, "has all": 1},
    prefill_cancel: {"none": 2, "sent": 1}, decode_cancel: {"none": 2, "sent": 1},
}  # fmt: skip
"""How many steps each label still has before it; none where it is not listed."""

# --------------------------------------------------------------------------------------------------------------------
# Designs


def _design(name: str, says: str, **chosen: str) -> Choice:
    return Choice(f"router-{name}", "router", SWITCHES, chosen, says=says)


DESIGNS: Final = {
    design.name: design
    for design in (
        _design("latch", "The recommended one: each switch at its first position."),
        _design("in-turn", "Decode hears of the request when prefill has finished.", order="prefill first"),
        _design("own-ids", "Each server makes an id of its own (vllm#42839).", ids="of each leg"),
        _design("old-id", "A retry has the id of the attempt that failed.", retries="both legs, old id"),
        _design("one-leg", "Prefill's leg alone is retried (sglang#40731).", retries="one leg, new id"),
        _design("silent-failure", "One leg fails, the other is not told (vllm#41269).", failures="end the attempt"),
        _design("silent-hangup", "A hang-up ends at the router (dynamo#13855).", hangups="end the attempt"),
        _design("empty-answer", "An error is told as an empty answer.", errors="as an empty answer"),
        _design("error-kept", "An error is logged, and told nobody.", errors="kept"),
        _design("no-clocks", "A server waits for its partner for ever.", clocks="none"),
        _design("early-clock", "Decode's clock runs from dispatch (llm-d-router#2438).", anchor="dispatch"),
        _design("into-decode", "Prefill computes into decode's memory.", buffer="at decode"),
        _design("circle", "... and decode hears of it last (LMCache#1215).", order="prefill first", buffer="at decode"),
    )
}


@attrs.frozen
class Router(Sizes):
    """How many attempts a request may have, or any number."""

    crowd: ClassVar[str | None] = "attempt"
    attempts: int = 2


ROUTER: Final = Protocol(
    "router",
    "A request of a client is two requests, which a router sends, retries and cancels.",
    sizes=Router,
    sorts=("attempt",),
    state=STATE,
    threads={
        "client": Thread(client), "router": Thread(turn),
        "prefill": Thread(prefill_server), "decode": Thread(decode_server),
    },
    rows=ROWS,
    switches=SWITCHES,
    designs=DESIGNS,
    properties=PROPERTIES,
    worlds=(
        World("orderly network", "", "orderly", Router()), World("a message is lost", "x", "lossy", Router()),
    ),
    everything=World("everything", "", "disorderly", Router()),
    counts=(2,),
    lemmas=LEMMAS,
    few=FEW,
    potential=POTENTIAL,
)  # fmt: skip
