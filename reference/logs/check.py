"""Event logs: which laws a recorded run breaks, room by room, in one pass over a file of any length.

:func:`check` reads a log (formats: ``logs/read.py``), holds each event against the status last observed in its room
(laws: ``log_laws.py``), and reports the first violation of each room, how many rooms ended in each status, and which
are *pinned*. Memory is one chunk of events and 20 to 40 bytes a room.

**Pinned.** A log ends somewhere, and a room that is live there may be on its way. A room is called pinned if it ends
live although it had been terminal and no create came between: whoever settles terminal rooms is done with it, and
nobody else will be. With ``quiet=n`` it is also pinned if it ends live and the last n lines say nothing of it. That
finds the requests which hang without having failed, and is a guess: n must be longer than any transfer.

**What a log does not show.** It has no generations: what a room shows between a clear and the next create is called a
ghost. A status that was not logged is not judged, and a live status that goes back (Transferring, then
WaitingForInput) breaks none of the twelve properties. Name a design to have its merge checked too: then every write
must be in the log, in the order in which the table changed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Literal

import attrs
import numpy as np

from kvlatch.reference.arrays import device as arrays
from kvlatch.reference.logs.laws import EVENTS, SILENT, STATUSES, Laws
from kvlatch.reference.logs.read import CannotCheck, LogError, open_log
from kvlatch.reference.logs.rooms import GPU_BLOCK, REVIVED, Broken, Rooms, Tables
from kvlatch.spec.designs import Design
from kvlatch.spec.schema import Profile

Engine = Literal["auto", "numpy", "fast", "cupy"]
CHUNK: Final = 1 << 18
"""Events read at a time; read as columns, a chunk is about 10 MB."""
_SMALL: Final = 1 << 24
"""Bytes of columns below which loading numba or CuPy takes longer than checking them with NumPy."""


@attrs.frozen
class Violation:
    """The first event that breaks a law in its room; ``incoming`` is None where the log does not say it."""

    room: int
    line: int
    law: str
    before: str
    after: str
    op: str
    incoming: str | None
    says: str

    @classmethod
    def of(cls, laws: Laws, room: int, line: int, state: int, code: int) -> Violation:
        """The violation that an event is, given as a byte, in a room whose state (``rooms.py``) breaks with it."""
        before, event, law = _status(state), EVENTS[code], _law(laws, state, code)
        after = event.observed or ""  # an event that observes nothing breaks nothing
        says = laws.says(law, before, event)
        return cls(room, line, law, before, after, event.op, event.incoming, says)

    def __str__(self) -> str:
        written = f" {self.incoming}" if self.op == "write" and self.incoming else ""
        return f"{self.after} over {self.before} ({self.op}{written}) breaks {self.law}: {self.says}"


@attrs.frozen
class Pinned:
    """A room that ends live and will not settle; ``line`` is that of its last event, None without ``quiet``."""

    room: int
    status: str
    revived: bool
    unit: str
    line: int | None

    def __str__(self) -> str:
        why = (
            "although it had been terminal"
            if self.revived
            else f"and nothing is said of it after {self.unit} {self.line}"
        )
        return f"ends {self.status} {why}"


@attrs.frozen(kw_only=True)
class Report:
    """What a log shows. ``violations`` and ``pinned`` are the first ones, by line and by room; the counts are of all.

    ``final`` counts rooms by the status last observed (under ``unobserved``: in none, or not since their last create);
    ``silent`` events observe nothing. ``seconds`` is the time for reading and checking. ``error`` says where the log
    could not be read any further: all else is about what came before.
    """

    path: str
    unit: str
    profile: Profile
    design: str | None
    engine: str
    seconds: float
    events: int
    silent: int
    rooms: int
    violated: int
    laws: dict[str, int]
    violations: tuple[Violation, ...]
    pinned_rooms: int
    pinned: tuple[Pinned, ...]
    final: dict[str, int]
    error: str | None

    @property
    def exit_code(self) -> int:
        """2 if the log could not be read to its end, else 1 if a room breaks a law or is pinned, else 0."""
        if self.error:
            return 2
        return 1 if self.violated or self.pinned_rooms else 0

    def as_json(self) -> dict[str, object]:
        """The report as JSON has it."""
        return {**attrs.asdict(self), "exit_code": self.exit_code}

    def lines(self) -> Iterator[str]:
        """The report as text, for a terminal or a file."""
        for violation in self.violations:
            yield f"room {violation.room}, {self.unit} {violation.line}: {violation}"
        if self.violated > len(self.violations):
            yield f"... and {self.violated - len(self.violations):,} more rooms"
        for pinned in self.pinned:
            yield f"room {pinned.room} is pinned: it {pinned}"
        if self.pinned_rooms > len(self.pinned):
            yield f"... and {self.pinned_rooms - len(self.pinned):,} more pinned rooms"
        if self.error:
            yield f"{self.error}; what follows is about what came before"
        yield "final: " + (", ".join(f"{n:,} {status}" for status, n in self.final.items() if n) or "no rooms")
        silent = f", {self.silent:,} of them without a status" if self.silent else ""
        speed = self.events / self.seconds if self.seconds else 0.0
        yield f"{self.events:,} events{silent}, {self.rooms:,} rooms; {self.engine}: {speed:,.0f} events/s"
        laws = ", ".join(f"{law} in {n:,}" for law, n in self.laws.items())
        profile = self.profile + (f", merge of {self.design}" if self.design else "")
        yield f"{profile}: " + (f"broken: {laws} of the rooms" if laws else "no law is broken")


def check(
    path: Path,
    *,
    profile: Profile = "first terminal wins",
    design: Design | None = None,
    quiet: int | None = None,
    engine: Engine = "auto",
    chunk: int = CHUNK,
    most: int = 1000,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Check a log. A fault in its middle is the report's ``error``; LogError if there is nothing to report on.

    ``most`` bounds the violations and the pinned rooms that are listed. ``progress(done, total)`` is called after each
    chunk, in bytes or rows. ValueError for an argument that makes no sense.
    """
    if chunk < 1 or most < 0 or (quiet is not None and quiet < 1):
        raise ValueError("chunk and quiet are at least 1, most at least 0")
    laws = Laws.of(profile, design)
    log = open_log(path, chunk)
    large = log.unit == "row" and path.stat().st_size >= _SMALL  # lines take longer to read than to check
    name, rooms = _rooms(engine, Tables.of(laws), quiet is not None, large)
    findings = _Findings(laws, most)
    start = time.perf_counter()
    events = silent = 0
    last, error = 0, None
    try:
        for part in log.chunks:
            for broken in rooms.feed(part.rooms, part.codes, part.line):
                findings.add(broken)
            events += len(part.codes)
            silent += int(np.count_nonzero(part.codes >= SILENT))
            last = part.line + len(part.codes) - 1
            if progress:
                progress(part.done, log.total)
    except LogError as fault:
        error = str(fault)
    ids, states, lines = rooms.live(revived=True, before=None if quiet is None else max(0, last + 1 - quiet))
    pinned = zip(ids[:most].tolist(), states[:most].tolist(), lines[:most].tolist(), strict=True)
    return Report(
        path=str(path), unit=log.unit, profile=profile, design=design.name if design else None,
        engine=name, seconds=time.perf_counter() - start, events=events, silent=silent, rooms=rooms.count,
        violated=sum(findings.counts.values()), laws=findings.counts, violations=tuple(findings.kept),
        pinned_rooms=len(ids),
        pinned=tuple(
            Pinned(room, _status(state), bool(state & REVIVED), log.unit, line or None) for room, state, line in pinned
        ),
        final={status or "unobserved": n for status, n in rooms.final().items()}, error=error,
    )  # fmt: skip


def _rooms(engine: Engine, tables: Tables, quiet: bool, large: bool) -> tuple[str, Rooms]:
    """The engine and its name: what was asked for, or the fastest that is there and worth its start."""
    if engine not in ("auto", "numpy", "fast", "cupy"):
        raise ValueError(f"no engine is called {engine!r}: they are auto, numpy, fast, cupy")
    if engine == "cupy" or (engine == "auto" and large):
        try:
            xp = arrays.module("gpu")
        except arrays.NoDevice as error:
            if engine == "cupy":
                raise CannotCheck(str(error)) from error
        else:
            return "cupy", Rooms(tables, xp, quiet, GPU_BLOCK)
    if engine == "fast" or (engine == "auto" and large):
        try:
            from kvlatch.reference.logs.fast import FastRooms
        except ImportError as error:
            if engine == "fast":
                raise CannotCheck(
                    "the engine fast is numba's, which cannot be imported: install kvlatch[fast]"
                ) from error
        else:
            return "fast", FastRooms(tables, np, quiet)
    return "numpy", Rooms(tables, np, quiet)


def _status(state: int) -> str:
    """The status that a state says."""
    return STATUSES[(state & (REVIVED - 1)).bit_length() - 1]


def _law(laws: Laws, state: int, code: int) -> str:
    """The law that an event breaks in this state."""
    return laws.broken[STATUSES.index(_status(state))][code] or ""


@attrs.define
class _Findings:
    """Violations as they come: counted by law, and the first ones by line kept."""

    laws: Laws
    most: int
    counts: dict[str, int] = attrs.field(factory=dict)
    kept: list[Violation] = attrs.field(factory=list)

    def add(self, broken: Broken) -> None:
        """Take in the violations of one block; later blocks have later lines."""
        pairs, counts = np.unique(broken.before.astype(np.int64) << 8 | broken.codes, return_counts=True)
        for pair, count in zip(pairs.tolist(), counts.tolist(), strict=True):
            law = _law(self.laws, pair >> 8, pair & 0xFF)
            self.counts[law] = self.counts.get(law, 0) + count
        earliest = np.argsort(broken.lines)[: self.most - len(self.kept)]
        columns = (broken.rooms, broken.lines, broken.before, broken.codes)
        for found in zip(*(column[earliest].tolist() for column in columns), strict=True):
            self.kept.append(Violation.of(self.laws, *found))
