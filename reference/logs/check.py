"""Hold event logs against the laws: for each law an answer, with counts, and what the log shows at its end.

A log of one status table in columns goes through the screen first (``rooms.py``), and only the rooms that could have
broken a law are judged event by event; any other log is judged whole (``judge.py``). Both give the same answers: which
way was taken is in the report, as its ``engine``. Memory is a batch of events, and 30 to 60 bytes a room in the screen,
about 500 in the judge.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Final, Literal

import attrs
import numpy as np
import numpy.typing as npt

from kvlatch.reference.arrays import device as arrays
from kvlatch.reference.logs.codes import EVENTS, SILENT
from kvlatch.reference.logs.columns import ColumnLog, NotATable
from kvlatch.reference.logs.ending import UNSEEN, Ending, ending
from kvlatch.reference.logs.events import LIVE, STATUSES, TABLE_OPS, CannotCheck, Event, LogError, Room, Unfinished
from kvlatch.reference.logs.files import File
from kvlatch.reference.logs.finding import Finding
from kvlatch.reference.logs.judge import QUIET, Judge, Table
from kvlatch.reference.logs.laws import PROFILES
from kvlatch.reference.logs.order import Order
from kvlatch.reference.logs.parts import Part, Stop
from kvlatch.reference.logs.read import Log, TextLog, open_log
from kvlatch.reference.logs.report import Report
from kvlatch.reference.logs.rooms import DEVICE_BLOCK, Rooms, Tables
from kvlatch.spec.schema import Profile

Engine = Literal["auto", "judge", "numpy", "fast", "gpu"]
_WHOLE: Final = (sys.maxsize, 0)
"""The place of a last event, where the whole log has been looked at."""
_SMALL: Final = 1 << 24
"""Bytes of columns below which loading numba takes longer than checking them with NumPy."""


@attrs.define(eq=False)
class _Run:
    """What is common to all ways of checking."""

    judge: Judge
    part: Part | None = None
    until: Stop | None = None
    progress: Callable[[int, int], None] | None = None
    found: Callable[[Finding], None] | None = None
    order: Order = attrs.field(factory=Order)
    stop: Stop | None = None
    unfinished: list[str] = attrs.field(factory=list)

    def opened(self, path: Path | str, batch: int | None, of: int, *, following: bool) -> Log | None:
        """The log; None if it is one of several whose header was not written, unless there is none other."""
        try:
            return open_log(path, batch, follow=following)
        except Unfinished as end:
            self.unfinished.append(str(end))
            if len(self.unfinished) == of:
                raise
            return None

    def whole(self, log: Log, wanted: Callable[[Event], bool] | None, *, following: bool) -> None:
        """Judge every event of a log, up to its first fault; of one that is followed, up to an interrupt."""
        here = self.until if self.until and self.until.log == self.judge.log else None
        try:
            for batch in log.batches(self.part, here.line if here else None):
                known = len(self.judge.findings)
                ordered = self.order.of(batch.events)
                self.judge.feed(ordered if wanted is None else filter(wanted, ordered))
                for glimpse in batch.others:
                    self.judge.pass_by(glimpse)
                if self.found:
                    for finding in self.judge.findings[known:]:
                        self.found(finding)
                if self.progress:
                    self.progress(batch.done, log.total)
            self.stop = here
        except Unfinished as end:
            self.unfinished.append(str(end))
        except LogError as fault:
            self.fault(fault)
        except KeyboardInterrupt:
            if not following:
                raise

    def fault(self, fault: LogError) -> None:
        """The log cannot be read any further."""
        self.stop = Stop(self.judge.log, fault.line, str(fault))


def check(
    *paths: Path | str,
    profile: Profile = "first terminal wins",
    quiet: float = QUIET,
    engine: Engine = "auto",
    only: Collection[str] = (),
    rooms: Collection[Room] = (),
    since: float | None = None,
    batch: int | None = None,
    follow: bool = False,
    part: Part | None = None,
    until: Stop | None = None,
    progress: Callable[[int, int], None] | None = None,
    found: Callable[[Finding], None] | None = None,
) -> Report:
    """Check logs as one, file after file. A fault in the middle is the report's ``error``; LogError if nothing is read.

    A last line that is cut off is no fault: it is left out, and named in ``unfinished``. Nor is a file among others
    that has no header yet.

    A path is one of this machine, ``-``, or a URL that fsspec opens. ``quiet`` is in seconds; ``only`` names laws;
    ``rooms`` and ``since`` (a time) leave out all other events; ``follow`` waits for more at the end of the last file.
    ``part`` judges some of the rooms only, and reports of all parts can be merged; ``until`` ends where another part
    had to. ``progress(done, total)`` is called after each batch, ``found`` for each finding as soon as it is made.
    ValueError for an argument that makes no sense.
    """
    if quiet <= 0 or not paths or (batch is not None and batch < 1):
        raise ValueError("quiet is at least a moment, a batch at least 1, and there is at least one log")
    if profile not in PROFILES:
        raise ValueError(f"no profile is called {profile!r}: they are {', '.join(PROFILES)}")
    if engine not in ("auto", "judge", "numpy", "fast", "gpu"):
        raise ValueError(f"no engine is called {engine!r}: they are auto, judge, numpy, fast and gpu")
    run = _Run(Judge(profile, quiet), part, until, progress, found)
    wanted = _wanted(rooms, since)
    screened: _Screened | None = None
    start = time.perf_counter()
    unit, version, name = "line", 1, "judge"
    for number, path in enumerate(paths):
        following = follow and number == len(paths) - 1
        rows = DEVICE_BLOCK if batch is None and engine == "gpu" else batch
        log = run.opened(path, rows, len(paths), following=following)
        if log is None:
            continue
        run.judge.log = run.order.log = number
        run.judge.source = f"{path}, " if len(paths) > 1 else ""
        run.judge.process = run.order.process = log.process
        unit, version = log.unit, max(version, log.version)
        run.judge.declared |= log.declared
        alone = len(paths) == 1 and wanted is None and until is None and engine != "judge"
        if isinstance(log, ColumnLog) and log.is_table and alone:
            name, screen = _screen(engine, Tables.of(), "time" in log.columns, File.of(path).size)
            screened = _Screened.of(log, screen, run)
        if screened is None:
            if engine not in ("auto", "judge"):
                if isinstance(log, TextLog):
                    log.close()
                says = f"the engine {engine} screens one log of columns that has one table and nothing but statuses"
                raise LogError(f"{path}: {says}; this one is judged event by event")
            name = "judge"
            run.whole(log, wanted, following=following)
        if run.stop:
            break
    ended = ending(run.judge)
    if screened is not None:
        ended = screened.completed(ended)
    return Report(
        paths=tuple(map(str, paths)), only=tuple(only), unit=unit, version=version, profile=profile,
        engine=name, quiet=quiet, seconds=time.perf_counter() - start,
        events=screened.events if screened else run.judge.events,
        silent=screened.silent if screened else run.judge.silent, tables=max(1, len(run.judge.tables)), ending=ended,
        moved=run.order.moved, first_moved=run.order.first, contradictions=tuple(run.judge.contradictions),
        stop=run.stop, unfinished=tuple(run.unfinished),
    )  # fmt: skip


def _wanted(rooms: Collection[Room], since: float | None) -> Callable[[Event], bool] | None:
    if not rooms and since is None:
        return None
    chosen = set(rooms)

    def wanted(event: Event) -> bool:
        late = since is None or (event.time is not None and event.time >= since)
        return late and (not chosen or event.room in chosen)

    return wanted


# --------------------------------------------------------------------------------------------------------------------
# The screen


@attrs.define(eq=False)
class _Screened:
    """A log that went through the screen, and then through the judge as far as that was needed."""

    screen: Rooms
    events: int = 0
    silent: int = 0
    latest: float | None = None
    last: float | None = None

    @classmethod
    def of(cls, log: ColumnLog, screen: Rooms, run: _Run) -> _Screened | None:
        """None, and nothing has been judged, if there is more in the log than statuses."""
        self = cls(screen)
        seen = np.zeros(256, bool)
        try:
            for part in log.table():
                rooms, codes, times = part.rooms, part.codes, part.times
                if run.part is not None:
                    mine = run.part.of_keys(rooms)
                    rooms, codes, times = rooms[mine], codes[mine], None if times is None else times[mine]
                screen.feed(rooms, codes, times)
                seen[part.codes] = True
                self.events += len(codes)
                self.silent += int(np.count_nonzero(codes >= SILENT))
                if part.times is not None and len(part.times) and not np.isnan(part.times).all():
                    timed = part.times[~np.isnan(part.times)]
                    self.latest, self.last = max(float(timed.max()), self.latest or float("-inf")), float(timed[-1])
                if run.progress:
                    run.progress(part.done, log.total)
        except NotATable:
            return None
        except LogError as fault:
            run.fault(fault)
        if self.latest is not None and self.last is not None:
            screen.silent_since(min(self.latest, self.last) - run.judge.quiet)
        place = None, None, log.process
        table = run.judge.tables[place] = Table(place, run.judge.declared | _ops(seen))
        table.end, table.last, table.at = self.latest, self.last, _WHOLE
        if len(screen.suspects()):
            try:
                for events in log.of_rooms(partial(_suspects, screen, run.part)):
                    run.judge.feed(run.order.of(events))
            except LogError as fault:
                run.fault(fault)
        return self

    def completed(self, ended: Ending) -> Ending:
        """The ending of the suspects, with the counts of all other rooms."""
        looks = Counter(ended.looks)
        looks.update(self.screen.looks())
        final = Counter({status or UNSEEN: count for status, count in self.screen.final().items()})
        running = ended.running + sum(final[status] for status in LIVE)
        final.update(ended.final)
        left = sum(final[status] for status in STATUSES[:-1])
        every = {status: final[status] for status in (*STATUSES, UNSEEN)}
        return attrs.evolve(ended, looks=looks, final=every, left=left, running=running)


def _suspects(screen: Rooms, part: Part | None, rooms: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Which of the rooms have to be judged; the screen has seen those of the part only."""
    if part is None:
        return screen.is_suspect(rooms)
    found = part.of_keys(rooms)
    found[found] = screen.is_suspect(rooms[found])
    return found


def _ops(seen: npt.NDArray[np.bool_]) -> set[str]:
    """What the codes of a log say that it logs."""
    events = [EVENTS[code] for code in np.flatnonzero(seen).tolist()]
    waiting = {"waiting"} if any(e.op in ("create", "write") and e.status in STATUSES[2:4] for e in events) else set()
    return {event.op for event in events if event.op in TABLE_OPS} | waiting


def _screen(engine: Engine, tables: Tables, timed: bool, size: int) -> tuple[str, Rooms]:
    """The engine and its name: what was asked for, or the fastest on a CPU that is there and worth its start."""
    if engine == "gpu":
        try:
            return "gpu", Rooms(tables, arrays.module("gpu"), timed)
        except arrays.NoDevice as error:
            raise CannotCheck(str(error)) from error
    if engine == "fast" or (engine == "auto" and size >= _SMALL):
        try:
            from kvlatch.reference.logs.fast import FastRooms
        except ImportError as error:
            if engine == "fast":
                says = "the engine fast is numba's, which cannot be imported: install kvlatch[fast]"
                raise CannotCheck(says) from error
        else:
            return "fast", FastRooms(tables, np, timed)
    return "numpy", Rooms(tables, np, timed)
