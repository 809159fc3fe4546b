"""Event logs: events a second of each engine, beside a loop over a dict and the machine's own copy bandwidth.

``python bench/log.py``: ten million events over 1,000 and over 1,000,000 rooms, in memory, all in one run, each figure
the best of three. Time is that of the one thread that works: what others do on the machine counts less.
``python bench/log.py --file EVENTS``: writes a Parquet log of that size and checks it: peak memory and events/s.
``python bench/log.py --beside``: the same log, in this process, beside pandas, Polars and DuckDB, if installed. Each
is given integer codes, and asks for less: in which rooms an event follows one that it must not follow.
``python bench/log.py --on dask``: from which size on two processes are quicker than one.
Exit code 1 if a ratio that is aimed at is missed or the engines disagree, 4 if numba (or, for a file, pyarrow) is
missing.

Two stages are timed. *look-up*: random 63-bit room ids, as SGLang draws them, become numbers, at 8 bytes an event.
*judging*: the events are grouped by room and held against the laws, at 5 bytes an event: a number and a byte. A log
whose rooms are numbered already needs the second one only; the ratio to the dict loop is given for it, and for both.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from kvlatch.reference.logs.check import check
from kvlatch.reference.logs.codes import EVENTS, SILENT
from kvlatch.reference.logs.events import STATUSES, TABLE_OPS
from kvlatch.reference.logs.rooms import UNKNOWN, Rooms, Tables

COUNT: Final = 10_000_000
AIMS: Final = {"numpy": 10, "fast": 50}
"""How many times as fast as the dict loop an engine is to judge a log."""
LIFE: Final = (
    ("create", "Bootstrapping"), ("write", "WaitingForInput"), ("poll", "WaitingForInput"), ("write", "Transferring"),
    ("poll", "Transferring"), ("poll", "Transferring"), ("write", "Success"), ("poll", "Success"), ("clear", "Absent"),
)  # fmt: skip
"""What a room goes through, again and again; in one room of a thousand the third event is an abort."""
TABLES: Final = Tables.of()

Numbers = npt.NDArray[np.int32]
Codes = npt.NDArray[np.uint8]


def code(op: str, observed: str) -> int:
    """The event that does this and shows that."""
    return next(code for code, event in enumerate(EVENTS) if (event.op, event.status) == (op, observed))


def events(rooms: int, count: int, seed: int, *, clean: bool = False) -> tuple[Numbers, Codes]:
    """Rooms by number, in a random order, and what happens to each; every room goes through its life in order."""
    numbers = np.random.default_rng(seed).integers(0, rooms, count, dtype=np.int32)
    by_room = np.argsort(numbers, kind="stable")
    sizes = np.bincount(numbers, minlength=rooms)
    age = np.empty(count, np.int64)
    age[by_room] = np.arange(count) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    codes = np.array([code(*step) for step in LIFE], np.uint8)[age % len(LIFE)]
    if not clean:
        codes[(numbers % 1_000 == 7) & (age % len(LIFE) == 2)] = code("abort", "Failed")
    return numbers, codes


def dict_loop(rooms: list[int], codes: list[int]) -> set[int]:
    """What one would write first: the last status of each room, and which rooms are suspect."""
    suspicious, left = TABLES.suspicious.tolist(), TABLES.left.tolist()
    known: dict[int, int] = {}
    suspects: set[int] = set()
    for room, event in zip(rooms, codes, strict=True):
        if event < SILENT:
            if known.get(room, UNKNOWN) & suspicious[event]:
                suspects.add(room)
            known[room] = left[event]
    return suspects


def look_up(rooms: Rooms, ids: npt.NDArray[np.int64]) -> Numbers:
    """The number of each room, block by block."""
    blocks = range(0, len(ids), rooms.block)
    return np.concatenate([rooms.number(ids[at : at + rooms.block]) for at in blocks])


def judge(rooms: Rooms, numbers: Numbers, codes: Codes) -> set[int]:
    """The suspects, block by block."""
    for at in range(0, len(numbers), rooms.block):
        rooms.fold(numbers[at : at + rooms.block], codes[at : at + rooms.block])
    return set(rooms.suspects().tolist())


def best(run: Callable[[], object], times: int = 3) -> float:
    """Seconds of the fastest run."""
    seconds = []
    for _ in range(times):
        start = time.thread_time()
        run()
        seconds.append(time.thread_time() - start)
    return min(seconds)


def in_memory(engines: dict[str, type[Rooms]]) -> int:
    """Print the table; the exit code."""
    source = np.ones(1 << 28, np.uint8)
    target = np.empty_like(source)
    bandwidth = len(source) / best(lambda: np.copyto(target, source), 5)
    print(f"{COUNT:,} events. This machine copies {bandwidth / 1e9:.1f} GB/s. The floor of a stage is the time to copy")
    print("its bytes once; the share says how near it comes. M is million events/s of one thread's own time.\n")
    print(f"{'':26}   judging: 5 bytes an event    look-up: 8 bytes an event        both")
    print(f"{'rooms':>9} {'order':8} {'engine':7}       M   floor  x dict           M   floor           M  x dict")
    faults = []
    for count in (1_000, 1_000_000):
        numbers, codes = events(count, COUNT, seed=1)
        ids = np.random.default_rng(2).integers(0, 2**63 - 1, count)[numbers]
        as_lists = ids.tolist(), codes.tolist()
        suspects = dict_loop(*as_lists)
        plain = best(partial(dict_loop, *as_lists), 2)
        print(f"{count:9,} {'any':8} {'dict':7} {'':41} {COUNT / plain / 1e6:17.1f}")
        by_room = np.argsort(numbers, kind="stable")
        for order, ids_, codes_ in (("any", ids, codes), ("grouped", ids[by_room], codes[by_room])):
            for name, engine in engines.items():
                rooms = engine(TABLES)
                look_up(rooms, ids_)  # the table grows, which gives other numbers
                slots = look_up(rooms, ids_)
                if order == "any" and judge(rooms, slots, codes_) != suspects:
                    faults.append(f"{name} and the dict loop disagree on {count:,} rooms")
                finding = best(partial(look_up, rooms, ids_))
                judging = best(partial(judge, rooms, slots, codes_))
                print(
                    f"{count:9,} {order:8} {name:7}"
                    f" {COUNT / judging / 1e6:7.1f} {COUNT * 5 / bandwidth / judging:7.1%} {plain / judging:7.1f}"
                    f"     {COUNT / finding / 1e6:7.1f} {COUNT * 8 / bandwidth / finding:7.1%}"
                    f"     {COUNT / (finding + judging) / 1e6:7.1f} {plain / (finding + judging):7.1f}"
                )
                if order == "any" and plain / judging < AIMS[name]:
                    faults.append(
                        f"{name} on {count:,} rooms judges less than {AIMS[name]} times as fast as the dict loop"
                    )
    for fault in faults:
        print(f"missed: {fault}")
    return 1 if faults else 0


def write(path: Path, count: int, rooms: int, *, clean: bool = False) -> None:
    """A Parquet log; every ten million events have rooms of their own."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    ops = np.array([TABLE_OPS.index(event.op) for event in EVENTS], np.int8)
    statuses = np.array([STATUSES.index(event.status or "Absent") for event in EVENTS], np.int8)
    name = pa.dictionary(pa.int8(), pa.string())
    schema = pa.schema([("room", pa.int64()), ("op", name), ("status", name)])
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for seed, start in enumerate(range(0, count, COUNT)):
            numbers, codes = events(rooms, min(COUNT, count - start), seed, clean=clean)
            ids = np.random.default_rng(seed).integers(0, 2**63 - 1, rooms)[numbers]
            op = pa.DictionaryArray.from_arrays(pa.array(ops[codes]), pa.array(TABLE_OPS))
            status = pa.DictionaryArray.from_arrays(pa.array(statuses[codes]), pa.array(STATUSES))
            writer.write_table(pa.table([pa.array(ids), op, status], schema=schema), row_group_size=1 << 20)


def on_file(count: int, rooms: int) -> int:
    """Write a Parquet log, in another process, and check it in this one; the exit code."""
    if not find_spec("pyarrow"):
        print("not measured: a Parquet log needs pyarrow")
        return 4
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "log.parquet"
        sizes = [f"--file={count}", f"--rooms={rooms}", f"--write={path}"]
        subprocess.run([sys.executable, __file__, *sizes], check=True)
        print(f"{path.stat().st_size / 1e6:,.0f} MB of Parquet, {count:,} events")
        peaks = [_peak()]

        def progress(_done: int, _total: int) -> None:
            peaks.append(_peak())

        cpu = time.process_time()
        report = check(path, progress=progress)
        cpu = time.process_time() - cpu
        print(f"peak memory: {peaks[0]:,.0f} MB to begin with, {peaks[len(peaks) // 10]:,.0f} MB after a tenth of it,")
        print(f"{peaks[len(peaks) // 2]:,.0f} MB after half, {peaks[-1]:,.0f} MB at the end")
        print(f"{report.engine}: {report.events / report.seconds / 1e6:.3g} M events/s, exit {report.exit_code}")
        print(f"{count / cpu / 1e6:.3g} M events for a second of CPU")
    return 0


# --------------------------------------------------------------------------------------------------------------------
# Beside others


def pairs() -> set[tuple[int, int]]:
    """The codes of a log of :data:`LIFE`, two by two, of which the second must not follow the first in a room."""
    codes = [*(code(*step) for step in LIFE), code("abort", "Failed")]
    left, suspicious = TABLES.left, TABLES.suspicious
    return {(one, other) for one in codes for other in codes if left[one] & suspicious[other]}


def by_pandas(path: Path) -> int:
    """Codes shifted by one in each room."""
    import pandas as pd

    log = pd.read_parquet(path)
    before = log.groupby("room", sort=False)["code"].shift(fill_value=255).to_numpy()
    bad = np.zeros((256, 256), bool)
    bad[tuple(np.array(list(pairs())).T)] = True
    return int(log["room"][bad[before, log["code"].to_numpy()]].nunique())


def by_polars(path: Path) -> int:
    """The same, as a lazy query."""
    import polars as pl

    found = [before * 256 + after for before, after in pairs()]
    both = pl.col("code").shift().over("room").cast(pl.Int32) * 256 + pl.col("code")
    query = pl.scan_parquet(path).with_columns(both.alias("both")).filter(pl.col("both").is_in(found))
    return int(query.select(pl.col("room").n_unique()).collect().item())


def by_duckdb(path: Path) -> int:
    """A window over each room, in the order of the file."""
    import duckdb

    found = ", ".join(str(before * 256 + after) for before, after in pairs())
    source = f"read_parquet('{path}', file_row_number = true)"
    before = "lag(code) over (partition by room order by file_row_number)::integer"
    query = f"select room, {before} * 256 + code as pair from {source}"  # noqa: S608  # names of our own
    rows = duckdb.sql(f"select count(distinct room) from ({query}) where pair in ({found})").fetchall()  # noqa: S608
    return int(rows[0][0])


def by_check(path: Path) -> int:
    """The whole check, with all laws and what stands at the end; rooms that break a law at an event."""
    return len(check(path.with_suffix(".parquet")).violations)


def beside() -> int:
    """Print how long each takes for the same log; the exit code."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    others = {"pandas": by_pandas, "polars": by_polars, "duckdb": by_duckdb}
    missing = [name for name in others if not find_spec(name)]
    runs = {"check": by_check, **{name: run for name, run in others.items() if name not in missing}}
    print("million events/s: of the clock, and of the processor (all threads); rooms that break a law\n")
    for rooms, clean in ((1_000, True), (1_000, False), (1_000_000, True), (1_000_000, False)):
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "log.parquet"
            write(path, COUNT, rooms, clean=clean)
            numbers, codes = events(rooms, COUNT, seed=0, clean=clean)
            ids = np.random.default_rng(0).integers(0, 2**63 - 1, rooms)[numbers]
            plain = path.with_suffix(".codes")
            pq.write_table(pa.table({"room": ids, "code": codes}), plain, compression="zstd")
            for name, run in runs.items():
                figures = []
                for _ in range(3):
                    wall, cpu = time.perf_counter(), time.process_time()
                    found = run(plain)
                    figures.append((time.perf_counter() - wall, time.process_time() - cpu, found))
                seconds, processor, found = min(figures)
                print(f"{rooms:9,} {name:7} {COUNT / seconds / 1e6:7.1f} {COUNT / processor / 1e6:7.1f} {found:8,}")
    if missing:
        print(f"not measured: {', '.join(missing)} cannot be imported")
    return 0


def of_requests(path: Path, requests: int) -> Path:
    """A log of whole requests, with node, rank, thread and time, as an engine would write it; 15 events each."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    steps: list[tuple[str, dict[str, object]]] = [
        ("create", {"status": "Bootstrapping"}), ("infos", {}),
        ("write", {"incoming": "WaitingForInput", "status": "WaitingForInput"}), ("hold", {}),
        *((op, {"chunk": chunk, "last": chunk == 1 and op == "enqueue"})
          for chunk in (0, 1) for op in ("enqueue", "take", "post", "arrive")),
        ("write", {"incoming": "Success", "status": "Success"}), ("conclude", {"incoming": "Success"}),
        ("clear", {"status": "Absent"}),
    ]  # fmt: skip
    rooms = np.random.default_rng(1).integers(0, 2**63 - 1, requests).tolist()
    rows = [{"room": room, "op": op, "node": "prefill-0", "rank": "0", "request": str(number), "thread": "worker-1",
             "time": number / 1_000, **more} for number, room in enumerate(rooms) for op, more in steps]  # fmt: skip
    text, number = pa.string(), pa.int64()
    kinds = {"room": pa.uint64(), "op": text, "status": text, "incoming": text, "node": text, "rank": text,
             "request": text, "thread": text, "time": pa.float64(), "chunk": number, "last": pa.bool_()}  # fmt: skip
    pq.write_table(
        pa.table({name: pa.array([row.get(name) for row in rows], kind) for name, kind in kinds.items()}), path
    )
    return path


def on_dask() -> int:
    """Print how long one process and two take for logs of several sizes; the exit code."""
    import distributed

    from kvlatch.reference.logs.cluster import check_on

    local = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None, "protocol": "tcp"}
    wrong = 0
    with tempfile.TemporaryDirectory() as directory, distributed.LocalCluster(**local) as cluster:
        address = str(cluster.scheduler_address).replace("tcp://", "dask://")
        logs = {
            f"requests, {count:,}": of_requests(Path(directory) / f"{count}.parquet", count)
            for count in (100, 1_000, 10_000, 50_000)
        }
        logs[f"statuses only, {COUNT:,}"] = Path(directory) / "statuses.parquet"
        write(logs[f"statuses only, {COUNT:,}"], COUNT, 100_000)
        for name, path in logs.items():
            start = time.perf_counter()
            alone = check(path)
            between = time.perf_counter()
            together = check_on(address, path)
            end = time.perf_counter()
            print(f"{name:28} one process {between - start:6.2f} s, two workers {end - between:6.2f} s")
            wrong |= alone != together
    return wrong


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> int:
    """Measure what was asked for; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", type=int, metavar="EVENTS", help="check a Parquet log of that many events")
    parser.add_argument("--rooms", type=int, default=100_000, help="rooms in each ten million of them")
    parser.add_argument("--beside", action="store_true", help="beside pandas, Polars and DuckDB")
    parser.add_argument("--on", choices=["dask"], help="one process beside two workers of a Dask cluster")
    parser.add_argument("--write", type=Path, metavar="PATH", help="only write that log")
    options = parser.parse_args()
    if options.write:
        write(options.write, options.file, options.rooms)
        return 0
    if options.beside:
        return beside()
    if options.on:
        return on_dask()
    if options.file:
        return on_file(options.file, options.rooms)
    try:
        from kvlatch.reference.logs.fast import FastRooms
    except ImportError:
        print("not measured: the engine `fast` needs numba")
        return 4
    return in_memory({"numpy": Rooms, "fast": FastRooms})


if __name__ == "__main__":
    sys.exit(main())
