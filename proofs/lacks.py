"""What published code does and the rows of its design do not: at most ten kinds, each with its reason.

A kind is said by the rows that would be needed. So a play that is no run of the design is of a kind exactly if it is
one with that kind's rows: what nobody has thought of is not hidden behind a name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs

from kvlatch.spec import protocol
from kvlatch.spec.schema import Rule
from kvlatch.spec.status import ABSENT, F, S
from kvlatch.spec.terms import Field, Term, where

PREFIX: Final = "lacks_"
"""Before the name of each such row."""
_seen = protocol.worker_seen
_told_failed: Final[dict[Field, str | Term]] = {
    protocol.wire: where(protocol.wire.in_("none", F), F, "both"),
    _seen: ABSENT,
}
_recorded = (protocol.notice != "none") | (protocol.latch == F) | (protocol.scheduler == "abort*")
"""An abort has left a record of its reason: it does so before it writes."""


@attrs.frozen(eq=False)
class Kind:
    """The rows that a design would need; ``raises`` says of operations how the error begins that ends their thread."""

    name: str
    why: str
    designs: tuple[str, ...]
    rows: tuple[Rule, ...] = ()
    raises: Mapping[str, str] = attrs.field(factory=dict)

    def expects(self, op: str, error: str) -> bool:
        """The kind is about this error of this operation."""
        return op in self.raises and error.startswith(self.raises[op])


def _worker(name: str, at: str, to: str, when: Term, then: Mapping[Field, str | Term] | None = None) -> Rule:
    return Rule(PREFIX + name, "worker", at, to, when, dict(then or {}))


_OLD: Final = ("sglang-0.5.15.post1", "sglang-0.5.19")
_MOONCAKE: Final = ("mooncake-0.5.15.post1",)
_NEW: Final = ("sglang-0.5.23",)
KINDS: Final = (
    Kind(
        "failed-pops",
        "Who ends the last chunk as Failed pops the metadata after it has told so; in the rows the clear that comes "
        "next does.",
        _NEW,
        (_worker("tell_failed_pop", "telling", "popping", _seen == F, _told_failed),),
    ),
    Kind(
        "record-fails",
        "conclude_transfer() fails the room also for a failure that is recorded and not written yet, or was written "
        "over. The rows have no records, only statuses.",
        _NEW,
        (_worker("record", "concluding", "failing", _recorded),),
    ),
    Kind(
        "cleared-is-left",
        "A worker that fails finds the room cleared, and writes and tells nothing. The rows write Failed, which the "
        "merge drops, and tell it: a word that is not sent.",
        _NEW,
        (_worker("fail_nothing", "failing", "idle", protocol.missing),),
    ),
    Kind(
        "nobody-to-tell",
        "Without metadata there is no address: the word goes to nobody. In the rows it goes to decode.",
        _NEW,
        (_worker("tell_nobody", "telling", "idle", protocol.infos == "none", {_seen: ABSENT}),),
    ),
    Kind(
        "overtaken-keeps",
        "A worker whose Success has been written over tells it all the same, and does not pop the metadata.",
        _MOONCAKE,
        (_worker("end", "popping", "idle", protocol.status != S),),
    ),
    Kind(
        "failure-untold",
        "Up to 0.5.19 NIXL sends no word of a failed transfer: decode finds out by its own time-out.",
        _OLD,
        (_worker("tell_none", "telling", "idle", _seen == F, {_seen: ABSENT}),),
    ),
    Kind(
        "reads-again",
        "An update reads the table up to three times, and raises if the room is cleared in between: the worker gives "
        "up.",
        _OLD,
        (
            _worker("write_s_raises", "write_s*", "idle", protocol.missing, {_seen: ABSENT}),
            _worker("write_t_raises", "write_t*", "idle", protocol.missing, {_seen: ABSENT}),
        ),
    ),
    Kind(
        "bootstrap-dies",
        "A clear in the middle of a message ends the bootstrap thread: it pops what `infos[room] = {}` has made, and "
        "`infos[room][agent] = ...` raises; or the status between two looks at it. What comes after is not followed.",
        (*_OLD, *_MOONCAKE, *_NEW),
        raises={"metadata": "KeyError: ", "abort_notice": "KeyError: "},
    ),
    Kind(
        "worker-dies",
        "A worker that finds its room cleared between two looks at it raises, and its thread ends. What comes after is "
        "not followed.",
        _MOONCAKE,
        raises={"work": "RuntimeError: Transfer thread failed because of "},
    ),
    Kind(
        "notice-kills",
        "Up to 0.5.15.post1 NIXL knows no abort notice: its bootstrap thread dies of it. What comes after is not "
        "followed.",
        ("sglang-0.5.15.post1",),
        raises={"abort_notice": "AssertionError: First message should be"},
    ),
)


def of(design: str) -> tuple[Kind, ...]:
    """The kinds that a design is known to lack."""
    return tuple(kind for kind in KINDS if design in kind.designs)
