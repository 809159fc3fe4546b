"""The ranks protocol: how the ranks of one server agree on a request, every atomic step a row.

A tensor-parallel server runs one scheduler on each rank, and all must do the same with a request in the same round, or
their next collective runs over unequal lists and hangs. Each rank has a status table of its own. In every round each
polls its own table and *votes*; the votes are reduced by MIN, so one Failed fails the request everywhere and the
slowest rank decides everything else; then each rank *applies* what was decided. In SGLang these are
``poll_and_all_reduce`` and the branches after it, in ``disaggregation/{prefill,decode}.py``.

**A vote** is Bootstrapping, WaitingForInput (so is Transferring here: no rank treats it otherwise), Success or Failed.
A round in which nothing is decided is not a step; what a rank has voted stands until it votes otherwise.

**Switches.** Each is a question that published code has answered in both ways. The first position is the recommended
one; ``DESIGNS`` has a design for each of the others, under the public reports that it is known by.

**Fair.** A rank that can vote, apply or time out does so eventually, and the collective completes once every rank has
joined. Nobody owes a rank its metadata, its KV pages, or that nothing fails.

The rule that follows from the proofs: *every cause of a failure is written into the own table before the rank votes*.
Then a vote, a table and a reason never tell different stories.
"""

from __future__ import annotations

from typing import ClassVar, Final

import attrs

from kvlatch.spec.schema import NETWORKS, Choice, Lemma, Property, Protocol, Rule, Sizes, Thread, World
from kvlatch.spec.status import B, F, S, W
from kvlatch.spec.terms import Field, ForAll, implies, some, where

# --------------------------------------------------------------------------------------------------------------------
# Switches

applies = Field("applies", "switch", ("what was decided", "what it polls again"))
"""Does a rank that admits a request look at its own table once more?"""
metadata_vote = Field("metadata_vote", "switch", ("in the vote", "beside the vote"))
"""Does a rank without the request's metadata vote Success once its KV is there?"""
clock_vote = Field("clock_vote", "switch", ("written", "only voted", "of one rank"))
"""A rank's time is up: it writes Failed into its table; or it votes Failed, unknown to its table; or it just leaves."""
errors = Field("errors", "switch", ("handled", "leave the loop"))
"""Does an error while a failure is handled end the rank's scheduler loop?"""
reasons = Field("reasons", "switch", ("in the vote", "local"))
"""Does the reason of a failure travel with the vote?"""
own_failure = Field("own_failure", "switch", ("after the vote", "before the vote"))
"""Does a rank act on a failure of its own before the others know of it?"""
network = Field("network", "switch", NETWORKS)
"""No message between servers is in this protocol, so the network makes no difference."""

SWITCHES: Final = (applies, metadata_vote, clock_vote, errors, reasons, own_failure, network)

# --------------------------------------------------------------------------------------------------------------------
# State

decided = Field("decided", "room", (B, W, S, F))
"""What the last reduction made of the votes that differed from it: the agreed status."""
loop = Field("loop", "rank", ("runs", "left"))
"""The rank's scheduler loop."""
entry = Field("entry", "rank", (B, W, S, F))
"""``request_status[room]`` on this rank."""
metadata = Field("metadata", "rank", ("none", "here"))
"""What travels beside the KV pages, in a write of its own: first token, log probabilities."""
clock = Field("clock", "rank", ("runs", "up"))
"""The rank's own timeout for the request. Clocks differ, so the ranks' are up at different times."""
vote = Field("vote", "rank", ("none", B, W, S, F))
"""What the rank has last put into the collective."""
place = Field("place", "rank", ("waiting", "running", "succeeded", "failed"))
"""Where the request is on this rank: in its first queue, admitted, or taken out with an outcome."""
reason = Field("reason", "rank", ("none", "known"))
"""Does the rank know why the request failed?"""

STATE: Final = (decided, loop, entry, metadata, clock, vote, place, reason)

open_here = place.in_("waiting", "running")
live = entry.in_(B, W)
in_step = ((decided == B) & (place == "waiting")) | ((decided == W) & (place == "running"))
"""The rank has applied what was decided, so it takes part in the next round."""

# What a poll of the rank's own sender answers.
polls_failed = (entry == F) | ((clock_vote == "only voted") & (clock == "up") & live)
polls_success = ~polls_failed & (entry == S) & ((metadata_vote == "beside the vote") | (metadata == "here"))
polls_bootstrapping = ~polls_failed & (entry == B)
polls_waiting = ~polls_failed & ~polls_success & ~polls_bootstrapping
has_news = (
    (vote == "none") | (polls_failed & (vote != F)) | (polls_success & vote.in_(B, W)) | (polls_waiting & (vote == B))
)
"""Its poll is not what it has voted: statuses only move on, so it is a later one."""
poll = where(polls_failed, F, where(polls_success, S, where(polls_bootstrapping, B, W)))

everybody_in_step = ForAll("rank", in_step & (vote != "none"))

# --------------------------------------------------------------------------------------------------------------------
# Rows

ROWS: Final = (
    # What happens to one rank.
    Rule("hear_metadata", "rank", "runs", "runs", (entry == B) & (place == "waiting"), {entry: W}, fair=False,
         says="The bootstrap thread of this rank has all of decode's metadata, and writes WaitingForInput."),
    Rule("complete", "rank", "runs", "runs", (entry == W) & (place == "running"), {entry: S}, fair=False,
         says="This rank's last KV page has arrived: it writes Success."),
    Rule("land", "rank", "runs", "runs", (entry == S) & (metadata == "none"), {metadata: "here"},
         says="The metadata of this rank, which is written after its KV, arrives."),
    Rule("break", "rank", "runs", "runs", live & open_here, {entry: F, reason: "known"}, fair=False,
         says="Something fails on this rank: it writes Failed, and records why."),
    Rule("clock_up", "rank", "runs", "runs", (clock == "runs") & live & open_here, {clock: "up"},
         says="The time that this rank gives the request is up, by its own clock."),
    Rule("time_out", "rank", "runs", "runs", (clock_vote == "written") & (clock == "up") & live & open_here,
         {entry: F, reason: "known"},
         says="A request whose time is up is failed as any other: Failed is written, with its reason."),
    Rule("time_out_alone", "rank", "runs", "runs", (clock_vote == "of one rank") & (clock == "up") & live & open_here,
         {place: "failed", reason: "known"},
         says="The rank takes the request out by its own clock, and the others do not know."),
    Rule("raise", "rank", "runs", "left", (errors == "leave the loop") & (entry == F) & open_here, fair=False,
         says="Handling a failure raises, and the exception ends the scheduler loop of this rank."),
    Rule("act_alone", "rank", "runs", "runs", (own_failure == "before the vote") & (entry == F) & open_here,
         {place: "failed"},
         says="The rank takes a request out because its own poll said Failed, before the others have voted."),

    # A round: each rank votes, the votes are reduced by MIN, each rank applies the result.
    Rule("vote", "rank", "runs", "runs", in_step & has_news, {vote: poll},
         says="The rank polls its own sender and joins the collective with the answer."),
    Rule("agree_failed_waiting", "group", B, F, everybody_in_step & some("rank", vote == F),
         says="MIN over the votes of a request that was not admitted is Failed: it is lost everywhere."),
    Rule("agree_failed_running", "group", W, F, everybody_in_step & some("rank", vote == F),
         says="MIN over the votes of a running request is Failed: it is lost everywhere."),
    Rule("agree_waiting", "group", B, W, everybody_in_step & ForAll("rank", vote.in_(W, S)),
         says="MIN over the votes is WaitingForInput: every rank may admit the request."),
    Rule("agree_success", "group", W, S, everybody_in_step & ForAll("rank", vote == S),
         says="MIN over the votes is Success: every rank has all of it."),
    Rule("admit", "rank", "runs", "runs",
         (decided == W) & (place == "waiting") & ((applies == "what was decided") | (entry != F)), {place: "running"},
         says="The rank admits the request, as was decided."),
    Rule("drop", "rank", "runs", "runs",
         (decided == W) & (place == "waiting") & (applies == "what it polls again") & (entry == F), {place: "failed"},
         says="About to admit, the rank polls again, reads Failed, and drops the request instead."),
    Rule("succeed", "rank", "runs", "runs", (decided == S) & (place == "running") & (metadata == "here"),
         {place: "succeeded"},
         says="The rank takes the request out as a success. Without its metadata it cannot, and keeps it."),
    Rule("give_up", "rank", "runs", "runs", (decided == F) & open_here,
         {place: "failed", reason: where(reasons == "in the vote", "known", reason)},
         says="The rank takes the request out as failed, and tells whoever asked for it why."),
)  # fmt: skip

# --------------------------------------------------------------------------------------------------------------------
# Properties

PROPERTIES: Final = (
    Property(
        "rank-agreement", "No rank takes a request out as a success that another takes out as failed.",
        some("rank", place == "succeeded") & some("rank", place == "failed"),
        reports=("sgl-project/sglang#31030",),
        broken="one rank has taken the request out as a success, another as failed",
    ),
    Property(
        "admission-agreement", "A rank gives up a request only when all do.",
        decided.in_(B, W) & some("rank", place == "failed"),
        reports=("sgl-project/sglang#31869", "sgl-project/sglang#34457"),
        broken="the group has agreed on {decided}, and one rank has given the request up by itself",
    ),
    Property(
        "success-everywhere", "A rank takes a request out as a success only when every rank has all of it.",
        some("rank", place == "succeeded") & some("rank", (entry != S) | (metadata != "here")),
        reports=("sgl-project/sglang#26394",),
        broken="one rank has taken the request out as a success, and another lacks a part of it",
    ),
    Property(
        "failure-wins", "Once a rank's table says Failed, the group never agrees on Success.",
        (decided == S) & some("rank", entry == F),
        broken="the group has agreed on Success, and the table of one rank says Failed",
    ),
    Property(
        "group-outcome", "A request that fails has failed in the table of some rank.",
        (decided == F) & ForAll("rank", entry != F),
        broken="the group has agreed on Failed, and no table says so",
    ),
    Property(
        "reason-fidelity", "A rank that reports a failure knows its reason.",
        some("rank", (place == "failed") & (reason == "none")),
        reports=("sgl-project/sglang#30551",),
        broken="a rank has reported a failure whose reason it does not know",
    ),
    Property(
        "all-settle", "Every rank takes every request out.",
        some("rank", open_here), kind="liveness",
        reports=("sgl-project/sglang#26394", "sgl-project/sglang#31869"),
        broken="a rank still has the request, the group has agreed on {decided}, and nobody will move it",
    ),
)  # fmt: skip

# --------------------------------------------------------------------------------------------------------------------
# Lemmas

LEMMAS: Final = (
    Lemma("no loop ends", loop == "runs"),
    Lemma("a request ends as decided", implies(place == "succeeded", decided == S)),
    Lemma("a request fails as decided", implies(place == "failed", decided == F)),
    Lemma("admitted as decided", implies(place == "running", decided != B)),
    Lemma("success is applied", implies(decided == S, place.in_("running", "succeeded"))),
    Lemma("voted Success", implies(vote == S, entry == S)),
    Lemma("voted Success with metadata", implies(vote == S, metadata == "here")),
    Lemma("voted Failed", implies(vote == F, entry == F)),
    Lemma("agreed on Success", implies(decided == S, vote == S)),
    Lemma("agreed on Failed", implies(decided == F, some("rank", entry == F))),
    Lemma("reasons of one's own", implies(entry == F, reason == "known")),
    Lemma("reasons of the group", implies(place == "failed", reason == "known")),
)

_SUCCESS = ("a request ends as decided", "voted Success", "agreed on Success")
FEW: Final = {
    "rank-agreement": ("a request ends as decided", "success is applied"),
    "admission-agreement": ("a request fails as decided",),
    "success-everywhere": (*_SUCCESS, "voted Success with metadata"),
    "failure-wins": ("voted Success", "agreed on Success"),
    "group-outcome": ("voted Failed", "agreed on Failed"),
    "reason-fidelity": ("reasons of one's own", "reasons of the group"),
    "all-settle": (
        *_SUCCESS, "no loop ends", "a request fails as decided", "admitted as decided", "success is applied",
    ),
}  # fmt: skip
"""For each property, lemmas that suffice in most designs."""

POTENTIAL: Final = {
    decided: {B: 3, W: 2, S: 0, F: 0},
    entry: {B: 3, W: 2, S: 0, F: 0},
    metadata: {"none": 1, "here": 0},
    clock: {"runs": 1, "up": 0},
    vote: {"none": 4, B: 3, W: 2, S: 1, F: 0},
    place: {"waiting": 2, "running": 1, "succeeded": 0, "failed": 0},
    loop: {"runs": 1, "left": 0},
}

# --------------------------------------------------------------------------------------------------------------------
# Designs


def _design(name: str, says: str, **chosen: str) -> Choice:
    return Choice(f"ranks-{name}", "ranks", SWITCHES, chosen, says=says)


DESIGNS: Final = {
    design.name: design
    for design in (
        _design("latch", "The recommended one: each switch at its first position."),
        _design("looks-again", "Admission polls again (sglang#31869).", applies="what it polls again"),
        _design("metadata-apart", "Metadata is not in the vote (sglang#26394).", metadata_vote="beside the vote"),
        _design("clock-voted", "A time-out is voted, and written nowhere.", clock_vote="only voted"),
        _design("clock-of-one", "A time-out is judged by one rank (sglang#34457).", clock_vote="of one rank"),
        _design("loop-left", "An error ends the loop of a rank.", errors="leave the loop"),
        _design("reason-local", "The reason stays where it arose (sglang#30551).", reasons="local"),
        _design("acts-alone", "A rank acts on its own failure before the vote.", own_failure="before the vote"),
    )
}


@attrs.frozen
class Ranks(Sizes):
    """How many ranks there are, or any number."""

    crowd: ClassVar[str | None] = "rank"
    ranks: int = 2


RANKS: Final = Protocol(
    "ranks",
    "The ranks of one server agree on a request by a vote in every round.",
    sizes=Ranks,
    sorts=("rank",),
    state=STATE,
    threads={"rank": Thread(loop), "group": Thread(decided)},
    rows=ROWS,
    switches=SWITCHES,
    designs=DESIGNS,
    properties=PROPERTIES,
    worlds=(World("orderly network", "", "orderly", Ranks()),),
    everything=World("everything", "", "orderly", Ranks()),
    counts=(2, 3),
    lemmas=LEMMAS,
    few=FEW,
    potential=POTENTIAL,
)
