"""Both ends of a request say which prompt it has: what a room id that is used again, or drawn twice, does not tell.

The managers know a request by its room id alone. Prefill's sender of one request may adopt the metadata of the next one
on that id, and its KV then arrives, as a whole and in order, in the pages of a request with another prompt. The row of
the metadata buffers that brings the room id to decode has seven more words, which nobody reads: one of them takes a
hash of the prompt's tokens. Where decode meets another one than its own, the request fails, and on all of its ranks,
since that is said before they are reduced. The messages and their sizes stay as they are.
"""

from __future__ import annotations

import hashlib
from array import array
from typing import Any

from sglang.srt.disaggregation.base.conn import KVPoll

WORD = 1
"""Of the row whose word 0 is the room id."""


def lay_over(code: Any) -> None:
    """Prefill writes the mark with the rest of the metadata; decode compares it when it sees Success."""
    buffers, gate = code.utils.MetadataBuffers, code.utils._apply_metadata_gate
    set_buf = buffers.set_buf

    def set_marked(self: Any, req: Any) -> None:
        set_buf(self, req)
        self.bootstrap_room[req.metadata_buffer_index][WORD] = mark(req)

    def compared(polls: Any, decode_reqs: Any, metadata_buffers: Any) -> None:
        gate(polls, decode_reqs, metadata_buffers)
        for number, decode_req in enumerate(decode_reqs):
            if polls[number] == int(KVPoll.Success):
                row = metadata_buffers.bootstrap_room[decode_req.metadata_buffer_index]
                if int(row[WORD]) != mark(decode_req.req):
                    polls[number] = int(KVPoll.Failed)

    buffers.set_buf, code.utils._apply_metadata_gate = set_marked, compared


def mark(req: Any) -> int:
    """A hash of the tokens of a request, of 63 bits."""
    tokens = array("q", req.origin_input_ids).tobytes()
    return int.from_bytes(hashlib.blake2b(tokens, digest_size=8).digest()) >> 1
