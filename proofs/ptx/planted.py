"""Kernels with one bug each, which show that a proof of a kernel can fail: what is changed, and where it must show.

Each is ``kernels.cu`` with one passage replaced; the kernel and the obligation that must be refuted; and at which
instruction. One that is not refuted there is an error, not a pass.
"""

from __future__ import annotations

from typing import Final

import attrs

from kvlatch.reference.arrays.kernels import SOURCE


@attrs.frozen
class Planted:
    """One bug: the first ``old`` after the head of ``kernel`` becomes ``new``; in a helper, the first in the file."""

    name: str
    kernel: str
    old: str
    new: str
    obligation: str
    instruction: str
    helper: bool = False
    says: str = attrs.field(default="", kw_only=True)

    def source(self) -> str:
        """The whole source with the bug; ValueError if the passage is no longer there."""
        text = SOURCE.read_text(encoding="utf-8")
        start = 0 if self.helper else text.index(f"__global__ void {self.kernel}(")
        if self.old not in text[start:]:
            raise ValueError(f"planted kernel {self.name}: {SOURCE.name} has no {self.old!r}")
        return text[:start] + text[start:].replace(self.old, self.new, 1)


_CAS: Final = "atomicCAS(word, seen, next)"
_RETRY: Final = "if (before == seen) break;\n        seen = before;"
_GUARD: Final = "    if (i >= events) return;\n"

PLANTED: Final = (
    Planted("atomic-max", "write_entry", _CAS, "atomicMax(word, next)", "step", "atom.global.max.u32",
            says="The incident on a GPU: the larger number wins, so a late status revives a failed room."),
    Planted("lost-update", "write_entry", f"unsigned before = {_CAS};",
            "*word = next;\n        unsigned before = seen;", "step", "st.global.u32",
            says="A read, then a store: whatever came in between is lost."),
    Planted("no-retry", "write_entry", _RETRY, "break;", "exit", "atom.global.cas.b32",
            says="The compare-and-swap may fail, and nobody looks."),
    Planted("stale-retry", "write_entry", _RETRY, "if (before == seen) break;", "retry", "atom.global.cas.b32",
            says="The compare-and-swap is tried again with what is known to be out of date, for ever."),
    Planted("second-write", "write_entry", "if (before == seen) break;", "", "once", "atom.global.cas.b32",
            says="After it has written, the thread looks again, and may write over what came next."),
    Planted("wrong-row", "write_entry", "merge[5 * (", "merge[4 * (", "step", "atom.global.cas.b32", helper=True,
            says="Four cells a status: the merge of another one."),
    Planted("stale-read", "write_entry", "read == Now ? status : read", "status", "step", "atom.global.cas.b32",
            helper=True, says="The store of a split update is repaired, although unlocked code is not."),
    Planted("tombstone-revived", "write_entry", "(request == stamp && status == Tombstone)", "false", "step",
            "atom.global.cas.b32", helper=True, says="A ghost: a late write of a request that has been cleared."),
    Planted("other-request", "write_entry", "request < stamp || ", "", "step", "atom.global.cas.b32", helper=True,
            says="A straggler of the first request writes into the entry of the second."),
    Planted("last-terminal", "write_entry", "first == Nothing && ", "", "step", "atom.global.cas.b32", helper=True,
            says="The last terminal status is remembered, not the first."),
    Planted("wrong-report", "write_entry", "stands[i] = next", "stands[i] = incoming[i]", "result", "st.global.u8",
            says="What was meant is reported, not what stands: the ghost's beginning."),
    Planted("plain-load", "write_entry", "*(const volatile T *)word", "*word", "access", "ld.global",
            helper=True, says="A load that the compiler may take out of a loop, of a word that others write."),
    Planted("off-by-one", "write_entry", "i >= events", "i > events", "bounds", "ld.global",
            says="One thread more than there are events."),
    Planted("no-bound", "mark_rooms", _GUARD, "", "bounds", "ld.global",
            says="The last block has threads without an event, and they read past the arrays."),
    Planted("narrow-index", "mark_rooms", "(long long)blockIdx.x", "blockIdx.x", "address", "ld.volatile.global",
            helper=True, says="32 bits for the number of the event: from four billion on, the first ones again."),
    Planted("byte-offset", "write_entry", "&entry_of[room[i]]", "(unsigned *)((char *)entry_of + room[i])",
            "alignment", "ld.volatile.global", says="A room number taken for an offset in bytes."),
    Planted("lost-mark", "mark_rooms", "atomicOr(word, marks)", "*word = look(word) | marks", "step", "st.global.u32",
            says="A read, then a store: a mark that another thread has set meanwhile is lost."),
    Planted("before-first", "mark_rooms", "i == 0 || ", "", "bounds", "ld.global",
            says="The first event looks at the one before it."),
    Planted("other-room", "mark_rooms", "i == 0 || room[i - 1] != room[i]", "i == 0", "step", "atom.global.or.b32",
            says="The first event of a room is held against the last one of another room."),
    Planted("own-state", "mark_rooms", "left[code[i - 1]]", "left[code[i]]", "step", "atom.global.or.b32",
            says="An event is held against the state that it leaves itself."),
    Planted("no-suspicion", "mark_rooms", "if (before & suspicious[code[i]]) marks |= Suspect;", "", "exit",
            "ld.volatile.global", says="Nothing is ever suspicious: every log is in order."),
)  # fmt: skip
