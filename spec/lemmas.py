"""Named lemmas: what is true of every reachable state, so that each property follows and each step keeps it.

A lemma speaks of any worker and any chunk. Not every lemma holds in every design; the prover drops those that a
design does not keep (``proofs/induction.py``), and what is left must imply the property.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kvlatch.spec.designs import atomicity
from kvlatch.spec.protocol import (
    bootstrap,
    bootstrap_gen,
    chunk,
    first_terminal,
    gen,
    infos,
    infos_of,
    job,
    job_gen,
    latch,
    metadata,
    notice,
    pages,
    phase,
    scheduler,
    stale,
    stamp,
    status,
    straggler,
    wire,
    worker,
    worker_seen,
)
from kvlatch.spec.schema import Lemma
from kvlatch.spec.status import ABSENT, TOMBSTONE, B, F, S, T, W
from kvlatch.spec.terms import Field, ForAll, ThisChunk, implies, some

settled = phase.in_("forgetting", "releasing", "done")
own = job_gen == gen
working = ~worker.in_("idle", "taken")
carrying = worker.in_("taken", "checked", "ready", "write_t*", "posting", "transferring")
concluding = worker.in_("arrived", "concluding", "write_s*")
failing = worker.in_("failing", "fail*")
hearing = bootstrap.in_("registered", "write_w*")
infos_mine = ((infos == "first") & (gen == "first")) | ((infos == "second") & (gen == "second"))

LEMMAS: Final = (
    # Who acts for which request.
    Lemma("stamp of the past", implies(gen == "first", stamp == "first")),
    Lemma("messages of the past", implies(gen == "first", bootstrap_gen == "first")),
    Lemma("chunks of the past", implies(gen == "first", stale == "no")),
    Lemma("jobs of the past", implies(gen == "first", job_gen == "first")),
    Lemma("infos of the past", implies(gen == "first", infos != "second")),
    Lemma("old entry", implies((gen == "second") & (stamp == "first"), (status == TOMBSTONE) & (phase == "new"))),
    Lemma("infos are gone", implies(phase.in_("releasing", "done"), infos == "none")),
    Lemma("no old infos", implies(gen == "second", infos != "first")),
    Lemma("old workers", implies(~own, ~working)),
    # What the table says, by the place of the request.
    Lemma("tombstone of a settled request", implies((status == TOMBSTONE) & (stamp == gen), settled)),
    Lemma("cleared", implies(settled, (status == TOMBSTONE) & (stamp == gen))),
    Lemma("new", implies(phase == "new", status.in_(ABSENT, TOMBSTONE, W, F))),
    Lemma("boot", implies(phase == "boot", status.in_(B, W, F))),
    Lemma("running", implies(phase == "running", status.in_(W, T, F))),
    Lemma("inflight", implies(phase == "inflight", status.in_(W, T, F, S))),
    Lemma("clearing", implies(phase == "clearing", ((latch == F) & (status == F)) | ((latch == S) & (status == S)))),
    # What has been said stays said.
    Lemma("first terminal Failed", implies(first_terminal == F, status == F)),
    Lemma("first terminal Success", implies(first_terminal == S, status == S)),
    Lemma("no latch before", implies(phase.in_("new", "running"), latch == "none")),
    Lemma("latched", implies(phase.in_("boot", "inflight") & (latch == F), status == F)),
    Lemma("latched Success", implies(phase.in_("boot", "inflight") & (latch == S), status == S)),
    Lemma("wire Failed", implies(wire == F, (status == F) | (latch == F))),
    Lemma("wire Success", implies(wire == S, (status == S) | (latch == S))),
    Lemma("one wire", wire != "both"),
    Lemma(
        "to tell Failed", implies((worker == "telling") & (worker_seen == F), (status == F) | (settled & (latch == F)))
    ),
    Lemma(
        "to tell Success", implies((worker == "telling") & (worker_seen == S), (status == S) | (settled & (latch == S)))
    ),
    Lemma("popping", implies(worker == "popping", (status == S) | settled)),
    Lemma("popped by abort", implies((bootstrap == "popping") & (bootstrap_gen == gen), status.in_(F, S) | settled)),
    # The scheduler's own updates.
    Lemma("creating", implies(scheduler == "create*", phase == "new")),
    Lemma("timing out", implies(scheduler == "time_out*", phase == "boot")),
    Lemma("aborting", implies(scheduler == "abort*", phase.in_("boot", "inflight") & (latch == "none"))),
    Lemma("own notice", implies(bootstrap.in_("aborting", "write_f*") & (bootstrap_gen == gen), notice != "none")),
    Lemma("failed early", implies(phase.in_("new", "boot") & (status == F) & (latch == "none"), notice != "none")),
    Lemma(
        "locked",
        implies(atomicity == "locked", (scheduler == "free") & ~bootstrap.in_("write_w*", "write_f*")),
    ),
    Lemma(
        "workers locked",
        implies(atomicity == "locked", ~worker.in_("write_t*", "write_t_again*", "write_s*", "fail*")),
    ),
    # Metadata.
    Lemma("heard", implies(hearing & (bootstrap_gen == gen), infos_mine | status.in_(F, S) | settled)),
    Lemma(
        "woken",
        implies(
            phase.in_("new", "boot") & status.in_(ABSENT, TOMBSTONE, B) & infos_mine,
            (hearing & (bootstrap_gen == gen)) | ((bootstrap == "popping") & infos_of(bootstrap_gen)),
        ),
    ),
    Lemma("infos while live", implies(status.in_(W, T) & ~settled, infos_mine)),
    # Pages.
    Lemma("released in the end", implies(pages == "released", phase == "done")),
    Lemma("nothing kept", implies(phase == "done", pages.in_("none", "released"))),
    Lemma("never twice", pages != "released twice"),
    Lemma("drained", implies((phase == "done") & own, ~working)),
    Lemma("sent in order", implies(chunk != "unsent", ForAll("earlier chunk", chunk != "unsent"))),
    Lemma("more to send", implies(phase == "running", ~ForAll("chunk", chunk != "unsent"))),
    # Chunks.
    Lemma("no chunk before", implies(phase.in_("new", "boot"), chunk == "unsent")),
    Lemma("no work before", implies(phase.in_("new", "boot") & own, worker == "idle")),
    Lemma("all sent", implies(phase == "inflight", chunk != "unsent")),
    Lemma("carried", implies(carrying & own & ThisChunk(job), chunk == "taken")),
    Lemma(
        "one carrier",
        implies(carrying & own & ThisChunk(job), ForAll("other worker", ~(carrying & own & ThisChunk(job)))),
    ),
    Lemma("taken by somebody", implies(chunk == "taken", some("worker", carrying & own & ThisChunk(job)))),
    Lemma("complete", implies(status == S, chunk == "done")),
    Lemma("concluding", implies(concluding & own, chunk == "done")),
    Lemma("lost is failed", implies((chunk == "lost") & status.in_(W, T), some("worker", failing & own))),
    Lemma(
        "done is concluded",
        implies(ForAll("chunk", chunk == "done") & status.in_(W, T), some("worker", concluding & own)),
    ),
)

BY_NAME: Final = {lemma.name: lemma for lemma in LEMMAS}

FEW: Final = {
    "terminal-sticky": ("first terminal Failed", "first terminal Success"),
    "no-resurrection": ("first terminal Failed",),
    "success-not-overwritten": ("first terminal Success",),
    "released-once": ("creating", "timing out", "released in the end", "never twice"),
    "no-lost-wakeup": ("infos of the past", "woken"),
}
"""What a property rests on in designs without tombstones, where it holds at all: a few lemmas that keep each other."""

POTENTIAL: Final[Mapping[Field, Mapping[str, int]]] = {
    phase: {"new": 21, "boot": 18, "running": 15, "inflight": 12, "clearing": 9, "forgetting": 6, "releasing": 3},
    latch: {"none": 3},
    scheduler: {"free": 1},
    metadata: {"none": 10, "once": 5},
    notice: {"none": 10, "once": 5},
    straggler: {"due": 5},
    bootstrap: {"registered": 3, "write_w*": 2, "aborting": 4, "write_f*": 3, "popping": 1},
    chunk: {"unsent": 17, "queued": 16},
    stale: {"yes": 16},
    worker: {
        "taken": 14, "checked": 13, "ready": 12, "write_t*": 11, "posting": 10, "transferring": 9, "arrived": 7,
        "concluding": 6, "failing": 6, "write_s*": 5, "fail*": 5, "telling": 4, "popping": 2, "marking": 2,
        "write_t_again*": 1,
    },
}  # fmt: skip
"""How many steps may still come from each label of a field; what is not listed has none. See ``proofs/ranking.py``."""
