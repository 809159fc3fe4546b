"""Check logs on a Dask cluster: each worker judges a part of the rooms, and the reports are merged.

Every worker reads the logs itself, from where it is (a shared folder, or a URL), so nothing but reports travels. A part
is a pure function of the logs: that of a worker that dies is judged by another one. Dask's own nodes trust each other:
they exchange pickles, of this module's arguments and answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce
from pathlib import Path
from typing import Any, Final

from kvlatch.reference.logs.check import check
from kvlatch.reference.logs.events import CannotCheck, LogError
from kvlatch.reference.logs.files import STDIN, is_url
from kvlatch.reference.logs.parts import Part, Stop
from kvlatch.reference.logs.report import Report

SCHEME: Final = "dask://"
_TIMEOUT: Final = 30
"""Seconds in which the scheduler has to answer."""


def check_on(
    address: str,
    *paths: Path | str,
    progress: Callable[[int, int], None] | None = None,
    **options: Any,
) -> Report:
    """The report of ``check(*paths, **options)``, made by the workers of the Dask scheduler at ``dask://HOST:PORT``.

    There is a part for each worker. Paths become absolute: the workers have folders of their own. ``progress(done,
    total)`` counts parts. LogError as in ``check``; CannotCheck if Dask is not installed, nobody answers, or the
    workers cannot run it.
    """
    if not address.startswith(SCHEME):
        raise LogError(f"{address!r} is no address of a Dask scheduler: {SCHEME}HOST:PORT")
    if piped := [path for path in paths if str(path) in STDIN]:
        raise LogError(f"{piped[0]}: a pipe cannot be read by several workers: name a file or a URL")
    try:
        import distributed
    except ImportError as error:
        raise CannotCheck(f"{address}: this needs Dask: install kvlatch[dask]") from error
    logs = [str(path) if is_url(path) else str(Path(path).resolve()) for path in paths]
    try:
        to: Any = distributed.Client
        client = to("tcp://" + address.removeprefix(SCHEME), timeout=_TIMEOUT, set_as_default=False)
    except (OSError, ValueError) as error:
        raise CannotCheck(f"{address}: no Dask scheduler answers there") from error
    with client:
        of = len(client.scheduler_info(n_workers=-1)["workers"])
        if not of:
            raise CannotCheck(f"{address}: the scheduler has no worker")
        run = partial(_on_workers, client, logs, of, options, progress)
        reports = run(None)
        if stops := [report.stop for report in reports if report.stop]:
            reports = run(
                min(stops)
            )  # a fault in an event is found by one part only; what came after it does not count
    return reduce(Report.merge, reports)


def _on_workers(
    client: Any, logs: Sequence[str], of: int, options: dict[str, Any], progress: Callable[[int, int], None] | None,
    until: Stop | None,
) -> list[Report]:  # fmt: skip
    """The reports of all parts."""
    import distributed

    completed: Any = distributed.as_completed
    futures = [
        client.submit(check, *logs, part=Part(number, of), until=until, pure=False, **options) for number in range(of)
    ]
    reports = []
    try:
        for done, future in enumerate(completed(futures, loop=client.loop), 1):
            reports.append(future.result())
            if progress:
                progress(done, of)
    except LogError:
        raise
    except ModuleNotFoundError as error:
        raise CannotCheck(f"the workers cannot run this: {error}") from error
    except distributed.KilledWorker as error:
        raise CannotCheck(f"a part was given up, because several workers died of it: {error}") from error
    return reports
