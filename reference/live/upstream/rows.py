"""What upstream's versions keep under different names, or say by different values: a request's memory above all."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

from kvlatch.reference.live.upstream.load import SRT


def receives_into_no_host_memory() -> int:
    """The threshold that says so: 0 in 0.5.21, where it is one of bytes; from 0.5.22 on 1, one of a share."""
    decode = importlib.import_module(f"{SRT}.disaggregation.decode")
    return 0 if "host_receive_threshold > 0" in inspect.getsource(decode) else 1


def row_of(req: Any) -> int | None:
    """The row of a request in the table of tokens; None if it has none."""
    row: int | None = req.req_pool_idx if hasattr(req, "req_pool_idx") else req.kv.req_pool_idx
    return row


def end_of(req: Any) -> int:
    """How many tokens of a request have been computed, or are in this batch."""
    if hasattr(req, "extend_end"):
        return req.extend_end or 0
    return 0 if req.extend_range is None else req.extend_range.end


def extend(req: Any, start: int, end: int) -> None:
    """This batch computes the tokens from ``start`` to ``end``, for which there is memory."""
    memory = req.kv if hasattr(req, "kv") else req
    if memory is None:
        kinds = importlib.import_module(f"{SRT}.managers.schedule_batch")
        memory = req.kv = kinds.ReqKvInfo(kv_allocated_len=end, swa_evicted_seqlen=0)
    memory.kv_allocated_len = end
    holder = memory if hasattr(memory, "kv_committed_len") else req
    holder.kv_committed_len = end
    if hasattr(req, "extend_end"):
        req.prefix_len, req.extend_end = start, end
    else:
        req.set_extend_range(start, end)


def allocated(req: Any) -> int:
    """How many tokens of memory a request has."""
    memory = req.kv if hasattr(req, "kv") else req
    return 0 if memory is None else int(memory.kv_allocated_len)
