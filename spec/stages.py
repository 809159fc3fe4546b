"""The stages protocol: the queues that requests of one server pass, and who looks at each.

A prefill server has a request in its *bootstrap* queue until decode's metadata is there, in its *waiting* queue until
the pool has pages for it, computes it, and has it in its *inflight* queue until its pages are read. A scheduler loop
goes round these queues. What fails, is aborted or is too late has to be taken out of whichever queue it is in, and to
give back whatever it has by then: a *pin* on the cached prefix that was looked up for it, its pages, and, if it was
*retracted* to make room for others and waits to return, a copy in host memory. In SGLang these are the queues of
``disaggregation/prefill.py`` and the scheduler's ``abort_request`` and ``retract_decode``; decode's are alike.

**Switches.** The first position of each is the recommended one; ``DESIGNS`` has a design for each of the others.

**Fair.** The loop goes on, jobs end, and time passes. Nobody owes a request its metadata, nor that decode reads it.

**What is subtle.** Requests meet in two places only, the pool and the loop. So a rule for one request can wait for
another one, or for the work that only a new one brings. And a request that returns is the same request with other
pages: what still reads the old ones was started in an older life. A request is retracted once here: one that may be
retracted without end need not end. An *item* is a request in these queues; ``requests``, in the room, are those of one
room id.
"""

from __future__ import annotations

from typing import ClassVar, Final

import attrs

from kvlatch.spec.schema import NETWORKS, Choice, Lemma, Property, Protocol, Rule, Sizes, Thread, World
from kvlatch.spec.terms import Field, ForAll, Term, implies, some, where

# --------------------------------------------------------------------------------------------------------------------
# Switches

scan = Field("scan", "switch", ("every queue", "not waiting", "not inflight"))
"""In which queues does the loop look for requests that have ended?"""
deadlines = Field("deadlines", "switch", ("in every queue", "in bootstrap", "with a batch"))
"""Where has a request a time limit? Some code looks at clocks only in a round that forms a new batch."""
retracts = Field("retracts", "switch", ("when its jobs have ended", "at once"))
"""When are the pages of a retracted request given to others?"""
leaves = Field("leaves", "switch", ("when its jobs have ended", "at once"))
"""When does a request that has ended leave, with its pages?"""
surprises = Field("surprises", "switch", ("handled", "end the loop"))
"""What does the loop do with a request in a state that its author did not think of?"""
unpins = Field("unpins", "switch", ("on every way out", "when retrieved"))
"""Who gives a pin back: also a request that leaves before it has retrieved what was pinned?"""
copies = Field("copies", "switch", ("on every way out", "on return"))
"""Who gives a host copy back: also a request that leaves while it is retracted?"""
flushes = Field("flushes", "switch", ("when nothing is pinned", "at once"))
"""When is the cache of prefixes flushed?"""
gauges = Field("gauges", "switch", ("from the queues", "by events"))
"""How is the number of requests known: counted when asked for, or raised and lowered where one comes and succeeds?"""
counters = Field("counters", "switch", ("by first cause", "as transfer failures", "transfer failures alone"))
"""How are failures counted: each by its cause, all as one kind, or one kind only?"""
network = Field("network", "switch", NETWORKS)
"""No message between servers is in this protocol, so the network makes no difference."""

SWITCHES: Final = (
    scan, deadlines, retracts, leaves, surprises, unpins, copies, flushes, gauges, counters, network,
)  # fmt: skip

# --------------------------------------------------------------------------------------------------------------------
# State

loop = Field("loop", "room", ("runs", "died"))
"""The scheduler loop."""
pool = Field("pool", "room", ("free", "full"))
"""The pool of pages: full if there are none for one more request."""
cache = Field("cache", "room", ("kept", "flushed"))
"""The cache of prefixes; a flush makes all pins before it void."""

place = Field(
    "place", "item", ("new", "bootstrap", "waiting", "running", "run in vain", "inflight", "retracted", "out")
)
"""Where the request is. It is run in vain if it had ended when it was started."""
verdict = Field("verdict", "item", ("open", "done", "failed", "aborted", "timed out"))
"""How the request has ended: its first cause."""
pages = Field("pages", "item", ("none", "held"))
copy = Field("copy", "item", ("none", "held"))
"""The copy in host memory."""
pin = Field("pin", "item", ("none", "held", "held since the flush"))
"""A pin on the prefix that was found for it, until it is retrieved."""
job = Field("job", "item", ("none", "runs"))
"""What works on its pages beside the loop: transfers of its chunks, stores of its blocks."""
life = Field("life", "item", ("first", "second"))
"""A request that was retracted is in its second life."""
gauge = Field("gauge", "item", ("out", "in"))
"""Does the gauge of requests count it?"""
counted = Field("counted", "item", verdict.labels)
"""The counter that it was counted by; open, while it has not been counted."""

STATE: Final = (loop, pool, cache, place, verdict, pages, copy, pin, job, life, gauge, counted)

queued = place.in_("bootstrap", "waiting", "inflight", "retracted")
looked_at = (
    place.in_("bootstrap", "retracted")
    | ((place == "waiting") & (scan != "not waiting"))
    | ((place == "inflight") & (scan != "not inflight"))
)
"""The loop sees here that the request has ended."""
ended = verdict != "open"
idle = job == "none"
unexpected = ((place == "waiting") & verdict.in_("failed", "aborted")) | ((place == "waiting") & ~idle)
"""Ended before it had pages; or admitted once more, with jobs from its life before."""
timed = (
    ((deadlines == "in every queue") & queued)
    | ((deadlines == "in bootstrap") & (place == "bootstrap"))
    | ((deadlines == "with a batch") & queued & (pool == "free") & some("item", place == "waiting"))
)
"""A clock for the request is looked at."""

# --------------------------------------------------------------------------------------------------------------------
# Rows

_admitted = where((verdict == "open") | (place != "waiting"), "running", "run in vain")
_admits: Final[dict[Field, str | Term]] = {place: _admitted, pages: "held", pin: "none", job: "runs"}
_can_admit = (place == "waiting") & (pool == "free") & (~ended | (scan == "not waiting"))
_counts = where(
    (counters == "by first cause") | verdict.in_("done", "failed"), verdict,
    where(counters == "as transfer failures", "failed", "open"),
)  # fmt: skip

ROWS: Final = (
    # The way of a request.
    Rule("enter", "scheduler", "runs", "runs", place == "new",
         {place: "bootstrap", gauge: "in", pin: where(cache == "kept", "held", "held since the flush")},
         per="item", fair=False,
         says="A request enters the bootstrap queue. A part of it is found in the cache, and pinned."),
    Rule("bootstrapped", "scheduler", "runs", "runs", (place == "bootstrap") & ~ended, {place: "waiting"},
         per="item", fair=False,
         says="Decode's metadata is there: the request goes to the waiting queue."),
    Rule("admit", "scheduler", "runs", "runs", _can_admit, _admits, per="item",
         says="The request gets pages, retrieves what was pinned for it, and runs."),
    Rule("admit_last", "scheduler", "runs", "runs", _can_admit, {**_admits, pool: "full"}, per="item", fair=False,
         says="... and gets the last pages that there are."),
    Rule("computed", "scheduler", "runs", "runs", place.in_("running", "run in vain"), {place: "inflight"},
         per="item",
         says="The request is computed: it goes to the inflight queue, until its pages are read."),
    Rule("retract", "scheduler", "runs", "runs",
         (place == "running") & (life == "first") & (idle | (retracts == "at once")),
         {place: "retracted", life: "second", pages: "none", pool: "free", copy: "held"}, per="item", fair=False,
         says="Others need the pages: the request is retracted to host memory."),
    Rule("come_back", "scheduler", "runs", "runs", (place == "retracted") & (pool == "free") & ~ended,
         {place: "waiting", copy: "none"}, per="item",
         says="There is room again: the request returns to the waiting queue."),
    Rule("end_job", "worker", "runs", "none",
         says="The last job on the pages of the request has ended."),

    # How it ends.
    Rule("complete", "request", "open", "done", (place == "inflight") & idle, fair=False,
         says="Decode has read all pages: the request is done."),
    Rule("fail", "request", "open", "failed", queued | (place == "running"), fair=False,
         says="Something fails for the request, wherever it is."),
    Rule("abort", "request", "open", "aborted", queued | (place == "running"), fair=False,
         says="The client hangs up, wherever its request is."),
    Rule("time_out", "request", "open", "timed out", timed,
         says="The time of the request in this queue is up."),
    Rule("leave", "scheduler", "runs", "runs", looked_at & ended & (idle | (leaves == "at once")),
         {place: "out", pages: "none", pool: where(pages == "held", "free", pool),
          copy: where(copies == "on every way out", "none", copy),
          pin: where(unpins == "on every way out", "none", pin),
          gauge: where((gauges == "from the queues") | (verdict == "done"), "out", gauge), counted: _counts},
         per="item",
         says="The loop finds a request that has ended: it leaves, gives back what it has, and is counted."),
    Rule("raise", "scheduler", "runs", "died", (surprises == "end the loop") & unexpected, per="item", fair=False,
         says="The loop meets a request that it did not expect there, and an assertion ends it."),
    Rule("flush", "control", "kept", "flushed", (flushes == "at once") | ForAll("item", pin != "held"), fair=False,
         says="The cache is flushed."),
)  # fmt: skip

# --------------------------------------------------------------------------------------------------------------------
# Properties

PROPERTIES: Final = (
    Property(
        "none-in-vain", "No request is started that has ended.",
        some("item", place == "run in vain"),
        reports=("sgl-project/sglang#28236",),
        broken="a request was started that had ended in its queue",
    ),
    Property(
        "jobs-hold-pages", "No job works on pages that the request has given back.",
        some("item", (job == "runs") & (pages == "none")),
        reports=("vllm-project/vllm#52360", "sgl-project/sglang#8352"),
        broken="a job works on the pages of a request that has none any more",
    ),
    Property(
        "pins-hold", "What is pinned stays.",
        (cache == "flushed") & some("item", pin == "held"),
        reports=("sgl-project/sglang#23672",),
        broken="the cache was flushed, and a request has a pin in it",
    ),
    Property(
        "gauges-true", "The gauge counts the requests that are there, and no others.",
        some("item", ((gauge == "in") & place.in_("new", "out")) | ((gauge == "out") & ~place.in_("new", "out"))),
        reports=("sgl-project/sglang#26912", "kvcache-ai/Mooncake#3680"),
        broken="the gauge still counts a request that has left",
    ),
    Property(
        "counters-true", "Every request that has left is counted by its first cause.",
        some("item", (place == "out") & (counted != verdict)),
        reports=("vllm-project/vllm#55854", "kvcache-ai/Mooncake#3680"),
        broken="a request has left, and is not counted by what ended it",
    ),
    Property(
        "stages-settle", "Every request leaves, and gives back all that it has.",
        some("item", ~place.in_("new", "out") | (pages == "held") | (copy == "held") | (pin != "none")),
        kind="liveness",
        reports=("sgl-project/sglang#31800", "NVIDIA/TensorRT-LLM#12313", "LMCache/LMCache#1034"),
        broken="a request, or something that it had, is still there, and nobody will move it",
    ),
)  # fmt: skip

# --------------------------------------------------------------------------------------------------------------------
# Lemmas

LEMMAS: Final = (
    Lemma("the loop goes on", loop == "runs"),
    Lemma("started alive", place != "run in vain"),
    Lemma("jobs have pages", implies(job == "runs", pages == "held")),
    Lemma("pages in their places", implies(pages == "held", place.in_("running", "run in vain", "inflight"))),
    Lemma("full of somebody's pages", implies(pool == "full", some("item", pages == "held"))),
    Lemma("copies while retracted", implies(copy == "held", place == "retracted")),
    Lemma("pins before retrieval", implies(pin != "none", place.in_("bootstrap", "waiting"))),
    Lemma("pinned before the flush", implies(pin == "held", cache == "kept")),
    Lemma("counted while there", implies(gauge == "in", ~place.in_("new", "out"))),
    Lemma("there while counted", implies(gauge == "out", place.in_("new", "out"))),
    Lemma("counted by its cause", implies(place == "out", counted == verdict)),
)

FEW: Final = {
    "none-in-vain": ("started alive",),
    "jobs-hold-pages": ("jobs have pages",),
    "pins-hold": ("pinned before the flush",),
    "gauges-true": ("counted while there", "there while counted"),
    "counters-true": ("counted by its cause",),
    "stages-settle": (
        "the loop goes on", "pages in their places", "full of somebody's pages", "copies while retracted",
        "pins before retrieval",
    ),
}  # fmt: skip
"""For each property, lemmas that suffice in most designs."""

POTENTIAL: Final = {
    place: {"new": 12, "bootstrap": 10, "retracted": 9, "waiting": 8, "running": 6, "run in vain": 6, "inflight": 4},
    life: {"first": 9},
    verdict: {"open": 1},
    job: {"runs": 1},
    loop: {"runs": 1},
    cache: {"kept": 1},
}
"""How many steps each label still has before it, at most; none where it is not listed."""

# --------------------------------------------------------------------------------------------------------------------
# Designs


def _design(name: str, says: str, **chosen: str) -> Choice:
    return Choice(f"stages-{name}", "stages", SWITCHES, chosen, says=says)


DESIGNS: Final = {
    design.name: design
    for design in (
        _design("latch", "The recommended one: each switch at its first position."),
        _design("blind-waiting", "Nobody looks at the waiting queue (sglang#28236).", scan="not waiting"),
        _design("blind-inflight", "Nobody looks for failures in flight (sglang#31075).", scan="not inflight"),
        _design("early-deadline", "Only the first queue has a deadline (sglang#31800).", deadlines="in bootstrap"),
        _design("idle-clock", "Clocks are looked at with a batch (TensorRT-LLM#12313).", deadlines="with a batch"),
        _design("hasty-retract", "Pages are retracted from jobs (vllm#52360).", retracts="at once"),
        _design("hasty-leave", "A request leaves its jobs behind.", leaves="at once"),
        _design("asserts", "What is unexpected ends the loop (vllm#49118).", surprises="end the loop"),
        _design("pin-left", "A pin is given back by its retrieval (LMCache#1034).", unpins="when retrieved"),
        _design("copy-left", "A host copy is given back by its return (sglang#18701).", copies="on return"),
        _design("hasty-flush", "A flush does not ask for pins (sglang#23672).", flushes="at once"),
        _design("event-gauge", "A gauge is lowered by success (sglang#26912).", gauges="by events"),
        _design("one-counter", "A failure is a transfer failure (vllm#55854).", counters="as transfer failures"),
        _design("one-counted", "Other failures are not counted (Mooncake#3680).", counters="transfer failures alone"),
    )
}


@attrs.frozen
class Stages(Sizes):
    """How many requests the server has in its queues, or any number."""

    crowd: ClassVar[str | None] = "item"
    items: int = 2


STAGES: Final = Protocol(
    "stages",
    "The queues that the requests of one server pass, and who looks at each.",
    sizes=Stages,
    sorts=("item",),
    state=STATE,
    threads={
        "scheduler": Thread(loop), "worker": Thread(job), "request": Thread(verdict), "control": Thread(cache),
    },
    rows=ROWS,
    switches=SWITCHES,
    designs=DESIGNS,
    properties=PROPERTIES,
    worlds=(World("orderly network", "", "orderly", Stages()),),
    everything=World("everything", "", "orderly", Stages()),
    counts=(2,),
    lemmas=LEMMAS,
    few=FEW,
    potential=POTENTIAL,
)  # fmt: skip
