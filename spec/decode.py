"""The decode protocol: how decode receives a request from the ranks of prefill, every atomic step a row.

Decode allocates KV pages and tells each *sender*, a rank of prefill, where they are. From then on the sender writes
into decode's memory by itself, and decode sees nothing of it until the sender *reports* how its part has ended. So two
things have to be right at once. The request is a success only when every part is in. And when it fails, its pages must
wait until nobody may still write into them: decode sends each sender an abort *notice*, the sender answers with an ACK
once its writes have ended, and only a sender that is *quiet*, by report, ACK or death, is no longer waited for. In
SGLang this is ``KVReceiver``, the heartbeat thread and the deferred release of pages, in ``disaggregation/decode.py``.

**Switches.** The first position of each is the recommended one; ``DESIGNS`` has a design for each of the others.

**Fair.** A server that can move does so eventually: a posted write ends, a clock runs out, a dead sender is missed. A
message arrives unless it is lost; one that is sent until it is answered is lost at most once here. Nobody owes decode
that a write succeeds, or that a report arrives: for these there is the clock.

**Assumed.** The writes of a sender end when it dies. If not, no message helps, and decode must *fence* its memory off.
"""

from __future__ import annotations

from typing import ClassVar, Final

import attrs

from kvlatch.spec.schema import NETWORKS, Choice, Lemma, Property, Protocol, Rule, Sizes, Thread, World
from kvlatch.spec.status import F, S, W
from kvlatch.spec.terms import Field, ForAll, Term, implies, some, where

# --------------------------------------------------------------------------------------------------------------------
# Switches

release = Field("release", "switch", ("when all are quiet", "at once", "or when time is up", "after a fence"))
"""When does decode give the pages of a request back that it no longer needs?"""
acks = Field("acks", "switch", ("when drained", "on receipt"))
"""Does an ACK say that the sender's writes have ended, or only that it has read the notice?"""
ack_target = Field("ack_target", "switch", ("outlives the request", "cleared with it"))
"""How long does a sender know where to send the ACK that it owes? It may clear a request whose write still runs."""
posts = Field("posts", "switch", ("until aborted", "regardless", "if told later"))
"""Does a sender post a write for a request that was aborted? Some forget a notice that comes before the metadata."""
notices = Field("notices", "switch", ("until acknowledged", "once"))
"""Is a notice that nobody acknowledges sent again?"""
reports = Field("reports", "switch", ("every end", "success only", "once", "when posted"))
"""What does a sender report? A failure too; or not; or not to a decode that has told it nothing yet. Or too early."""
counts = Field("counts", "switch", ("every sender told", "every sender", "any sender"))
"""Whose reports of success make a success?"""
timer = Field("timer", "switch", ("fails", "finishes", "off"))
"""Time is up: the request fails; or the wait ends as if everything were there; or there is no limit."""
poll = Field("poll", "switch", ("drain, conclude, deadline", "drain, deadline", "deadline first"))
"""What does a poll look at first: the reports that are there, what they add up to, or the clock?"""
heartbeat = Field("heartbeat", "switch", ("one step", "look, then write", "none"))
"""How does a sender's death reach the request?"""
death = Field("death", "switch", ("ends its writes", "leaves its writes"))
"""Do the writes that a sender has posted end with it?"""
network = Field("network", "switch", NETWORKS)
"""May a message be lost; may the notice come early, before the metadata? Other faults make no difference here."""

SWITCHES: Final = (release, acks, ack_target, posts, notices, reports, counts, timer, poll, heartbeat, death, network)

# --------------------------------------------------------------------------------------------------------------------
# State

entry = Field("entry", "room", (W, S, F))
"""``request_status[room]`` on decode."""
concluded = Field("concluded", "room", ("none", S, F, "timed out"))
"""History: the first terminal status that the entry has had; timed out is Failed because time was up."""
stage = Field("stage", "room", ("waiting", "succeeded", "failed"))
"""Where the request is on decode: it waits for its KV, or the scheduler has taken it out with an outcome."""
pages = Field("pages", "room", ("held", "released"))
"""Decode's KV pages of the request; once released they are another request's."""
fence = Field("fence", "room", ("down", "up"))
"""With the fence up, writes of prefill no longer reach these pages."""
clock = Field("clock", "room", ("runs", "up"))
"""The time limit of the request."""
in_time = Field("in_time", "room", ("no", "yes"))
"""History: when time was up, every sender told had long reported success."""
patience = Field("patience", "room", ("left", "over"))
"""The time that decode waits for ACKs, where it does not wait for ever."""

metadata = Field("metadata", "sender", ("none", "left out", "sent", "there", "lost"))
"""Where decode's message is that tells this sender of the request and its pages. Some senders have no part in it."""
life = Field("life", "sender", ("alive", "dead"))
writes = Field("writes", "sender", ("none", "posted", "in", "broken"))
"""This sender's part: nothing is written, a write runs, all is written, or it has failed and nothing runs."""
report = Field("report", "sender", ("none", "sent", "lost", "queued", "read"))
"""How the part has ended, as a message: once it has arrived it is queued at decode, until a poll reads it."""
word = Field("word", "sender", ("none", S, F))
"""What the report says."""
notice = Field("notice", "sender", ("none", "sent", "lost", "sent again", "heard", "forgotten"))
"""The abort notice to this sender."""
ack = Field("ack", "sender", ("none", "sent", "lost", "sent again", "here", "dropped"))
"""The sender's answer to the notice; dropped, if nobody knows any more where to send it."""
watch = Field("watch", "sender", ("on", "saw a live request", "over"))
"""Decode's heartbeat to this sender; over, when it has been missed."""

STATE: Final = (
    entry, concluded, stage, pages, fence, clock, in_time, patience,
    metadata, life, writes, report, word, notice, ack, watch,
)  # fmt: skip

succeeded = (report == "read") & (word == S)
told_and_done = (metadata == "left out") | succeeded
complete = (
    ((counts == "every sender told") & ForAll("sender", told_and_done))
    | ((counts == "every sender") & ForAll("sender", succeeded))
    | ((counts == "any sender") & some("sender", succeeded))
)
"""What decode has read makes the request a success."""
drained = ForAll("sender", report != "queued")
arrived = report.in_("queued", "read") & (word == S)
all_reported = some("sender", arrived) & ForAll("sender", (metadata == "left out") | arrived)
"""Every sender that has a part has reported success, and the reports have arrived."""
tells_failure = (report == "none") & (reports != "success only")
quiet = metadata.in_("none", "left out") | (report == "read") | (ack == "here") | (watch == "over")
"""Decode knows that this sender writes nothing more."""
addressed = metadata.in_("sent", "there", "lost")
over = stage.in_("succeeded", "failed")
lossy = network.in_("lossy", "disorderly")

# --------------------------------------------------------------------------------------------------------------------
# Rows


def concludes(terminal: str) -> dict[Field, str | Term]:
    """History, where a terminal status is written."""
    return {concluded: where(concluded == "none", terminal, concluded)}


def says_failed(when: Term) -> dict[Field, str | Term]:
    """A sender reports a failure, where the formula holds."""
    return {report: where(when, "sent", report), word: where(when, F, word)}


ROWS: Final = (
    # Decode tells the senders, reads their reports, and concludes.
    Rule("send_metadata", "receiver", W, W, metadata == "none", {metadata: "sent"}, per="sender",
         says="Decode tells a sender of the request, and where its pages are."),
    Rule("leave_out", "receiver", W, W, metadata == "none", {metadata: "left out"}, per="sender", fair=False,
         says="This sender has no part in the request: nothing to send, or another one sends it."),
    Rule("read", "receiver", W, W, report == "queued", {report: "read"}, per="sender",
         says="A poll reads the report of a sender, which was in decode's queue."),
    Rule("conclude_success", "receiver", W, S, complete, concludes(S),
         says="All that decode waits for is in: it writes Success."),
    Rule("conclude_failure", "receiver", W, F, some("sender", (report == "read") & (word == F)), concludes(F),
         says="A sender has reported a failure: decode writes Failed."),
    Rule("abort", "receiver", W, F, then=concludes(F), fair=False,
         says="The client disconnects: decode writes Failed."),
    Rule("time_out", "receiver", W, F,
         (timer == "fails") & (clock == "up") & (drained | (poll == "deadline first"))
         & (~complete | (poll != "drain, conclude, deadline")), concludes("timed out"),
         says="A poll finds the time up and the request not complete: decode writes Failed."),
    Rule("finish", "receiver", W, S, (timer == "finishes") & (clock == "up"), concludes(S),
         says="Time is up, and the wait is ended as if everything were there."),
    Rule("settle_success", "scheduler", "waiting", "succeeded", entry == S,
         says="The scheduler polls Success, and runs the request."),
    Rule("settle_failure", "scheduler", "waiting", "failed", entry == F,
         says="The scheduler polls Failed, and tells the client."),
    Rule("clock_up", "clock", "runs", "up", (timer != "off") & (entry == W),
         {in_time: where(all_reported, "yes", "no")},
         says="The time of the request is up."),

    # A sender writes its part, and says how that ended.
    Rule("hear_metadata", "sender", "alive", "alive", metadata == "sent",
         {metadata: "there", **says_failed((writes == "broken") & tells_failure & (reports != "once"))},
         says="The sender learns of the request and of decode's pages. Has its part failed already, it says so."),
    Rule("lose_metadata", "sender", "alive", "alive", (metadata == "sent") & lossy,
         {metadata: "lost"}, fair=False,
         says="Decode's metadata is lost on its way to this sender."),
    Rule("post", "sender", "alive", "alive",
         (metadata == "there") & (writes == "none") & ((notice != "heard") | (posts == "regardless")),
         {writes: "posted"}, fair=False,
         says="The sender has computed its part, and posts the write into decode's pages."),
    Rule("land", "sender", "alive", "alive", writes == "posted", {writes: "in"},
         says="The write has ended: all of this sender's part is in decode's pages."),
    Rule("break", "sender", "alive", "alive", writes.in_("none", "posted"),
         {writes: "broken", **says_failed((metadata == "there") & tells_failure)}, fair=False,
         says="This sender's part fails, before its write or in it, nothing of it runs any more, and decode is told."),
    Rule("report", "sender", "alive", "alive",
         (report == "none") & ((writes == "in") | ((writes == "posted") & (reports == "when posted"))),
         {report: "sent", word: S},
         says="The sender reports that its part is written."),
    Rule("deliver_report", "receiver", W, W, report == "sent", {report: "queued"}, per="sender",
         says="A report arrives in decode's queue, where a poll will find it."),
    Rule("lose_report", "receiver", W, W, (report == "sent") & lossy, {report: "lost"},
         per="sender", fair=False,
         says="A report is lost."),
    Rule("die", "sender", "alive", "dead",
         then={writes: where((writes == "posted") & (death == "ends its writes"), "broken", writes)}, fair=False,
         says="The sender dies, or its machine is cut off."),

    # Who is dead is missed.
    Rule("miss", "heartbeat", "on", "over", (life == "dead") & ((heartbeat == "one step") | (entry != W))
         & (heartbeat != "none"),
         {entry: where(entry == W, F, entry), **concludes(F)},
         says="The heartbeat misses a sender: decode writes Failed, unless the request is over."),
    Rule("miss_look", "heartbeat", "on", "saw a live request",
         (life == "dead") & (heartbeat == "look, then write") & (entry == W),
         says="The heartbeat misses a sender, and sees that the request is not over."),
    Rule("miss_write", "heartbeat", "saw a live request", "over", then={entry: F, **concludes(F)},
         says="The heartbeat writes Failed, whatever the entry has become meanwhile."),

    # A request that failed: notice, ACK, release.
    Rule("send_notice", "receiver", F, F, addressed & (notice == "none"), {notice: "sent"}, per="sender",
         says="Decode sends the abort notice to a sender that it has told of the request."),
    Rule("lose_notice", "receiver", F, F, (notice == "sent") & lossy, {notice: "lost"},
         per="sender", fair=False,
         says="The notice is lost."),
    Rule("send_again", "receiver", F, F, (notice == "lost") & (notices == "until acknowledged"),
         {notice: "sent again"}, per="sender",
         says="No ACK has come: decode sends the notice once more."),
    Rule("hear_notice", "sender", "alive", "alive",
         notice.in_("sent", "sent again") & ((metadata != "sent") | network.in_("early", "disorderly")),
         {notice: where((posts == "if told later") & (metadata != "there"), "forgotten", "heard")},
         says="The sender learns that the request is over. It remembers that, even if it knows no such request yet."),
    Rule("acknowledge", "sender", "alive", "alive",
         notice.in_("heard", "forgotten") & (ack == "none") & ((writes != "posted") | (acks == "on receipt")),
         {ack: "sent"},
         says="The sender acknowledges the notice, once its writes have ended."),
    Rule("clear", "sender", "alive", "alive",
         (notice == "heard") & (ack == "none") & (ack_target == "cleared with it"), {ack: "dropped"}, fair=False,
         says="The sender's scheduler clears the request, and with it the address of the ACK that is still owed."),
    Rule("lose_ack", "sender", "alive", "alive", (ack == "sent") & lossy, {ack: "lost"}, fair=False,
         says="The ACK is lost."),
    Rule("acknowledge_again", "sender", "alive", "alive", (ack == "lost") & (notices == "until acknowledged"),
         {ack: "sent again"},
         says="Decode has asked once more, and the sender acknowledges once more."),
    Rule("hear_ack", "receiver", F, F, ack.in_("sent", "sent again"), {ack: "here"}, per="sender",
         says="Decode has this sender's ACK."),
    Rule("lose_patience", "keeper", "held", "held",
         (stage == "failed") & (release == "or when time is up") & (patience == "left"), {patience: "over"},
         says="Decode has waited long enough for ACKs."),
    Rule("raise_fence", "keeper", "held", "held", over & (release == "after a fence") & (fence == "down"),
         {fence: "up"},
         says="Decode withdraws the pages from the network: what is written into them late does not arrive."),
    Rule("release", "keeper", "held", "released",
         over & ((ForAll("sender", quiet) & (release != "after a fence")) | (release == "at once")
                 | (patience == "over") | (fence == "up")),
         says="Nobody may still write into the pages: they are given to other requests."),
)  # fmt: skip

# --------------------------------------------------------------------------------------------------------------------
# Properties

PROPERTIES: Final = (
    Property(
        "decode-pages-held", "No page is released while a sender may still write into it.",
        (pages == "released") & (fence == "down") & some("sender", writes == "posted"),
        reports=("sgl-project/sglang#32564", "sgl-project/sglang#35049", "kvcache-ai/Mooncake#398"),
        broken="decode has released the pages, and a sender still writes into them",
    ),
    Property(
        "decode-complete", "Success means that the part of every sender is in.",
        (entry == S) & some("sender", (metadata != "left out") & (writes != "in")),
        reports=("vllm-project/vllm#35943",),
        broken="decode says Success, and the part of a sender is not in its pages",
    ),
    Property(
        "decode-sticky", "What decode has concluded first stands.",
        ((concluded == S) & (entry == F)) | (concluded.in_(F, "timed out") & (entry == S)),
        broken="decode had concluded {concluded}, and now says {entry}",
    ),
    Property(
        "no-false-timeout", "No request is timed out whose senders had all reported success in time.",
        (concluded == "timed out") & (in_time == "yes"),
        reports=("sgl-project/sglang#32267",),
        broken="the request has timed out, and every report of success was there before its time was up",
    ),
    Property(
        "failure-told", "No request waits for its clock whose failure a living sender knows and keeps to itself.",
        (concluded == "timed out")
        & some("sender", (life == "alive") & (metadata == "there") & (writes == "broken") & (report == "none")),
        reports=("sgl-project/sglang#28651", "sgl-project/sglang#30329"),
        broken="the request has waited until its time was up, and a sender knew that its part had failed",
    ),
    Property(
        "decode-settles", "Every request is taken out of decode's queue, and its pages are given back.",
        (stage == "waiting") | (pages == "held"), kind="liveness",
        reports=("sgl-project/sglang#40645", "vllm-project/vllm#46283"),
        broken="the request is {stage}, its pages are {pages}, and nobody will change that",
    ),
)  # fmt: skip

# --------------------------------------------------------------------------------------------------------------------
# Lemmas

LEMMAS: Final = (
    Lemma("open", implies(entry == W, concluded == "none")),
    Lemma("what is concluded stands", ((entry == W) & (concluded == "none")) | ((entry == S) & (concluded == S))
          | ((entry == F) & concluded.in_(F, "timed out"))),
    Lemma("taken out after the verdict", implies(over, entry != W)),
    Lemma("patient", patience == "left"),
    Lemma("written for a request", implies(writes.in_("posted", "in"), metadata == "there")),
    Lemma("reported success", implies((report != "none") & (word == S), writes == "in")),
    Lemma("reported failure", implies((report != "none") & (word != S), writes == "broken")),
    Lemma("failures are reported",
          implies((life == "alive") & (metadata == "there") & (writes == "broken"), report != "none")),
    Lemma("success has all", implies(entry == S, told_and_done)),
    Lemma("no notice is forgotten", notice != "forgotten"),
    Lemma("acknowledged what was heard", implies(ack != "none", notice == "heard")),
    Lemma("acknowledged when drained", implies(~ack.in_("none", "dropped"), writes != "posted")),
    Lemma("no ACK is dropped", ack != "dropped"),
    Lemma("missed when dead", implies(watch != "on", life == "dead")),
    Lemma("missed in one step", watch != "saw a live request"),
    Lemma("the dead write nothing", implies(life == "dead", writes != "posted")),
    Lemma("released when quiet",
          implies(pages == "released", over & ((quiet & (release != "after a fence")) | (fence == "up")))),
    Lemma("reported in time", implies(in_time == "yes", (clock == "up") & ((metadata == "left out") | arrived))),
    Lemma("somebody reported in time", implies(in_time == "yes", some("sender", arrived))),
    Lemma("timed out in order", implies(concluded == "timed out", in_time == "no")),
)  # fmt: skip
FEW: Final = {
    "decode-pages-held": (
        "taken out after the verdict", "patient", "written for a request", "reported success", "reported failure",
        "no notice is forgotten", "acknowledged what was heard", "acknowledged when drained", "missed when dead",
        "the dead write nothing", "released when quiet",
    ),
    "decode-complete": ("reported success", "success has all"),
    "decode-sticky": ("what is concluded stands", "missed in one step"),
    "no-false-timeout": ("open", "reported in time", "somebody reported in time", "timed out in order"),
    "failure-told": ("failures are reported",),
    "decode-settles": ("success has all", "no ACK is dropped"),
}  # fmt: skip
"""For each property, lemmas that suffice in most designs."""

POTENTIAL: Final = {
    entry: {W: 1}, stage: {"waiting": 1}, pages: {"held": 1}, fence: {"down": 1}, clock: {"runs": 1},
    patience: {"left": 1},
    metadata: {"none": 2, "sent": 1}, life: {"alive": 1}, writes: {"none": 2, "posted": 1},
    report: {"none": 3, "sent": 2, "queued": 1},
    notice: {"none": 4, "sent": 3, "lost": 2, "sent again": 1}, ack: {"none": 4, "sent": 3, "lost": 2, "sent again": 1},
    watch: {"on": 2, "saw a live request": 1},
}  # fmt: skip
"""How many steps each label still has before it; none where it is not listed."""

# --------------------------------------------------------------------------------------------------------------------
# Designs


def _design(name: str, says: str, **chosen: str) -> Choice:
    return Choice(f"decode-{name}", "decode", SWITCHES, chosen, says=says)


DESIGNS: Final = {
    design.name: design
    for design in (
        _design("latch", "The recommended one: each switch at its first position."),
        _design("at-once", "Pages are released with the failure (sglang#32564).", release="at once"),
        _design("impatient", "Decode does not wait for ACKs for ever (sglang#40645).", release="or when time is up"),
        _design("fenced", "A fence, not ACKs.", release="after a fence", death="leaves its writes"),
        _design("outlived", "Writes outlive their sender, and no fence keeps them off.", death="leaves its writes"),
        _design("hasty-ack", "An ACK says that the notice was read (sglang#31357).", acks="on receipt"),
        _design("ack-cleared", "A sender that clears forgets its ACK (sglang#40645).", ack_target="cleared with it"),
        _design("posts-on", "A sender posts what was aborted.", posts="regardless"),
        _design("forgets", "A notice that comes before its request is forgotten.", posts="if told later"),
        _design("notice-once", "The notice is sent once (TensorRT-LLM#18517).", notices="once"),
        _design("success-only", "A sender keeps its failure to itself (sglang#28651).", reports="success only"),
        _design("one-shot", "Who registers late is not told of a failure (sglang#30329).", reports="once"),
        _design("hasty-report", "A sender reports success when it has posted.", reports="when posted"),
        _design("counts-all", "Decode waits for senders that have no part (vllm#23917).", counts="every sender"),
        _design("counts-any", "One report of success is enough.", counts="any sender"),
        _design("no-timer", "No limit covers the wait (sglang#31800, TensorRT-LLM#17665).", timer="off"),
        _design("finishes", "A time-out ends the wait as a success (vllm#36014).", timer="finishes"),
        _design("no-conclusion", "A poll reads the reports, and then looks at the clock.", poll="drain, deadline"),
        _design("clock-first", "A poll looks at the clock first (sglang#32267).", poll="deadline first"),
        _design("late-heartbeat", "The heartbeat looks, then writes.", heartbeat="look, then write"),
        _design("no-heartbeat", "A dead sender is not missed.", heartbeat="none"),
    )
}  # fmt: skip


@attrs.frozen
class Decode(Sizes):
    """How many senders there are, or any number."""

    crowd: ClassVar[str | None] = "sender"
    senders: int = 2


DECODE: Final = Protocol(
    "decode",
    "Decode receives a request from the ranks of prefill, and gives its pages back.",
    sizes=Decode,
    sorts=("sender",),
    state=STATE,
    threads={
        "receiver": Thread(entry), "scheduler": Thread(stage), "clock": Thread(clock), "keeper": Thread(pages),
        "sender": Thread(life), "heartbeat": Thread(watch),
    },
    rows=ROWS,
    switches=SWITCHES, designs=DESIGNS,
    properties=PROPERTIES,
    worlds=(
        World("orderly network", "", "orderly", Decode()),
        World("several faults of the network", "d", "disorderly", Decode(), parts=(
            World("a message is lost", "x", "lossy", Decode()), World("a message comes early", "e", "early", Decode()),
        )),
    ),
    everything=World("everything", "", "disorderly", Decode()),
    counts=(2,),
    lemmas=LEMMAS, few=FEW, potential=POTENTIAL,
)  # fmt: skip
