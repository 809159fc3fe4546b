"""What is watched of a published engine while it runs, and what a transfer worker is delayed by.

The manager's status table is replaced by one of the same contents, whose stores by transfer workers can be delayed; its
agent and its queues by ones that pass everything on. Nothing that upstream's code asks is answered differently.
"""

from __future__ import annotations

import itertools
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from kvlatch.reference.live.journal import WORKER, Noise
from kvlatch.reference.live.upstream.replaced import Missing
from kvlatch.reference.live.upstream.stubs import Decision
from kvlatch.reference.logs.write import LogWriter
from kvlatch.spec.status import KVPoll

OPS: Final = ("create", "clear", "abort", "write", "release", "take", "post", "arrive", "fail", "end")
_MISSING: Final = object()


class Watch:
    """What has been seen, for the ledger and for the event log. ``log`` is None for decode, which keeps none."""

    def __init__(self, noise: Noise, log: LogWriter | None) -> None:
        self.noise = noise
        self._log = log
        self._lock = threading.Lock()
        self._mine = threading.local()
        self._aborts: Counter[int] = Counter()
        self._reading: dict[int, tuple[int, list[int]]] = {}
        """By the handle of a transfer that runs: its room, and the pages that it reads."""
        self.counts: Counter[str] = Counter()
        self.unfit = ""
        """What the code has asked for that this engine has not got; whatever happened since means nothing."""
        self.deaths: list[dict[str, str]] = []
        """The threads that have died of an exception: their name, the error, and where it was raised."""

    def event(self, op: str, room: int, status: KVPoll | str | None = "", **more: Any) -> None:
        """Write an event, in the name of the calling thread."""
        if self._log is not None:
            self._log.event(op, room, status, thread=threading.current_thread().name, **more)

    # --- Statuses ------------------------------------------------------------------------------------------------

    def read(self, room: int) -> None:
        """A worker looks at a status, and may write what it makes of it."""
        if _is_worker():
            self._mine.read = room, self._aborts[room]

    def stored(self, room: int, old: int | None, new: int) -> None:
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
        status = KVPoll(new)
        if worker or new not in (KVPoll.Bootstrapping, KVPoll.Failed):
            self.event("write", room, status, incoming=status)
        elif new == KVPoll.Failed:
            self.event("abort", room, status)
        elif old is None:
            self.event("create", room, status)
        else:
            self.event("write", room, status, incoming=status)

    # --- Transfers -----------------------------------------------------------------------------------------------

    def taken(self, chunk: Any) -> None:
        """A worker has taken a chunk from its queue."""
        self._mine.chunk = chunk
        self.event("take", int(chunk.room), chunk=_number(chunk))

    def posted(self, handle: int) -> None:
        """The worker's transfer reads the chunk's pages from now on."""
        chunk = getattr(self._mine, "chunk", None)
        if chunk is None:
            return
        with self._lock:
            self._reading[handle] = int(chunk.room), [int(page) for page in chunk.prefill_kv_indices]
        self.event("post", int(chunk.room), chunk=_number(chunk))

    def ended(self, handle: int, *, well: bool) -> None:
        """A transfer has ended."""
        with self._lock:
            room, _ = self._reading.pop(handle, (None, None))
        if room is not None:
            chunk = getattr(self._mine, "chunk", None)
            self.event("arrive" if well else "fail", room, chunk=_number(chunk))

    def freed(self, pages: Iterable[int]) -> None:
        """Pages go back to the pool; too early, if a transfer still reads them."""
        gone = set(pages)
        with self._lock:
            self.counts["released early"] += any(gone.intersection(read) for _, read in self._reading.values())

    # --- Threads -------------------------------------------------------------------------------------------------

    def died(self, arguments: threading.ExceptHookArgs) -> None:
        """A thread has raised: the engine goes on without it, as it does in production."""
        traceback.print_exception(arguments.exc_type, arguments.exc_value, arguments.exc_traceback)
        last = traceback.extract_tb(arguments.exc_traceback)[-1]
        name = arguments.thread.name if arguments.thread is not None else "a thread"
        if isinstance(arguments.exc_value, Decision | Missing) or "sglang" not in Path(last.filename).parts:
            self.unfit = f"{arguments.exc_value}"  # it is our part of the engine that has failed
            return
        where = "/".join(Path(last.filename).parts[-3:])
        error = f"{arguments.exc_type.__name__}: {arguments.exc_value}"
        self.deaths.append({"thread": name, "error": error, "where": f"{where}:{last.lineno}"})


class Table(dict[int, int]):
    """A status table: a dictionary, as upstream's."""

    def __init__(self, watch: Watch, entries: dict[int, int]) -> None:
        super().__init__(entries)
        self._watch = watch
        self._storing = threading.Lock()

    def __getitem__(self, room: int) -> int:
        status = super().__getitem__(room)
        self._watch.read(room)
        return status

    def get(self, room: int, default: Any = None) -> Any:
        status = super().get(room, default)
        self._watch.read(room)
        return status

    def __contains__(self, room: object) -> bool:
        found = super().__contains__(room)
        if isinstance(room, int):
            self._watch.read(room)
        return found

    def __setitem__(self, room: int, status: int) -> None:
        self._watch.noise.pause()
        with self._storing:
            old = super().get(room)
            super().__setitem__(room, status)
            self._watch.stored(room, old, status)

    def __delitem__(self, room: int) -> None:
        self.pop(room)

    def pop(self, room: int, default: Any = _MISSING) -> Any:
        with self._storing:
            found: Any = super().pop(room, _MISSING)
            if found is not _MISSING:
                self._watch.event("clear", room, None)
                return found
        if default is _MISSING:
            raise KeyError(room)
        return default


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
            self._watch.ended(id(handle), well=state == "DONE")
        return state


def _is_worker() -> bool:
    return threading.current_thread().name.startswith(WORKER)


def _number(chunk: Any) -> int:
    """Which chunk of its request it is, counted in pages where upstream has no number."""
    return int(getattr(chunk, "chunk_id", 0) or 0)


def attach(manager: Any, queue: type, watch: Watch, wire_seconds: float) -> None:
    """Watch a manager. ``queue`` is the class of its queues, ``wire_seconds`` how long a transfer takes at least."""
    _name_threads()
    take = queue.get  # type: ignore[attr-defined]  # the class is upstream's

    def get(self: Any, *arguments: Any, **options: Any) -> Any:
        chunk = take(self, *arguments, **options)
        watch.taken(chunk)
        return chunk

    queue.get = get  # type: ignore[attr-defined]
    manager.request_status = Table(watch, manager.request_status)
    manager.agent = Agent(manager.agent, watch, wire_seconds)


def _name_threads() -> None:
    """Give the manager's threads the names that a log shows: `worker N` and `bootstrap`."""
    workers = itertools.count()
    for thread in threading.enumerate():
        if "transfer_worker" in thread.name:
            thread.name = f"{WORKER} {next(workers)}"
        elif "bootstrap_thread" in thread.name:
            thread.name = "bootstrap"
