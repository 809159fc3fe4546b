"""What is counted of a published engine while it runs, and what a transfer worker is delayed by.

Its event log is written by the recorder for everybody (``reference/logs/recording``). Here the status table that the
recorder watches gets stores by transfer workers that can be delayed, and agent and queues are replaced by ones that
pass everything on. Nothing that upstream's code asks is answered differently.
"""

from __future__ import annotations

import itertools
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from kvlatch.reference.live.journal import WORKER, Noise
from kvlatch.reference.live.upstream.stubs import Decision, Missing
from kvlatch.reference.logs.recording import containers
from kvlatch.spec.status import KVPoll

_LOOK: Final = "check_xfer_state"
_TABLES: Final = (Path(__file__), Path(containers.__file__))
"""Where the tables are that raise on behalf of whoever asks them for a room."""


class Watch:
    """What has been seen, for the ledger."""

    def __init__(self, noise: Noise) -> None:
        self.noise = noise
        self._lock = threading.Lock()
        self._mine = threading.local()
        self._aborts: Counter[int] = Counter()
        self._reading: dict[int, list[int]] = {}
        """By the handle of a transfer that runs: the pages that it reads."""
        self.counts: Counter[str] = Counter()
        self.unfit = ""
        """What the code has asked for that this engine has not got; whatever happened since means nothing."""
        self.deaths: list[dict[str, str]] = []
        """The threads that have died of an exception: their name, the error, and where it was raised."""

    # --- Statuses ------------------------------------------------------------------------------------------------

    def read(self, room: int) -> None:
        """A worker looks at a status, and may write what it makes of it."""
        if _is_worker():
            self._mine.read = room, self._aborts[room]

    def stored(self, room: int, new: int) -> None:
        """A status has been stored. A *hit* is the race of the incident: Failed was stored since this worker looked."""
        worker = _is_worker()
        if new == KVPoll.Failed and not worker:
            with self._lock:
                self._aborts[room] += 1
        if worker and getattr(self._mine, "read", None) not in (None, (room, self._aborts[room])):
            if self._mine.read[0] == room:
                with self._lock:
                    self.counts["hits"] += 1
            self._mine.read = None

    # --- Transfers -----------------------------------------------------------------------------------------------

    def taken(self, chunk: Any) -> None:
        """A worker has taken a chunk from its queue."""
        self._mine.chunk = chunk

    def posted(self, handle: int) -> None:
        """The worker's transfer reads the chunk's pages from now on."""
        chunk = getattr(self._mine, "chunk", None)
        if chunk is None:
            return
        with self._lock:
            self._reading[handle] = [int(page) for page in chunk.prefill_kv_indices]

    def ended(self, handle: int) -> None:
        """A transfer has ended."""
        with self._lock:
            self._reading.pop(handle, None)

    def freed(self, pages: Iterable[int]) -> None:
        """Pages go back to the pool; too early, if a transfer still reads them."""
        gone = set(pages)
        with self._lock:
            self.counts["released early"] += any(gone.intersection(read) for read in self._reading.values())

    # --- Threads -------------------------------------------------------------------------------------------------

    def died(self, arguments: threading.ExceptHookArgs) -> None:
        """A thread has raised: the engine goes on without it, as it does in production."""
        traceback.print_exception(arguments.exc_type, arguments.exc_value, arguments.exc_traceback)
        frames = traceback.extract_tb(arguments.exc_traceback)
        last = [frame for frame in frames if Path(frame.filename) not in _TABLES][-1]  # who has asked a table
        name = arguments.thread.name if arguments.thread is not None else "a thread"
        ours = next((one for one in _chain(arguments.exc_value) if isinstance(one, Decision | Missing)), None)
        if ours is not None or "sglang" not in Path(last.filename).parts:
            self.unfit = f"{ours or arguments.exc_value}"  # it is our part of the engine that has failed
            return
        where = "/".join(Path(last.filename).parts[-3:])
        error = f"{arguments.exc_type.__name__}: {arguments.exc_value}"
        self.deaths.append({"thread": name, "error": error, "where": f"{where}:{last.lineno}"})


class Table(dict[int, int]):
    """A status table: a dictionary, as upstream's; put in front of the class of another one (:func:`over`)."""

    watch: Watch
    storing: threading.Lock

    def __getitem__(self, room: int) -> int:
        status = super().__getitem__(room)
        self.watch.read(room)
        return status

    def get(self, room: int, default: Any = None) -> Any:
        status = super().get(room, default)
        self.watch.read(room)
        return status

    def __contains__(self, room: object) -> bool:
        found = super().__contains__(room)
        if isinstance(room, int):
            self.watch.read(room)
        return found

    def __setitem__(self, room: int, status: int) -> None:
        self.watch.noise.pause()
        with self.storing:
            super().__setitem__(room, status)
            self.watch.stored(room, status)


def over(table: dict[int, int], watch: Watch) -> Table:
    """A table with the contents and the methods of another one, and these in front of them."""
    kind: Any = type("Table", (Table, type(table)), {})
    new = kind.__new__(kind)
    vars(new).update(getattr(table, "__dict__", {}), watch=watch, storing=threading.Lock())
    dict.update(new, table)
    found: Table = new
    return found


class Agent:
    """A NIXL agent that says which transfers run, over a wire that is not faster than one between two machines."""

    def __init__(self, agent: Any, watch: Watch, wire_seconds: float) -> None:
        self._agent, self._watch, self._wire_seconds = agent, watch, wire_seconds
        self._due: dict[int, float] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._agent, name)

    def transfer(self, handle: Any, *arguments: Any, **options: Any) -> Any:
        """Start a transfer."""
        self._watch.posted(id(handle))
        self._due[id(handle)] = time.monotonic() + self._wire_seconds
        return self._seen(handle, self._agent.transfer(handle, *arguments, **options))

    def check_xfer_state(self, handle: Any) -> Any:
        """How far a transfer is."""
        return self._seen(handle, self._agent.check_xfer_state(handle))

    def _seen(self, handle: Any, state: Any) -> Any:
        if state == "DONE" and time.monotonic() < self._due.get(id(handle), 0.0):
            return "PROC"
        if state in ("DONE", "ERR"):
            self._due.pop(id(handle), None)
            self._watch.ended(id(handle))
        return state


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error, and those that upstream's code was dealing with when it raised it."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _is_worker() -> bool:
    return threading.current_thread().name.startswith(WORKER)


def attach(manager: Any, queue: type, watch: Watch, wire_seconds: float) -> None:
    """Watch a manager. ``queue`` is the class of its queues, ``wire_seconds`` how long a transfer takes at least."""
    _name_threads()
    take = queue.get  # type: ignore[attr-defined]  # the class is upstream's

    def get(self: Any, *arguments: Any, **options: Any) -> Any:
        chunk = take(self, *arguments, **options)
        watch.taken(chunk)
        return chunk

    queue.get = get  # type: ignore[attr-defined]
    manager.request_status = over(manager.request_status, watch)
    if hasattr(manager, "agent"):
        vars(manager.agent).pop(_LOOK, None)  # a transfer has ended when the slow wire says so, for the recorder too
        manager.agent = Agent(manager.agent, watch, wire_seconds)


def _name_threads() -> None:
    """Give the manager's threads the names that a log shows: `worker N` and `bootstrap`."""
    workers = itertools.count()
    for thread in threading.enumerate():
        if "transfer_worker" in thread.name:
            thread.name = f"{WORKER} {next(workers)}"
        elif "bootstrap_thread" in thread.name:
            thread.name = "bootstrap"
