"""The room protocol: one request with all its actors, every atomic step a row.

Read this file from top to bottom, after ``designs.py``. It says what the prefill side of a disaggregated server does
with one *room* while the KV cache of its request moves to decode, in the order in which it happens. The names are those
of SGLang's ``disaggregation/common/conn.py`` and ``nixl/conn.py``.

Two rules. Everything that can change a room is a row here: engines, diagrams and traces know no other step. And no row
knows which design it runs in: where designs differ, the row asks a switch of ``designs.py``, as it asks any field.

**Actors.** The *scheduler* creates the request, polls its sender, enqueues chunks and settles it. The *bootstrap
thread* hears decode's messages. *Transfer workers* take chunks from a queue, first in, first out. Each thread has a
program counter; a row moves it from ``at`` to ``to``, when the formula ``when`` holds, and sets the fields in ``then``.

**Writes.** A row with ``write`` calls ``update_status``. In the locked atomicity that is one step: the entry becomes
``merge(entry, write)``. The other two atomicities are derived, once for all rows, in ``steps.py``: a *split* update
reads in one step and stores in the next, whatever happened in between, which is what unlocked Python does; a *cas*
update stores only if the entry is still what it read, and else reads again.

**What is subtle.** Nothing removes a chunk from a queue, so chunks outlive their request, and a room id can be used
by a second request (``gen``) while they do. Two fields are in no program: ``first_terminal`` remembers the first
terminal status that the entry had, and ``wire`` what decode has been told, so that properties can speak of them.

**Fair.** Weak fairness: a fair row that stays enabled is taken eventually. The environment is not fair: nobody has to
send a request, decode may never answer, no transfer has to fail. Everything that the server itself does is fair.
"""

from __future__ import annotations

from typing import Final

from kvlatch.spec import designs as design
from kvlatch.spec.schema import Rule, Writer
from kvlatch.spec.status import ABSENT, STATUS, TOMBSTONE, B, F, S, T, W
from kvlatch.spec.terms import TRUE, AnyRequests, Field, ForAll, LastChunk, Term, ThisChunk, where

# --------------------------------------------------------------------------------------------------------------------
# State

GENERATION = ("first", "second")
"""Where more than two requests use the room id: "second" is this one and "first" any older one (``Older``)."""
TERMINALS = ("none", F, S)

# The manager's tables, keyed by room id.
status = Field("status", "room", (ABSENT, *(s for s in STATUS if s != ABSENT)))
"""``request_status[room]``."""
stamp = Field("stamp", "room", GENERATION)
"""With tombstones: the request that the entry, or the tombstone, belongs to."""
first_terminal = Field("first_terminal", "room", TERMINALS)
"""History: the first terminal status that the entry has had since it was created."""
infos = Field("infos", "room", ("none", *GENERATION))
"""``transfer_infos[room]``: whose metadata it holds."""

# The request, as its scheduler knows it.
gen = Field("gen", "room", GENERATION)
"""Which request of this room id: the first, or one that uses the id again."""
phase = Field("phase", "room", ("new", "boot", "running", "inflight", "clearing", "forgetting", "releasing", "done"))
"""Its place: not created, bootstrap queue, prefill, inflight queue, three steps of settling, done."""
latch = Field("latch", "room", TERMINALS)
"""``sender.conclude_state``."""
pages = Field("pages", "room", ("none", "held", "released", "released twice"))
"""The KV pages that its chunks are read from."""
chunk = Field("chunk", "chunk", ("unsent", "queued", "taken", "done", "lost"))
"""One per chunk; lost means that it was dropped, skipped or failed, and nobody will send it again."""
stale = Field("stale", "chunk", ("no", "yes"))
"""A chunk of the first request that is still queued while the second one lives."""
wire = Field("wire", "room", ("none", F, S, "both"))
"""The terminal status that decode has been told."""

# Program counters. A label with a star is the place between the read and the store of that row's update.
scheduler = Field("scheduler", "room", ("free", "create*", "time_out*", "abort*"))
scheduler_seen = Field("scheduler_seen", "room", status.labels)
bootstrap = Field("bootstrap", "room", ("idle", "registered", "write_w*", "aborting", "write_f*", "popping"))
bootstrap_seen = Field("bootstrap_seen", "room", status.labels)
bootstrap_gen = Field("bootstrap_gen", "room", GENERATION)
"""The request whose message the bootstrap thread is handling."""
worker = Field(
    "worker", "worker",
    ("idle", "taken", "checked", "ready", "write_t*", "posting", "transferring", "marking", "write_t_again*",
     "arrived", "concluding", "write_s*", "failing", "fail*", "telling", "popping"),
)  # fmt: skip
worker_seen = Field("worker_seen", "worker", status.labels)
job = Field("job", "worker", ("0", "1", "2", "3"))
"""The chunk that the worker has taken."""
job_gen = Field("job_gen", "worker", GENERATION)
"""The request that the chunk belongs to."""

# Messages from decode: how often each has been delivered.
metadata = Field("metadata", "room", ("none", "once", "twice"))
notice = Field("notice", "room", ("none", "once", "twice"))
"""Abort notices."""
straggler = Field("straggler", "room", ("none", "due"))
"""A message about the first request that arrives in the life of the second."""

STATE: Final = (
    status, stamp, first_terminal, infos, gen, phase, latch, pages, chunk, stale, wire,
    scheduler, scheduler_seen, bootstrap, bootstrap_seen, bootstrap_gen, worker, worker_seen, job, job_gen,
    metadata, notice, straggler,
)  # fmt: skip

THREADS: Final[dict[str, Writer]] = {
    "scheduler": Writer(scheduler, scheduler_seen, gen),
    "bootstrap": Writer(bootstrap, bootstrap_seen, bootstrap_gen),
    "worker": Writer(worker, worker_seen, job_gen),
}

# --------------------------------------------------------------------------------------------------------------------
# What the rows ask

tombstones = design.clear == "tombstone"
lost = design.network.in_("lossy", "disorderly")
early = design.network.in_("early", "disorderly")
overdue = design.network.in_("overdue", "disorderly")
doubled = design.network.in_("doubling", "disorderly") & (design.transport == "any")
late = design.network.in_("late", "disorderly")
missing = status.in_(ABSENT, TOMBSTONE)
present = ~missing
live = status.in_(B, W, T)


def fresh(whose: Field) -> Term:
    """With tombstones, a write counts only for the request that the entry is about, or for a newer one."""
    newer = (whose == "second") & (stamp == "first")
    return ~tombstones | newer | ((whose == stamp) & (status != TOMBSTONE))


def infos_of(whose: Field) -> Term:
    """The room has transfer infos; with tombstones, those of this very request."""
    own = ((whose == "first") & (infos == "first")) | ((whose == "second") & (infos == "second"))
    return where_tombstones(own, infos != "none")


def where_tombstones(yes: Term, no: Term) -> Term:
    """One formula for designs with tombstones, another for those without."""
    return (tombstones & yes) | (~tombstones & no)


latched = (design.poll_latch == "honoured") & (latch != "none")
outstanding = ~ForAll("worker", worker.in_("idle", "taken", "arrived", "concluding", "write_s*", "telling", "popping"))
held = (design.poll_hold == "yes") & (status == S) & outstanding


def polls(label: str) -> Term:
    """``sender.poll()`` would return this status now: the latch if it is set, else what the table shows."""
    shown = status == label
    if label == S:
        shown = shown & ~held
    if label == T:
        shown = shown | held
    if label in design.poll_absent.labels:
        shown = shown | (missing & (design.poll_absent == label))
    shown = shown & ~latched
    if label in (F, S):
        shown = shown | ((design.poll_latch == "honoured") & (latch == label))
    return shown


drained = (design.release == "at once") | ForAll("worker", (worker == "idle") | (job_gen != gen))
head_of_queue = ForAll("earlier chunk", chunk != "queued") & ForAll("chunk", stale == "no")
head_of_stale = AnyRequests() | ForAll("earlier chunk", stale == "no")
"""Of several older requests, any chunk may be the next one: the queue has them by request first."""
last_to_arrive = ((design.success == "last") & LastChunk()) | (
    (design.success == "counted") & (job_gen == gen) & ForAll("other chunk", chunk == "done")
)
generation_of_infos = where(gen == "first", "first", "second")
wire_counts = ~tombstones | (job_gen == gen)
first_delivery = where(metadata == "none", "once", "twice")
first_notice = where(notice == "none", "once", "twice")
metadata_due = (
    (metadata == "none")
    & ((phase == "boot") | (early & (phase == "new")) | (overdue & ~phase.in_("new", "boot")))
    & ((notice == "none") | early)
) | (doubled & (metadata == "once"))
"""What is lost does not come after the notice; a second copy comes at any time."""
going_on = phase.in_("boot", "running", "inflight")
notice_due = (
    (notice == "none")
    & (going_on | (early & (phase == "new")) | (overdue & ~going_on & (phase != "new")))
    & ((metadata != "none") | lost | early)
) | (doubled & (notice == "once"))
mistaken = tombstones & (design.nonce == "none")
heard = fresh(gen) & (~mistaken | (status != TOMBSTONE))
"""The bootstrap thread takes in metadata of this request. Who cannot tell whose it is drops it at a tombstone."""
believed = ~tombstones | (mistaken & heard)
"""It takes a message about an older request for one about this one: with tombstones, if it cannot tell."""
taken_for = where(mistaken, "second", "first")
my_turn = (design.queues == "shared") | ForAll("other worker", worker == "idle")
"""With sharded queues one worker has all chunks of the room: whichever it is, no other one is at work on them."""
dead_for_worker = (status == F) | ((design.absent == "skips") & missing) | (tombstones & ~(fresh(job_gen) & present))

# --------------------------------------------------------------------------------------------------------------------
# Where published sglang takes the steps: by backend and versions, file (under srt/disaggregation) and function

_EVERY = "0.5.12 to 0.5.23"
SENDER = {f"common {_EVERY}": "common/conn.py: CommonKVSender.__init__"}
TIMEOUT = {"common 0.5.13 to 0.5.23": "common/conn.py: CommonKVSender._check_bootstrap_timeout"}
ABORT = {f"common {_EVERY}": "common/conn.py: CommonKVSender.abort"}
CLEAR = {f"common {_EVERY}": "common/conn.py: CommonKVSender.clear"}
BOOTSTRAP_QUEUE = {f"scheduler {_EVERY}": "prefill.py: PrefillBootstrapQueue.pop_bootstrapped"}
ARRIVAL = {f"scheduler {_EVERY}": "prefill.py: PrefillBootstrapQueue.add"}
INFLIGHT_QUEUE = {
    f"scheduler {_EVERY}": "prefill.py: SchedulerDisaggregationPrefillMixin.process_disagg_prefill_inflight_queue",
}
REQUEST = {
    f"nixl {_EVERY}": "nixl/conn.py: NixlKVManager.add_transfer_request",
    f"mooncake {_EVERY}": "mooncake/conn.py: MooncakeKVManager.add_transfer_request",
}
METADATA = {
    f"nixl {_EVERY}": "nixl/conn.py: NixlKVManager._start_bootstrap_thread",
    f"mooncake {_EVERY}": "mooncake/conn.py: MooncakeKVManager.start_prefill_thread",
}
NOTICE = {
    "nixl 0.5.16 to 0.5.23": "nixl/conn.py: NixlKVManager._handle_abort_notification",
    "mooncake 0.5.12 to 0.5.21": "mooncake/conn.py: MooncakeKVManager.start_prefill_thread",
    "mooncake 0.5.22 to 0.5.23": "mooncake/conn.py: MooncakeKVManager._handle_abort_notification",
}
QUEUE = {f"common {_EVERY}": "common/utils.py: FastQueue.get"}
NIXL_WORKER = {f"nixl {_EVERY}": "nixl/conn.py: NixlKVManager.transfer_worker"}
WORKERS = NIXL_WORKER | {f"mooncake {_EVERY}": "mooncake/conn.py: MooncakeKVManager.transfer_worker"}
CONCLUDE = {"common 0.5.20 to 0.5.23": "common/conn.py: CommonKVManager.conclude_transfer"}
TELL = {
    "mooncake 0.5.12 to 0.5.19": "mooncake/conn.py: MooncakeKVManager.sync_status_to_decode_endpoint",
    "common 0.5.20 to 0.5.23": "common/conn.py: CommonKVManager.send_kv_status_message",
}
OURS = {"ours": "reference/manager.py"}

# --------------------------------------------------------------------------------------------------------------------
# The steps

SCHEDULER: Final = (
    Rule("create", "scheduler", "free", "free", phase == "new", {phase: "boot"}, write=B, fair=False,
         where=SENDER,
         says="The sender's constructor writes Bootstrapping; the request enters the bootstrap queue."),
    Rule("time_out", "scheduler", "free", "free", (design.timeout == "bootstrapping") & (phase == "boot") & polls(B),
         {phase: "clearing", latch: F}, write=F,
         where=TIMEOUT,
         says="poll() finds the bootstrap timeout expired, writes Failed, and the request is failed. No other status "
              "has a timeout."),
    Rule("abort", "scheduler", "free", "free", phase.in_("boot", "inflight") & (latch == "none"),
         {latch: where((design.tell == "standing") & (status == S), S, F)}, write=F, fair=False,
         where=ABORT,
         says="AbortReq: sender.abort() writes Failed and sets the sender's latch, to Failed or to what stands."),
    Rule("admit", "scheduler", "free", "free", (phase == "boot") & polls(W), {phase: "running", pages: "held"},
         where=BOOTSTRAP_QUEUE,
         says="poll() shows WaitingForInput: the request leaves the bootstrap queue, gets pages and runs."),
    Rule("enqueue", "scheduler", "free", "free",
         (phase == "running") & (chunk == "unsent") & ForAll("earlier chunk", chunk != "unsent"),
         {chunk: where((design.enqueue == "always") | infos_of(gen), "queued", "lost"),
          phase: where(LastChunk(), "inflight", "running")}, per="chunk",
         where=REQUEST,
         says="A chunk is computed and add_transfer_request() enqueues it, or drops it if the infos are gone; with the "
              "last one the request enters the inflight queue, which has no deadline."),
    Rule("settle_failed", "scheduler", "free", "free", phase.in_("boot", "inflight") & polls(F),
         {phase: "clearing", latch: F},
         where=BOOTSTRAP_QUEUE | INFLIGHT_QUEUE,
         says="poll() shows Failed: the request is failed."),
    Rule("settle_success", "scheduler", "free", "free", (phase == "inflight") & polls(S), {phase: "clearing", latch: S},
         where=INFLIGHT_QUEUE,
         says="poll() shows Success in the inflight queue: the request is complete."),
    Rule("clear_status", "scheduler", "free", "free", phase == "clearing",
         {phase: "forgetting", status: where(tombstones, TOMBSTONE, ABSENT), first_terminal: "none",
          stamp: where(tombstones, gen, "first")},
         where=CLEAR,
         says="sender.clear() pops the status ..."),
    Rule("clear_infos", "scheduler", "free", "free", phase == "forgetting", {phase: "releasing", infos: "none"},
         where=CLEAR,
         says="... and then the transfer infos."),
    Rule("release", "scheduler", "free", "free", (phase == "releasing") & drained,
         {phase: "done",
          pages: where(pages == "held", "released", where(pages == "released", "released twice", pages))},
         where=INFLIGHT_QUEUE,
         says="The request's pages go back to the pool."),
    Rule("reuse", "scheduler", "free", "free", (phase == "done") & (gen == "first"),
         {gen: "second", phase: "new", latch: "none", pages: "none", wire: "none", metadata: "none", notice: "none",
          straggler: where(late, "due", "none"),
          stale: where(chunk == "queued", "yes", "no"), chunk: "unsent"}, fair=False, requests=2,
         where=ARRIVAL,
         says="A second request arrives with the same room id. Queued chunks of the first stay in the queue."),
    Rule("reuse_again", "scheduler", "free", "free", (phase == "done") & (gen == "second"),
         {gen: "second", phase: "new", latch: "none", pages: "none", wire: "none", metadata: "none", notice: "none",
          straggler: where(late, "due", "none"),
          stale: where((chunk == "queued") | (stale == "yes"), "yes", "no"), chunk: "unsent",
          stamp: "first", bootstrap_gen: "first", job_gen: "first", infos: where(infos == "second", "first", infos)},
         fair=False, requests=3,
         where=ARRIVAL,
         says="A further request arrives: it is the second one now, and what was the second's is an older one's."),
)  # fmt: skip

BOOTSTRAP: Final = (
    Rule("hear_metadata", "bootstrap", "idle", where(heard, "registered", "idle"), metadata_due,
         {metadata: first_delivery, infos: where(heard, generation_of_infos, infos),
          bootstrap_gen: gen}, fair=False,
         where=METADATA,
         says="Decode's metadata arrives: transfer_infos[room] is complete."),
    Rule("write_w", "bootstrap", "registered", "idle", write=W,
         where=METADATA,
         says="The room is bootstrapped: WaitingForInput."),
    Rule("hear_abort", "bootstrap", "idle", where(present & (status != S) & fresh(gen), "aborting", "idle"), notice_due,
         {notice: first_notice, bootstrap_gen: gen}, fair=False,
         where=NOTICE,
         says="Decode's abort notice arrives; an unknown room, or one with Success, is left alone."),
    Rule("write_f", "bootstrap", "aborting", where(design.abort == "pops", "popping", "idle"), write=F,
         where=NOTICE,
         says="The room is aborted: Failed ..."),
    Rule("abort_pop", "bootstrap", "popping", "idle", TRUE, {infos: where(infos_of(bootstrap_gen), "none", infos)},
         where=OURS,
         says="... and its transfer infos are popped (in the build of the incident; published ones leave them)."),
    Rule("hear_stale_metadata", "bootstrap", "idle", where(believed, "registered", "idle"),
         (gen == "second") & (straggler == "due"),
         {straggler: "none", infos: where(believed, taken_for, infos), bootstrap_gen: taken_for}, fair=False,
         requests=2,
         where=METADATA,
         says="Metadata about the first request arrives in the life of the second."),
    Rule("hear_stale_abort", "bootstrap", "idle", where(believed & present & (status != S), "aborting", "idle"),
         (gen == "second") & (straggler == "due"), {straggler: "none", bootstrap_gen: taken_for}, fair=False,
         requests=2,
         where=NOTICE,
         says="An abort notice about the first request arrives in the life of the second."),
)  # fmt: skip

WORKER: Final = (
    Rule("take", "worker", "idle", "taken", (chunk == "queued") & head_of_queue & my_turn,
         {chunk: "taken", job: ThisChunk(), job_gen: gen}, per="chunk",
         where=QUEUE,
         says="The worker takes the next chunk from the queue."),
    Rule("take_stale", "worker", "idle", "taken", (stale == "yes") & head_of_stale & my_turn,
         {stale: "no", job: ThisChunk(), job_gen: "first"}, per="chunk", requests=2,
         where=QUEUE,
         says="The next chunk in the queue belongs to the first request, which is over."),
    Rule("check_status", "worker", "taken", where(dead_for_worker, "idle", "checked"), ThisChunk(job),
         {chunk: where((job_gen == gen) & dead_for_worker, "lost", chunk)}, per="chunk",
         where=WORKERS,
         says="First check: a Failed room is skipped."),
    Rule("check_infos", "worker", "checked",
         where(infos_of(job_gen), where(design.mark == "never", "posting", "ready"),
               where((design.guard == "fails") & live & fresh(job_gen), "failing", "idle")), ThisChunk(job),
         {chunk: where((job_gen == gen) & ~infos_of(job_gen), "lost", chunk)}, per="chunk",
         where=WORKERS,
         says="Second check: without transfer infos the chunk is skipped silently; with Fix B a live room is failed."),
    Rule("write_t", "worker", "ready", "posting", write=T,
         where=NIXL_WORKER,
         says="The worker, past its checks, writes Transferring."),
    Rule("post", "worker", "posting", "transferring",
         where=WORKERS,
         says="The transfer is posted: pages are being read."),
    Rule("complete", "worker", "transferring",
         where(last_to_arrive, where(design.conclude == "rechecks", "arrived", "concluding"),
               where(design.mark == "again", "marking", "idle")), ThisChunk(job),
         {chunk: where(job_gen == gen, "done", chunk)}, per="chunk",
         where=WORKERS,
         says="The transfer is done."),
    Rule("break", "worker", "transferring", "failing", ThisChunk(job),
         {chunk: where(job_gen == gen, "lost", chunk)}, fair=False, per="chunk",
         where=WORKERS,
         says="The transfer fails."),
    Rule("write_t_again", "worker", "marking", "idle", write=T,
         where=NIXL_WORKER,
         says="After a chunk that is not the last, the worker writes Transferring once more."),
    Rule("conclude", "worker", "arrived", where(missing, "idle", where(status == F, "telling", "concluding")), TRUE,
         {worker_seen: where(missing, ABSENT, where(status == F, F, ABSENT))},
         where=CONCLUDE,
         says="conclude_transfer() looks again: a cleared room is left alone, a Failed one is told so."),
    Rule("write_s", "worker", "concluding", "telling", write=S, result=True,
         where=WORKERS,
         says="Every chunk has arrived: Success."),
    Rule("fail", "worker", "failing", "telling", write=F, result=True,
         where=WORKERS,
         says="The worker fails the room."),
    Rule("tell_success", "worker", "telling", "popping", worker_seen == S,
         {wire: where(wire_counts, where(wire.in_("none", S), S, "both"), wire),
          worker_seen: ABSENT},
         where=TELL,
         says="Decode is told Success."),
    Rule("tell_failed", "worker", "telling", "idle", worker_seen == F,
         {wire: where(wire_counts, where(wire.in_("none", F), F, "both"), wire), worker_seen: ABSENT},
         where=TELL,
         says="Decode is told Failed."),
    Rule("tell_nothing", "worker", "telling", "idle", ~worker_seen.in_(F, S), {worker_seen: ABSENT},
         where=CONCLUDE,
         says="The room has been cleared: there is nothing to tell."),
    Rule("conclude_pop", "worker", "popping", "idle", TRUE, {infos: where(infos_of(job_gen), "none", infos)},
         where=WORKERS,
         says="The worker pops the transfer infos of the concluded room."),
)  # fmt: skip

RULES: Final = (*SCHEDULER, *BOOTSTRAP, *WORKER)
