"""What public bug reports are told in besides the designs and the mutants of the project: rows that only they need.

Each is one deviation from a recommended design. A report may need a position of a switch besides; its ``but`` has it.
"""

from __future__ import annotations

from typing import Any, Final

import attrs

from kvlatch.proofs.mutation import ROWS, Mutant, changed
from kvlatch.spec import decode, protocol, ranks, router, stages
from kvlatch.spec.merges import MERGES
from kvlatch.spec.protocols import protocol_of
from kvlatch.spec.room import ROOM
from kvlatch.spec.schema import Protocol, Rule
from kvlatch.spec.status import ABSENT, B, F, KVPoll, S
from kvlatch.spec.terms import FALSE, Field, ForAll, Term, some, where


def last_write_wins(current: KVPoll | None, incoming: KVPoll) -> KVPoll:
    """No merge at all: a status is whatever was written last."""
    del current
    return incoming


MERGE: Final = MERGES | {"last_write_wins": last_write_wins}


def of(base: Protocol, name: str, prop: str, says: str, *rules: Rule) -> Mutant:
    """The recommended design of a protocol with these rows in the place of those of the same names, or besides."""
    design: Any = base.designs["latch" if base is ROOM else f"{base.name}-latch"]
    told_in = protocol_of(attrs.evolve(design, rows=rules))
    return Mutant(name, prop, says, told_in.rows, design, of=told_in)


# --------------------------------------------------------------------------------------------------------------------
# The room

_released, _cleared = ROWS["release"].then[protocol.pages], ROWS["clear_status"].then[protocol.status]
_alive = Field("alive", "worker", ("yes", "no"))
_polls = Field("polls", "room", ("yes", "no"))
_other = Field("other_request", "room", ("none", "lives"))
_session = Field("session", "room", ("works", "failed"))
_MORTAL: Final = (
    *(attrs.evolve(rule, when=rule.when & (_polls == "yes")) for rule in protocol.SCHEDULER),
    Rule("raise", "scheduler", "free", "free",
         (_polls == "yes") & protocol.missing & protocol.phase.in_("boot", "inflight"), {_polls: "no"},
         says="A poll finds no entry, and raises."),
)  # fmt: skip
"""A scheduler that ends when it polls a room without an entry."""

IN_A_ROOM: Final = (
    Mutant(
        "kept by failure", "settlement",
        "A request that failed does not give its pages back.",
        changed("release", then={protocol.pages: where(protocol.latch == F, protocol.pages, _released)}),
    ),
    Mutant(
        "release not repeated", "settlement",
        "A release that finds a worker in its transfer does nothing, and is not tried again.",
        changed("release", when=protocol.phase == "releasing",
                then={protocol.pages: where(protocol.drained, _released, protocol.pages)}),
    ),
    Mutant(
        "failure not cleared", "no-ghost",
        "A request that failed leaves its status in the table.",
        changed("clear_status", then={protocol.status: where(protocol.latch == F, protocol.status, _cleared)}),
    ),
    Mutant(
        "first handle kept", "no-pin",
        "The infos of a room id stay for ever, and those of a later request are not taken in.",
        changed("clear_infos", then={protocol.infos: protocol.infos}, of=ROOM.with_rows(
            changed("hear_metadata", then={
                protocol.infos: where(protocol.infos == "none", protocol.generation_of_infos, protocol.infos),
            })
        )),
    ),
    of(
        ROOM, "a poll of nothing raises", "settlement",
        "The worker that concludes a room clears its entry as well, and a poll that finds none ends the scheduler.",
        *_MORTAL,
        attrs.evolve(ROWS["conclude_pop"], then={**ROWS["conclude_pop"].then, protocol.status: ABSENT}),
    ),
    of(
        ROOM, "an id that is in use", "settlement",
        "A second request is taken in while the first one lives. Whoever ends first clears the entry of both, and a "
        "poll that finds none ends the scheduler.",
        *(rule for rule in _MORTAL if rule.name != "reuse"),
        attrs.evolve(
            ROWS["reuse"], when=(protocol.phase == "boot") & (protocol.gen == "first"),
            then={**ROWS["reuse"].then, _other: "lives"},
        ),
        Rule("first_ends", "scheduler", "free", "free", _other == "lives",
             {_other: "none", protocol.status: ABSENT, protocol.infos: "none", protocol.stamp: "first",
              protocol.first_terminal: "none"},
             says="The first request has ended: its sender clears the entry."),
    ),
    of(
        ROOM, "a session that has failed", "room-reusable",
        "A transfer that breaks marks its session as failed, and whoever comes to that session is failed at once.",
        attrs.evolve(ROWS["break"], then={**ROWS["break"].then, _session: "failed"}),
        Rule("find_failed", "bootstrap", "idle", "aborting",
             (_session == "failed") & (protocol.phase == "boot") & (protocol.status == B) & (protocol.gen == "second"),
             {protocol.bootstrap_gen: protocol.gen},
             says="The session has failed: its rooms are to fail."),
    ),
    of(
        ROOM, "an error ends the worker", "settlement",
        "A worker whose transfer fails ends, and its queue is nobody's.",
        attrs.evolve(ROWS["break"], to="idle", then={**ROWS["break"].then, _alive: "no"}),
        attrs.evolve(ROWS["take"], when=ROWS["take"].when & (_alive == "yes")),
    ),
)  # fmt: skip

# --------------------------------------------------------------------------------------------------------------------
# Decode


def _decode(name: str, **parts: object) -> Rule:
    return attrs.evolve(decode.DECODE.row(name), **parts)  # type: ignore[arg-type]  # each is checked by its tests


_hear_ack = decode.DECODE.row("hear_ack")

AT_DECODE: Final = (
    of(
        decode.DECODE, "notice malformed", "decode-settles",
        "The sender takes every abort notice for malformed.",
        _decode("hear_notice", when=FALSE),
    ),
    of(
        decode.DECODE, "time-out not armed", "decode-settles",
        "After a time-out decode waits for no ACK, and does not hear the one that comes.",
        _decode("hear_ack", when=_hear_ack.when & (decode.concluded != "timed out")),
    ),
    of(
        decode.DECODE, "late ACK unknown", "decode-settles",
        "An ACK that comes after decode has lost its patience is an ACK of nothing that it knows.",
        _decode("hear_ack", when=_hear_ack.when & (decode.patience == "left")),
        _decode("lose_patience", when=(decode.stage == "failed") & (decode.patience == "left")),
        _decode("release", when=decode.over & ForAll("sender", decode.quiet)),
    ),
    of(
        decode.DECODE, "time-out not terminal", "decode-settles",
        "Who looks for the end of a request does not count a time-out as one.",
        _decode("settle_failure", when=(decode.entry == F) & (decode.concluded != "timed out")),
    ),
    of(
        decode.DECODE, "a write may hang", "decode-settles",
        "A posted write may never end, and nothing can cancel it.",
        _decode("land", fair=False),
    ),
)  # fmt: skip

# --------------------------------------------------------------------------------------------------------------------
# Ranks

_agree_success, _give_up, _admit = (ranks.RANKS.row(name) for name in ("agree_success", "give_up", "admit"))
_fits = Field("fits", "rank", ("yes", "no"))

AMONG_RANKS: Final = (
    of(
        ranks.RANKS, "finished, whatever it is", "rank-agreement",
        "The ranks agree that a request has finished; whether well or badly, each reads in its own table.",
        attrs.evolve(_agree_success, when=ranks.everybody_in_step & ForAll("rank", ranks.vote.in_(S, F))),
        attrs.evolve(ranks.RANKS.row("agree_failed_running"), when=FALSE),
        attrs.evolve(
            ranks.RANKS.row("succeed"), when=(ranks.decided == S) & (ranks.place == "running") & (ranks.entry == S)
        ),
        attrs.evolve(
            _give_up,
            when=ranks.open_here & ((ranks.decided == F) | ((ranks.decided == S) & (ranks.entry == F))),
        ),
    ),
    of(
        ranks.RANKS, "completes by itself", "success-everywhere",
        "A rank that has all of a request takes it out, before the group has decided.",
        attrs.evolve(ranks.RANKS.row("succeed"), when=(ranks.place == "running") & ranks.polls_success),
    ),
    of(
        ranks.RANKS, "admitted where it fits", "all-settle",
        "Each rank looks at its own free pages before it does what was decided.",
        attrs.evolve(_admit, when=_admit.when & (_fits == "yes")),
        Rule("lose_a_page", "rank", "runs", "runs", _fits == "yes", {_fits: "no"}, fair=False,
             says="This rank has one page less than the others."),
    ),
)  # fmt: skip

# --------------------------------------------------------------------------------------------------------------------
# Router and stages

_raise = stages.STAGES.row("raise")
_come_back = stages.STAGES.row("come_back")

AT_ROUTER: Final = (
    of(
        router.ROUTER, "one hand-off for several samples", "request-settles",
        "A further sample of a request is sent to decode alone, for the pages that prefill holds for the first one.",
        Rule("dispatch_sample", "router", "in an attempt", "in an attempt", router.waiting & (router.stage == "none"),
             {router.stage: "both sent", router.decode_leg: "asked"}, per="attempt", fair=False,
             says="The router sends decode another sample of the request."),
    ),
    of(
        router.ROUTER, "read under another id", "request-settles",
        "Decode tells prefill that it has read, under an id that prefill does not know.",
        attrs.evolve(router.ROUTER.row("read"), then={router.decode_leg: "has all"}),
    ),
)  # fmt: skip

_again = Field("aborted_again", "item", ("no", "yes"))
_pins = Field("pins", "room", ("0", "1", "2"))
_pinned_more = where(_pins == "0", "1", "2")
_pinned_less = where(_pins == "2", "1", "0")


def _pinning(name: str, count: Term) -> Rule:
    row = stages.STAGES.row(name)
    return attrs.evolve(row, then={**row.then, _pins: count})


IN_STAGES: Final = (
    of(
        stages.STAGES, "a second abort is a fault", "stages-settle",
        "The loop passes every abort on, and does not expect another one of the same request.",
        Rule("abort_again", "request", "aborted", "aborted", stages.queued & (_again == "no"), {_again: "yes"},
             fair=False, says="The request is aborted once more."),
        attrs.evolve(_raise, when=_again == "yes"),
    ),
    of(
        stages.STAGES, "pins without an owner", "pins-hold",
        "Pins are a number. A retrieval lowers it, and the end of a request, which has none any more, does so again.",
        _pinning("enter", _pinned_more),
        _pinning("admit", _pinned_less),
        _pinning("computed", _pinned_less),
        attrs.evolve(stages.STAGES.row("flush"), when=_pins == "0"),
    ),
    of(
        stages.STAGES, "an abort in flight is a fault", "stages-settle",
        "The loop takes the end of an aborted request in flight for an error of its own, and stops.",
        attrs.evolve(_raise, when=(stages.place == "inflight") & (stages.verdict == "aborted")),
    ),
    of(
        stages.STAGES, "asserts that none has failed", "stages-settle",
        "The loop counts the requests that run, and does not expect one that has failed.",
        attrs.evolve(_raise, when=(stages.place == "inflight") & (stages.verdict == "failed")),
    ),
    of(
        stages.STAGES, "asserts that jobs are known", "stages-settle",
        "The loop does not expect the end of a job whose request has gone.",
        attrs.evolve(_raise, when=(stages.place == "out") & (stages.job == "runs")),
    ),
    of(
        stages.STAGES, "unnamed is skipped", "stages-settle",
        "A request that ends before others have named it is not looked at.",
        attrs.evolve(
            stages.STAGES.row("leave"), when=stages.STAGES.row("leave").when & (stages.place != "bootstrap")
        ),
    ),
    of(
        stages.STAGES, "done before its jobs", "jobs-hold-pages",
        "A request is done when its KV is read, whatever else still works on its pages.",
        attrs.evolve(stages.STAGES.row("complete"), when=stages.place == "inflight"),
    ),
    of(
        stages.STAGES, "a job may hang", "stages-settle",
        "A job that was asked to end may not end.",
        attrs.evolve(stages.STAGES.row("end_job"), fair=False),
    ),
    of(
        stages.STAGES, "found, not retrieved", "stages-settle",
        "A request runs without what was pinned for it.",
        attrs.evolve(stages.STAGES.row("admit"), then={**stages.STAGES.row("admit").then, stages.pin: stages.pin}),
    ),
    of(
        stages.STAGES, "clocks in flight with a batch", "stages-settle",
        "The clocks of what is in flight are looked at in a round that forms a batch.",
        attrs.evolve(
            stages.STAGES.row("time_out"),
            when=stages.timed & ((stages.place != "inflight")
                                 | ((stages.pool == "free") & some("item", stages.place == "waiting"))),
        ),
    ),
    of(
        stages.STAGES, "waits for its metadata again", "stages-settle",
        "A request that returns waits for a message that comes once, and its clock does not run again.",
        attrs.evolve(_come_back, then={**_come_back.then, stages.place: "bootstrap"}),
        attrs.evolve(
            stages.STAGES.row("time_out"),
            when=stages.timed & ((stages.place != "bootstrap") | (stages.life == "first")),
        ),
    ),
)  # fmt: skip

DEVIATIONS: Final = {mutant.name: mutant for mutant in (*IN_A_ROOM, *AT_DECODE, *AMONG_RANKS, *AT_ROUTER, *IN_STAGES)}
