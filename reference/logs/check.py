"""Hold event logs against the laws: for each law an answer, with counts, and what the log shows at its end.

A log of one status table in columns goes through the screen first (``rooms.py``), and only the rooms that could have
broken a law are judged event by event; any other log is judged whole (``judge.py``). Both give the same answers: which
way was taken is in the report, as its ``engine``. Memory is a batch of events, and 30 to 60 bytes a room in the screen,
about 500 in the judge.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Final, Literal

import attrs
import numpy as np
import numpy.typing as npt

from kvlatch.reference.arrays import device as arrays
from kvlatch.reference.laws import LAWS, Broken, Judgement, Kept, NotJudged, exit_code
from kvlatch.reference.logs.codes import EVENTS, SILENT
from kvlatch.reference.logs.columns import ColumnLog, NotATable
from kvlatch.reference.logs.ending import Ending, ending, reasons
from kvlatch.reference.logs.events import LIVE, STATUSES, TABLE_OPS, CannotCheck, Event, LogError, Room
from kvlatch.reference.logs.judge import NO_PIN, QUIET, Finding, Judge, Table
from kvlatch.reference.logs.laws import MERGE, PROFILES
from kvlatch.reference.logs.order import Order
from kvlatch.reference.logs.read import Log, TextLog, open_log
from kvlatch.reference.logs.rooms import DEVICE_BLOCK, Rooms, Tables
from kvlatch.spec.designs import Design
from kvlatch.spec.schema import Profile

Engine = Literal["auto", "judge", "numpy", "fast", "gpu"]
_SMALL: Final = 1 << 24
"""Bytes of columns below which loading numba takes longer than checking them with NumPy."""
SHOWN: Final = 10
"""Rooms that are listed under a broken law."""


@attrs.frozen(kw_only=True)
class Report:
    """What the logs show. ``error`` says where they could not be read any further: all else is about what came before.

    ``findings`` are the first of each law in each room, in the order of the log. ``final`` counts entries by the status
    last observed (``unobserved``: in none, or not since their last create), ``running`` those that are on their way,
    ``left`` all that are in a table at the end; ``silent`` events observe nothing. ``disorder`` says how the order of
    the log and its times disagree. ``seconds`` is the time for reading and judging.
    """

    path: str
    unit: str
    version: int
    profile: Profile
    design: str | None
    engine: str
    quiet: float
    seconds: float
    events: int
    silent: int
    rooms: int
    tables: int
    findings: tuple[Finding, ...]
    judgements: tuple[Judgement, ...]
    merged: int
    """Writes of how many rooms were held against the merge of ``design``."""
    final: dict[str, int]
    running: int
    left: int
    disorder: tuple[str, ...]
    error: str | None

    @property
    def laws(self) -> dict[str, int]:
        """In how many rooms each broken law is broken."""
        return dict(Counter(finding.law for finding in self.findings))

    @property
    def violations(self) -> tuple[Finding, ...]:
        """What an event broke: the first finding of each room."""
        first: dict[tuple[str | None, str | None, Room], Finding] = {}
        for finding in self.findings:
            if finding.line:
                first.setdefault((finding.node, finding.rank, finding.room), finding)
        return tuple(first.values())

    @property
    def pinned(self) -> tuple[Finding, ...]:
        """The rooms that are pinned at the end."""
        return tuple(finding for finding in self.findings if finding.law == NO_PIN)

    @property
    def exit_code(self) -> int:
        """As for every judge; 2 if the log could not be read to its end."""
        if self.error:
            return 2
        return 1 if MERGE in self.laws else exit_code(self.judgements)


@attrs.define(eq=False)
class _Run:
    """What is common to all ways of checking."""

    judge: Judge
    order: Order = attrs.field(factory=Order)
    progress: Callable[[int, int], None] | None = None
    found: Callable[[Finding], None] | None = None
    error: str = ""

    def whole(self, log: Log, wanted: Callable[[Event], bool] | None, *, following: bool) -> None:
        """Judge every event of a log, up to its first fault; of one that is followed, up to an interrupt."""
        try:
            for events, done in log.batches():
                told = len(self.judge.findings)
                ordered = self.order.of(events)
                self.judge.feed(ordered if wanted is None else filter(wanted, ordered))
                if self.found:
                    for finding in self.judge.findings[told:]:
                        self.found(finding)
                if self.progress:
                    self.progress(done, log.total)
        except LogError as fault:
            self.error = str(fault)
        except KeyboardInterrupt:
            if not following:
                raise


def check(
    *paths: Path,
    profile: Profile = "first terminal wins",
    design: Design | None = None,
    quiet: float = QUIET,
    engine: Engine = "auto",
    only: Collection[str] = (),
    rooms: Collection[Room] = (),
    since: float | None = None,
    batch: int | None = None,
    follow: bool = False,
    progress: Callable[[int, int], None] | None = None,
    found: Callable[[Finding], None] | None = None,
) -> Report:
    """Check logs as one, file after file. A fault in the middle is the report's ``error``; LogError if nothing is read.

    ``quiet`` is in seconds; ``only`` names laws; ``rooms`` and ``since`` (a time) leave out all other events;
    ``follow`` waits for more at the end of the last file. ``progress(done, total)`` is called after each batch,
    ``found`` for each finding as soon as it is made. ValueError for an argument that makes no sense.
    """
    if quiet <= 0 or not paths or (batch is not None and batch < 1):
        raise ValueError("quiet is at least a moment, a batch at least 1, and there is at least one log")
    if profile not in PROFILES:
        raise ValueError(f"no profile is called {profile!r}: they are {', '.join(PROFILES)}")
    if engine not in ("auto", "judge", "numpy", "fast", "gpu"):
        raise ValueError(f"no engine is called {engine!r}: they are auto, judge, numpy, fast and gpu")
    run = _Run(Judge(profile, design, quiet), progress=progress, found=found)
    wanted = _wanted(rooms, since)
    screened: _Screened | None = None
    start = time.perf_counter()
    unit, version, name = "line", 1, "judge"
    for number, path in enumerate(paths):
        following = follow and number == len(paths) - 1
        rows = DEVICE_BLOCK if batch is None and engine == "gpu" else batch
        log = open_log(path, rows, follow=following)
        run.judge.source = f"{path}, " if len(paths) > 1 else ""
        unit, version = log.unit, max(version, log.version)
        run.judge.declared |= log.declared
        alone = len(paths) == 1 and wanted is None and engine != "judge"
        if isinstance(log, ColumnLog) and log.is_table and alone:
            name, screen = _screen(engine, Tables.of(design), "time" in log.columns, path.stat().st_size)
            screened = _Screened.of(log, screen, run)
        if screened is None:
            if engine not in ("auto", "judge"):
                if isinstance(log, TextLog):
                    log.close()
                says = f"the engine {engine} screens one log of columns that has one table and nothing but statuses"
                raise LogError(f"{path}: {says}; this one is judged event by event")
            name = "judge"
            run.whole(log, wanted, following=following)
        if run.error:
            break
    ended = ending(run.judge)
    if screened is not None:
        ended = screened.completed(ended)
    seconds = time.perf_counter() - start
    answers = tuple(_answers(ended, unit, paths, only, seconds))
    disorder = [line.format(unit=unit) for line in run.judge.contradictions]
    if run.order.moved:
        moved = f"{run.order.moved:,} events came later in the log than in the time of their thread"
        disorder.insert(
            0, f"{moved}, and were judged in the order of time; the first: {run.order.first}".format(unit=unit)
        )
    return Report(
        path=", ".join(map(str, paths)), unit=unit, version=version, profile=profile,
        design=design.name if design else None, engine=name, quiet=quiet, seconds=seconds,
        events=screened.events if screened else run.judge.events,
        silent=screened.silent if screened else run.judge.silent,
        rooms=sum(ended.final.values()), tables=max(1, len(run.judge.tables)), findings=ended.findings,
        judgements=answers, merged=ended.looks.get(MERGE, 0), final=dict(ended.final), running=ended.running,
        left=ended.left, disorder=tuple(disorder), error=run.error or None,
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
# Answers


def _answers(
    ended: Ending, unit: str, paths: Sequence[Path], only: Collection[str], seconds: float
) -> Iterator[Judgement]:
    """An answer for each law that was asked for."""
    why = reasons(ended)
    by_law: dict[tuple[str, str], list[Finding]] = {}
    for finding in ended.findings:
        by_law.setdefault((finding.law, finding.scenario), []).append(finding)
    for law in LAWS:
        scenarios = [scenario for of, scenario in by_law if of == law]
        for scenario in scenarios or [""]:
            if only and law not in only and f"{law}/{scenario}" not in only:
                continue
            found = by_law.get((law, scenario), [])
            if found:
                yield Judgement(law, _broken(found, unit, paths), scenario, seconds)
            elif law not in ended.unsaid and ended.looks.get(law):
                yield Judgement(
                    law, Kept(ended.looks[law], "room" if ended.looks[law] == 1 else "rooms"), scenario, seconds
                )
            else:
                reason = ended.unsaid.get(law) or why.get(law, "nothing was looked at")
                yield Judgement(law, NotJudged(reason), scenario, seconds)


def _broken(found: Sequence[Finding], unit: str, paths: Sequence[Path]) -> Broken:
    """The first finding in a sentence, the first ten in the text, and how to see its room."""
    first, count = found[0], len(found)
    lines = [finding.text(unit) for finding in found[:SHOWN]]
    if count > SHOWN:
        lines.append(f"... and {count - SHOWN:,} more rooms")
    rooms = "1 room" if count == 1 else f"{count:,} rooms"
    log = " ".join(map(str, paths))
    where = str(paths[0]) if len(paths) == 1 else None
    again = f"kvlatch show {log} --room {first.room}" if len(paths) == 1 else ""
    line = first.line if unit == "line" and first.line else None
    return Broken(f"in {rooms}; {lines[0]}", "\n".join(lines), None, again, where, line)


# --------------------------------------------------------------------------------------------------------------------
# The screen


@attrs.define(eq=False)
class _Screened:
    """A log that went through the screen, and then through the judge as far as that was needed."""

    screen: Rooms
    events: int = 0
    silent: int = 0
    latest: float | None = None

    @classmethod
    def of(cls, log: ColumnLog, screen: Rooms, run: _Run) -> _Screened | None:
        """None, and nothing has been judged, if there is more in the log than statuses."""
        self = cls(screen)
        seen = np.zeros(256, bool)
        try:
            for part in log.table():
                screen.feed(part.rooms, part.codes, part.times)
                seen[part.codes] = True
                self.events += len(part.codes)
                self.silent += int(np.count_nonzero(part.codes >= SILENT))
                if part.times is not None and len(part.times) and not np.isnan(part.times).all():
                    self.latest = max(float(np.nanmax(part.times)), self.latest or float("-inf"))
                if run.progress:
                    run.progress(part.done, log.total)
        except NotATable:
            return None
        except LogError as fault:
            run.error = str(fault)
        if self.latest is not None:
            screen.silent_since(self.latest - run.judge.quiet)
        table = run.judge.tables[None, None] = Table(None, None, run.judge.declared | _ops(seen))
        table.end = self.latest
        if len(screen.suspects()):
            try:
                for events in log.of_rooms(screen.is_suspect):
                    run.judge.feed(run.order.of(events))
            except LogError as fault:
                run.error = str(fault)
        return self

    def completed(self, ended: Ending) -> Ending:
        """The ending of the suspects, with the counts of all other rooms."""
        looks = Counter(ended.looks)
        looks.update(self.screen.looks())
        final = Counter({status or "unobserved": count for status, count in self.screen.final().items()})
        running = ended.running + sum(final[status] for status in LIVE)
        final.update(ended.final)
        left = sum(final[status] for status in STATUSES[:-1])
        return attrs.evolve(ended, looks=dict(looks), final=dict(final), left=left, running=running)


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
