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
    Planted("atomic-max", "write_status", _CAS, "atomicMax(word, (int)incoming[i])", "step", "atom.global.max.s32",
            says="The incident on a GPU: the larger number wins, so a late status revives a failed room."),
    Planted("lost-update", "write_status", f"int before = {_CAS};", "*word = next;\n        int before = seen;",
            "step", "st.global.u32", says="A read, then a store: whatever came in between is lost."),
    Planted("no-retry", "write_status", _RETRY, "break;", "exit", "atom.global.cas.b32",
            says="The compare-and-swap may fail, and nobody looks."),
    Planted("stale-retry", "write_status", _RETRY, "if (before == seen) break;", "retry", "atom.global.cas.b32",
            says="The compare-and-swap is tried again with what is known to be out of date, for ever."),
    Planted("second-write", "write_status", "if (before == seen) break;", "", "once", "atom.global.cas.b32",
            says="After it has written, the thread looks again, and may write over what came next."),
    Planted("wrong-cell", "write_status", "current == Failed || current == Success", "current == Failed", "step",
            "atom.global.cas.b32", helper=True, says="One cell of the table: a late Failed replaces Success."),
    Planted("wrong-report", "write_status", "stands[i] = next", "stands[i] = incoming[i]", "result", "st.global.u8",
            says="What was meant is reported, not what stands: the ghost's beginning."),
    Planted("plain-load", "write_status", "*(const volatile T *)word", "*word", "access", "ld.global",
            helper=True, says="A load that the compiler may take out of a loop, of a word that others write."),
    Planted("off-by-one", "write_status", "i >= events", "i > events", "bounds", "ld.global",
            says="One thread more than there are events."),
    Planted("no-bound", "first_occurrence", _GUARD, "", "bounds", "ld.global",
            says="The last block has threads without an event, and they read past the arrays."),
    Planted("narrow-index", "fold_statuses", "(long long)blockIdx.x", "blockIdx.x", "address", "ld.volatile.global",
            helper=True, says="32 bits for the number of the event: from four billion on, the first ones again."),
    Planted("byte-offset", "write_status", "&status_of[room[i]]", "(int *)((char *)status_of + room[i])",
            "alignment", "ld.volatile.global", says="A room number taken for an offset in bytes."),
    Planted("position-zero", "fold_statuses", "stamp(start + i + 1,", "stamp(start + i,", "step",
            "atom.global.max.u64", says="Positions from 0: the first event outranks a room that is over already."),
    Planted("last-terminal", "fold_statuses", "((1ULL << 60) - position)", "((1ULL << 59) + position)", "step",
            "atom.global.max.u64", helper=True, says="The last terminal status wins."),
    Planted("wrong-row", "first_occurrence", "5LL * room[i]", "4LL * room[i]", "address", "ld.volatile.global",
            says="Four numbers a room: Success of one room is Failed of the next."),
    Planted("lost-first", "first_occurrence", "atomicMin(word, position)", "*word = position", "step", "st.global.u64",
            says="The minimum by a look and a store: an earlier position may be lost between them."),
    Planted("before-first", "check_log", "i == 0 || ", "", "bounds", "ld.global",
            says="The first event looks at the one before it."),
    Planted("other-room", "check_log", "i == 0 || room[i - 1] != room[i]", "i == 0", "exit", "ret",
            says="The first event of a room is checked against the last one of another room."),
)  # fmt: skip
