"""The lines of SGLang's request logger (``--log-requests``): what a server was asked, and how it finished.

They hold what the user wrote, so only what stands outside of every quoted string is looked at.
"""

from __future__ import annotations

import re
from typing import Final

import attrs

from kvlatch.reference.logs.events import MOST_ROOM

WARM_UP: Final = "2.2.2.2"
"""The bootstrap host of requests that an engine sends to itself: no KV cache moves."""
RECEIVED: Final = "Receive: obj=GenerateReqInput("
FINISHED: Final = "Finish: obj=GenerateReqInput("
FIELDS: Final = ("rid", "bootstrap_host", "bootstrap_room")
"""Of the request, as the logger names them."""
_QUOTED: Final = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"")
_HELD: Final = re.compile(r"\x00(\d+)\x00")
_ROOM: Final = re.compile(r"\bbootstrap_room=(\d{1,20})\b")


@attrs.frozen
class Request:
    """One line. ``reason`` is why it finished, empty if it was received; ``message`` is that of an abort."""

    room: int
    rid: str | None
    reason: str = ""
    message: str = ""


def request_of(text: str) -> Request | None:
    """What a message of the request logger says; None if it is none, or of no single request between two engines."""
    finished = text.startswith(FINISHED)
    if not finished and not text.startswith(RECEIVED):
        return None
    strings: list[str] = []

    def hold(quoted: re.Match[str]) -> str:
        strings.append(quoted[0][1:-1])
        return f"\x00{len(strings) - 1}\x00"

    bare = _QUOTED.sub(hold, text.replace("\x00", ""))

    def held(before: str, where: str) -> str | None:
        found = re.search(before + _HELD.pattern, where)
        return None if found is None else strings[int(found[1])]

    asked, out, answer = bare.partition("), out={") if finished else (bare, "", "")
    room = _ROOM.search(asked)
    if (
        room is None
        or int(room[1]) > MOST_ROOM
        or held(r"\bbootstrap_host=", asked) == WARM_UP
        or (finished and not out)
    ):
        return None
    rid = held(r"\brid=", asked)
    if not finished:
        return Request(int(room[1]), rid)
    named = {strings[int(found[1])]: found.end() for found in _HELD.finditer(answer)}
    reason = answer[named["finish_reason"] :] if "finish_reason" in named else ""
    members = _members(reason, strings)
    return Request(int(room[1]), rid, members.get("type", ""), members.get("message", ""))


def _members(bare: str, strings: list[str]) -> dict[str, str]:
    """The members of the first dictionary that are strings."""
    inner = bare[: bare.find("}")] if bare.startswith(": {") else ""
    pairs = re.findall(rf"{_HELD.pattern}: {_HELD.pattern}", inner)
    return {strings[int(name)]: strings[int(value)] for name, value in pairs}
