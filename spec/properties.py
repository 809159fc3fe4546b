"""The twelve properties, each one sentence, and the state that would break it.

A safety property is broken by a single state, its ``bad`` formula; every such state is one that somebody can *see*: a
poll, a worker's guard, a page that is read, a message to decode. Where two readings of "terminal" are legitimate the
property says which *profile* it is about: under *failure overrides* a late Failed may replace Success (what SGLang
does), under *first terminal wins* nothing may. ``reports`` are public bug reports that the property would have caught.
"""

from __future__ import annotations

from typing import Final

from kvlatch.spec.protocol import (
    bootstrap,
    chunk,
    first_terminal,
    gen,
    infos,
    job_gen,
    latch,
    latched,
    live,
    notice,
    pages,
    phase,
    polls,
    present,
    scheduler,
    stale,
    status,
    wire,
    worker,
)
from kvlatch.spec.schema import Property
from kvlatch.spec.status import B, F, S, T, W
from kvlatch.spec.terms import ForAll

polled = phase.in_("boot", "inflight") & (scheduler == "free") & ~latched
"""The scheduler will poll this room next, and the poll will read the table."""
everyone_idle = (
    (scheduler == "free") & (bootstrap == "idle") & ForAll("worker", worker == "idle")
    & ForAll("chunk", (chunk != "queued") & (stale == "no"))
)  # fmt: skip
"""No thread has anything left to do for this room but to poll it."""

PROPERTIES: Final = (
    Property(
        "terminal-sticky",
        "A status that is terminal is never replaced by a live one, nor Failed by Success.",
        polled & (((first_terminal == F) & (status != F) & present) | ((first_terminal == S) & live)),
        reports=("sglang#19205", "sglang#30352", "TensorRT-LLM#14633", "kubernetes#58711"),
        broken="the table said {first_terminal}, and the next poll reads {status}",
    ),
    Property(
        "no-resurrection",
        "A room that has failed never goes back to work.",
        (first_terminal == F) & status.in_(T, S),
        reports=("sglang#19205", "ray#54260", "kubernetes#105382"),
        broken="the table said Failed, and the transfer workers now read {status}: the room is back at work",
    ),
    Property(
        "success-not-overwritten",
        "Success is never replaced by Failed.",
        polled & (first_terminal == S) & (status == F),
        profile="first terminal wins",
        reports=("sglang#35281", "celery#6090", "airflow#12396"),
        broken="the transfer was a Success, and the next poll reads Failed",
    ),
    Property(
        "success-complete",
        "Success means that every chunk has been transferred.",
        (phase == "inflight") & (status == S) & ~ForAll("chunk", chunk == "done"),
        reports=("sglang#38704", "sglang#39846", "nixl#252"),
        broken="the table says Success although chunks are missing: {chunks}",
    ),
    Property(
        "no-pin",
        "No request stays in the inflight queue with nobody left to move it.",
        (phase == "inflight") & everyone_idle & ~polls(F) & ~polls(S),
        reports=("sglang#31075", "sglang#29978", "TensorRT-LLM#17665"),
        broken="the request is in the inflight queue as {status}, every thread is idle, and this queue has no "
        "deadline: it is pinned",
    ),
    Property(
        "settlement",
        "Every request that was created settles: it is completed or failed, cleared, and its pages are released.",
        ~phase.in_("new", "done") | ((phase == "done") & (pages == "held")),
        kind="liveness",
        reports=("sglang#34692", "sglang#35965", "dynamo#7489"),
        broken="the request is {phase} as {status}, its pages are {pages}, and no step is left that would change that",
    ),
    Property(
        "no-ghost",
        "After a request has been cleared, its status does not come back.",
        (phase == "done") & present,
        reports=("sglang#24539", "vllm#43226", "vllm#50565"),
        broken="the request is done and cleared, and the table has an entry for its room again: {status}",
    ),
    Property(
        "pages-held",
        "No page is released while a transfer reads it.",
        (pages == "released") & ~ForAll("worker", (worker != "transferring") | (job_gen != gen)),
        reports=("sglang#24527", "sglang#27372", "sglang#32564", "vllm#32255"),
        broken="the pages have been released while a transfer is reading them",
    ),
    Property(
        "released-once",
        "The pages of a request are released once.",
        pages == "released twice",
        reports=("sglang#18822", "sglang#30937", "vllm#33377"),
        broken="the pages were released twice: they may belong to two requests now",
    ),
    Property(
        "one-outcome",
        "The sender and decode are told the same terminal status, and only one.",
        (wire == "both") | ((latch == F) & (wire == S)) | ((latch == S) & (wire == F)),
        reports=("sglang#36612", "sglang#24522", "vllm#40364", "vllm#58188"),
        broken="the sender reports {latch} and decode was told {wire}",
    ),
    Property(
        "no-lost-wakeup",
        "When decode's metadata has been taken in, the room does not stay Bootstrapping.",
        (phase == "boot") & (scheduler == "free") & (bootstrap == "idle") & (status == B) & ~latched
        & (((infos == "first") & (gen == "first")) | ((infos == "second") & (gen == "second"))),
        reports=("sglang#31217", "vllm#43509", "TensorRT-LLM#15737", "dynamo#9587"),
        broken="decode's metadata is in the table, and the status is Bootstrapping: the wake-up is lost",
    ),
    Property(
        "room-reusable",
        "A second request on a room id starts from scratch: nothing of the first decides its fate.",
        (gen == "second") & (phase == "boot") & (scheduler == "free") & (latch == "none") & (notice == "none")
        & (status.in_(F, T, S) | ((status == W) & (infos != "second"))),
        requests=2,
        reports=("sglang#24539", "kthena#1423", "vllm#51637", "distributed#7356"),
        broken="the second request on this room id has only just been created, and reads {status} of the first",
    ),
)  # fmt: skip

BY_NAME: Final = {prop.name: prop for prop in PROPERTIES}
