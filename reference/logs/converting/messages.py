"""The messages of SGLang that say something of a request: what they look like, and which versions print them where.

A pattern has as much of a message as it takes to know it. ``tests/reference/logs/converting`` looks each one up in the
source of each version that is named here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Literal

import attrs

Side = Literal["prefill", "decode"]

VERSIONS: Final = ("0.5.15.post1", "0.5.19", "0.5.23")
"""Whose messages these are. What other versions print is known as far as it is the same."""
_LATER: Final = VERSIONS[1:]
_NEWEST: Final = VERSIONS[2:]
PACKAGE: Final = "sglang/srt/disaggregation"
_NIXL, _MOONCAKE, _COMMON = "nixl/conn.py", "mooncake/conn.py", "common/conn.py"
_REQUEST: Final = (
    r"rank=\S+ (?:decode_req\.)?req\.rid='(?P<rid>[^']*)' (?:decode_req\.)?req\.bootstrap_room=(?P<room>\d{1,20})\b"
)
_WHY: Final = r"(?: with exception (?P<why>.*))?"


def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


@attrs.frozen
class Message:
    """A message: the end that prints it, what it means, and the versions that print it by the file they do so in."""

    name: str
    side: Side
    says: str
    pattern: re.Pattern[str] = attrs.field(converter=_compiled)
    printed: Mapping[str, tuple[str, ...]]

    @property
    def beginning(self) -> str:
        """The text that each such message begins with."""
        return re.split(r"[\\(\[]", self.pattern.pattern, maxsplit=1)[0]


MESSAGES: Final = (
    Message(
        "marked", "prefill", "decode's abort was marked as Failed",
        r"Received abort notification for room (?P<room>\d{1,20})\b, marked as Failed",
        {_MOONCAKE: VERSIONS, _NIXL: _LATER},
    ),
    Message(
        "ignored", "prefill", "decode's abort came for a room that was over or unknown",
        r"Received abort notification for room (?P<room>\d{1,20})\b, ignoring",
        {_MOONCAKE: VERSIONS, _NIXL: _LATER},
    ),
    Message(
        "info", "prefill", "metadata came from a rank of decode",
        r"got info room=(?P<room>\d{1,20})\b agent_name=", {_NIXL: VERSIONS},
    ),
    Message(
        "bootstrapped", "prefill", "decode's metadata was complete",
        r"room=(?P<room>\d{1,20})\b is bootstrapped", {_NIXL: VERSIONS},
    ),
    Message(
        "skipped-cleared", "prefill", "a worker gave up a chunk of a room that was cleared",
        r"Skipping chunk for room (?P<room>\d{1,20})\b because it has been cleared", {_NIXL: _LATER},
    ),
    Message(
        "skipped-metadata", "prefill", "a worker gave up a chunk of a room without metadata",
        r"Skipping chunk for room (?P<room>\d{1,20})\b because its transfer metadata has been cleared", {_NIXL: _LATER},
    ),
    Message(
        "skipped-failed", "prefill", "a worker gave up a chunk of a room that had failed or was cleared",
        r"Skipping chunk for room (?P<room>\d{1,20})\b because it has already failed", {_MOONCAKE: VERSIONS},
    ),
    Message(
        "not-queued", "prefill", "a chunk was not queued, because its room had failed or was cleared",
        r"Request with bootstrap_room=(?P<room>\d{1,20})\b already failed", {_MOONCAKE: VERSIONS},
    ),
    Message(
        "bootstrap-failed", "prefill", "prefill ended a request as Failed while it was bootstrapping",
        rf"Prefill bootstrap failed for request {_REQUEST}{_WHY}", {"prefill.py": VERSIONS},
    ),
    Message(
        "transfer-failed", "prefill", "prefill ended a request as Failed while it was sent",
        rf"Prefill transfer failed for request {_REQUEST}{_WHY}", {"prefill.py": VERSIONS},
    ),
    Message(
        "handshake-failed", "decode", "decode ended a request as Failed before its transfer",
        rf"Decode handshake failed for request {_REQUEST}{_WHY}", {"decode.py": VERSIONS},
    ),
    Message(
        "receive-failed", "decode", "decode ended a request as Failed during its transfer",
        rf"Decode transfer failed for request {_REQUEST}{_WHY}", {"decode.py": VERSIONS},
    ),
    Message(
        "told-abort", "decode", "decode told prefill that it gives a request up",
        r"Sent abort notification for room (?P<room>\d{1,20})\b to ", {_COMMON: VERSIONS},
    ),
    Message(
        "late-status", "decode", "a status came for a room that decode had cleared",
        r"Dropping late status for cleared room (?P<room>\d{1,20})\b", {_COMMON: _NEWEST},
    ),
    Message(
        "undrained", "decode", "decode released pages although prefill had not said that nobody writes to them",
        r"Deferred KV release for room (?P<room>\d{1,20})\b timed out after", {"decode.py": _LATER},
    ),
    Message(
        "corrupted", "decode", "decode found the metadata of another room in a request's buffer",
        r"Context corruption detected: Request \S+ \(bootstrap_room=(?P<room>\d{1,20})\b\) received metadata from",
        {"decode.py": VERSIONS},
    ),
    Message(
        "lost-prefill", "decode", "decode lost a prefill engine",
        r"Lost connection with prefill instance \(bootstrap_addr: [^)]*\), \d+ requests affected",
        {_COMMON: VERSIONS},
    ),
    Message(
        "died", "prefill", "the bootstrap thread died",
        r"prefill (?P<thread>bootstrap_thread) died on engine_rank=\S+; ", {_NIXL: _NEWEST},
    ),
)  # fmt: skip
"""All messages that a converter knows, but for those of the request logger (``requests.py``)."""
BEGINNINGS: Final = tuple({message.beginning for message in MESSAGES})
"""Whatever begins with none of them is none of these messages."""

TIMED_OUT: Final = Message(
    "timed-out", "prefill", "a time-out, as the reason of a failure",
    r"Request (?P<room>\d{1,20})\b timed out after (?P<seconds>\d+(?:\.\d+)?)s in KVPoll\.(?P<status>\w+)",
    {_COMMON: VERSIONS},
)  # fmt: skip
ABORTED: Final = Message(
    "aborted", "prefill", "the client's abort, as the reason of a failure",
    r"Aborted by (?:AbortReq|decode-side abort notification)\.", {_COMMON: VERSIONS, _NIXL: _LATER},
)  # fmt: skip
TOLD: Final = Message(
    "told-failed", "decode", "prefill said that it failed, as the reason of a failure",
    r"Failed to get kvcache from prefill instance", {_COMMON: _NEWEST, _MOONCAKE: VERSIONS[:2]},
)  # fmt: skip
REASONS: Final = (TIMED_OUT, ABORTED, TOLD)
"""What may stand in the reason of a failure."""

THREADS: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "bootstrap_thread": {_NIXL: VERSIONS[:2], _MOONCAKE: VERSIONS},
    "bootstrap_thread_guarded": {_NIXL: _NEWEST},
    "transfer_worker": {_NIXL: VERSIONS, _MOONCAKE: VERSIONS},
    "decode_thread": {_MOONCAKE: VERSIONS},
    "decode_listener_thread": {_NIXL: _LATER},
    "heartbeat_checker": {_COMMON: VERSIONS},
}
"""Functions that run as threads of their own, of which a death stops all requests; Python names a thread after them."""
