"""Logs that are checked on a Dask cluster of real processes: the report is that of one process."""

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvlatch.reference.logs.check import check
from kvlatch.reference.logs.cluster import check_on
from kvlatch.reference.logs.events import CannotCheck, LogError
from tests.reference.logs.log_files import ndjson

distributed = pytest.importorskip("distributed", reason="a Dask cluster needs the extra dask")
SEED = Path(__file__).parents[2] / "logs" / "seed.ndjson"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A scheduler and two workers, each a process with one thread."""
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, protocol="tcp") as cluster:
        yield cluster


def address(cluster: Any) -> str:
    """What ``--on`` takes."""
    return str(cluster.scheduler_address).replace("tcp://", "dask://")


def test_a_cluster_reports_what_one_process_does(cluster: Any, tmp_path: Path) -> None:
    """Several logs, one of them at a URL, with findings, and with a fault that one worker alone can find."""
    rows = [{"room": room, "op": op, "status": status} for room in range(40) for op, status in
            (("create", "Bootstrapping"), ("abort", "Failed"), ("write", "Transferring"))]  # fmt: skip
    log = ndjson(tmp_path / "log.ndjson", rows, version=2)
    logs = [str(SEED), log.as_uri()]
    parts: list[tuple[int, int]] = []
    report = check_on(address(cluster), *logs, progress=lambda done, of: parts.append((done, of)))
    assert report == check(*logs)
    assert (report.laws["terminal-sticky"], report.events, parts) == (41, 24 + len(rows), [(1, 2), (2, 2)])

    faulty = ndjson(tmp_path / "faulty.ndjson", [*rows[:50], {"room": 7, "op": "take"}, *rows[50:]], version=2)
    report = check_on(address(cluster), faulty)
    assert report == check(faulty)
    assert (report.events, report.exit_code) == (50, 2)


def test_what_cannot_be_checked_is_one_line(cluster: Any, tmp_path: Path) -> None:
    """No such file on a worker; a pipe; no scheduler."""
    with pytest.raises(LogError, match="No such file"):
        check_on(address(cluster), tmp_path / "none.ndjson")
    with pytest.raises(LogError, match="a pipe cannot be read by several workers"):
        check_on(address(cluster), "-")
    with pytest.raises(LogError, match="no address of a Dask scheduler"):
        check_on("tcp://127.0.0.1:1", SEED)


def test_a_scheduler_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody listens on that port."""
    monkeypatch.setattr("kvlatch.reference.logs.cluster._TIMEOUT", 1)
    with pytest.raises(CannotCheck, match="no Dask scheduler answers there"):
        check_on("dask://127.0.0.1:1", SEED)


@pytest.mark.thorough
def test_workers_that_are_killed_lose_nothing(cluster: Any, tmp_path: Path) -> None:
    """All workers are killed as soon as one part is done: the other one is done again, by the next ones."""
    ends = ("Failed", "Success")
    rows = [{"room": room, "op": "poll", "status": status} for room in range(20_000) for status in ends]
    log = ndjson(tmp_path / "log.ndjson", rows, version=2)
    with distributed.Client(cluster) as client:
        before = client.run(os.getpid)
    killed = threading.Event()

    def kill(_done: int, _of: int) -> None:
        if not killed.is_set():
            killed.set()
            for worker in before.values():
                os.kill(worker, signal.SIGKILL)

    assert check_on(address(cluster), log, progress=kill) == check(log)
    assert killed.is_set()
