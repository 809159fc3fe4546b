"""The prefill engine: its threads, and the places that a request goes through.

Everything about a status goes through the manager, which is an :class:`~kvlatch.reference.oracle.adapter.Adapter` with
two more calls (``enqueue`` and ``time_out``). The engine knows no design. Its threads are those of the protocol:

* the **scheduler** creates requests, polls the bootstrap queue, computes one chunk of each running request at a time,
  enqueues it, polls the inflight queue and settles;
* the **bootstrap thread** hears decode's metadata and abort notices;
* **transfer workers** take chunks, first in, first out, from one queue or from one each, ask the manager, and move
  pages.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Final

import attrs
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from kvlatch.reference.host import status_of
from kvlatch.reference.live import pages as kv
from kvlatch.reference.live.journal import WORKER, Journal, Noise, NoisyLock, Reporter, Table
from kvlatch.reference.live.ledger import Place, PrefillLedger
from kvlatch.reference.live.server import BadRequest, Gauges, answer, body_of, hang_up, refusal
from kvlatch.reference.live.settings import Rules, Settings
from kvlatch.reference.live.transport import Peer, Transport
from kvlatch.reference.manager import DesignManager
from kvlatch.spec.status import KVPoll

REQUEST: Final = 1
"""The router draws a new room for each request, so every request here is the first of its room."""
_IDLE: Final = 0.002
"""Seconds between two looks for something to do: all of this polls, as upstream's does."""


@attrs.define(eq=False)
class Request:
    """A request as the scheduler knows it."""

    room: int
    prompt: str
    chunks: int
    result: asyncio.Future[KVPoll]
    created: float = attrs.field(factory=time.monotonic)
    computed: int = 0
    pages: list[int] = attrs.field(factory=list)
    polled: KVPoll | None = None
    hung_up: bool = False


@attrs.frozen(eq=False)
class Job:
    """A chunk that waits for a worker."""

    room: int
    chunk: int
    last: bool
    pages: list[int]


@attrs.frozen(eq=False)
class Destination:
    """Where decode wants the pages of a request."""

    peer: Peer
    pages: list[int]


class Prefill:
    """The engine. It is the manager's host: it keeps the table, the pages, and the line to decode."""

    def __init__(self, rules: Rules, settings: Settings, journal: Journal) -> None:
        self._settings = settings
        self._journal = journal
        self._noise = Noise(settings.noise, settings.noise_seconds, settings.seed)
        self.ledger = PrefillLedger()
        self._table = Table(self._noise, journal, self.ledger.stored)
        self._drains = rules.design.release == "drained"
        reporter = Reporter(journal, self._table)
        self._manager = DesignManager(rules.design, rules.level, self, lambda: NoisyLock(self._noise), reporter)
        self._pool = kv.Pool(settings.pages, settings.page_bytes)
        self.transport = Transport("prefill", self._pool)
        self._requests: dict[int, Request] = {}
        self._arrived: queue.SimpleQueue[Request] = queue.SimpleQueue()
        self._bootstrapping: list[Request] = []
        self._running: list[Request] = []
        self._inflight: list[Request] = []
        own = settings.workers if rules.design.queues == "sharded" else 1
        self._jobs: list[queue.Queue[Job]] = [queue.Queue(settings.queue) for _ in range(own)]
        """The one of all workers; or one of each, where a room goes to the same one for good."""
        self._destinations: dict[int, Destination] = {}
        self._at_work = threading.local()
        """What each worker knows of its chunk: it keeps where that goes, even if the request is settled meanwhile."""
        self._peers: dict[str, Peer] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._moving = threading.Lock()
        self.gauges = Gauges("prefill")
        gauge = self.gauges.gauge
        self._depths = (
            (gauge("num_prefill_bootstrap_queue_reqs", "Requests in the bootstrap queue."), self._bootstrapping),
            (gauge("num_running_reqs", "Requests being computed."), self._running),
            (gauge("num_prefill_inflight_queue_reqs", "Requests in the inflight queue."), self._inflight),
        )
        self._requests_total = self.gauges.counter("num_requests", "Requests that came in.")
        self._failed_total = self.gauges.counter("num_transfer_failed_reqs", "Requests that failed.")

    # --- The manager's host ---------------------------------------------------------------------------------------

    def table(self) -> Table:
        """The status table."""
        return self._table

    def release(self, room: int, request: int) -> None:
        """The manager is done with the pages of a request."""
        self.ledger.released(room)
        if (gone := self._requests.pop(room, None)) is not None:
            self._pool.give_back(gone.pages)
        if (destination := self._destinations.pop(room, None)) is not None:
            self._acknowledge(room, destination.peer)

    def _acknowledge(self, room: int, peer: Peer) -> None:
        """Tell decode that nothing will be written into its pages any more, if that is known."""
        if self._drains:
            self.transport.send(peer, {"is": "released", "room": room})

    def tell(self, room: int, request: int, status: KVPoll) -> None:
        """Tell decode how the request has ended; called by the worker that has found out."""
        if (destination := self._at_work.destination) is not None:
            self.transport.send(destination.peer, {"is": "ended", "room": room, "status": status.name})

    # --- Threads --------------------------------------------------------------------------------------------------

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the threads."""
        self._loop = loop
        threads: dict[str, Callable[[], None]] = {"scheduler": self._schedule, "bootstrap": self._listen}
        threads |= {
            f"{WORKER} {number}": partial(self._work, self._jobs[number % len(self._jobs)])
            for number in range(self._settings.workers)
        }
        for name, run in threads.items():
            threading.Thread(target=run, name=name, daemon=True).start()

    def _schedule(self) -> None:
        while True:
            self._create()
            self._poll_bootstrap_queue()
            computed = self._compute()
            self._poll_inflight_queue()
            if not computed:
                time.sleep(_IDLE)  # statuses are polled: nothing wakes the scheduler

    def _create(self) -> None:
        """New requests get a sender, and wait for decode's metadata."""
        while not self._arrived.empty():
            request = self._arrived.get()
            with self._journal.doing("create"):
                self._manager.create(request.room, REQUEST)
            self._move(request, None, self._bootstrapping, "boot")

    def _poll_bootstrap_queue(self) -> None:
        for request in list(self._bootstrapping):
            said = self._poll(request)
            if said == KVPoll.Failed:
                self._settle(request, self._bootstrapping, said)
            elif said == KVPoll.WaitingForInput:
                self._admit(request)
            elif said == KVPoll.Bootstrapping and self._expired(request):
                self._settle(request, self._bootstrapping, KVPoll.Failed)

    def _expired(self, request: Request) -> bool:
        """The time to bootstrap is up, and the manager has failed the request."""
        if time.monotonic() - request.created < self._settings.bootstrap_timeout:
            return False
        with self._journal.doing("abort"):
            return self._manager.time_out(request.room, REQUEST)

    def _admit(self, request: Request) -> None:
        """The request runs as soon as there are pages for it."""
        try:
            request.pages = self._pool.take(request.chunks * self._settings.chunk_pages)
        except kv.NoPages:
            return
        self._journal.did("hold", request.room)
        self._move(request, self._bootstrapping, self._running, "running")

    def _compute(self) -> bool:
        """Compute one chunk of each request of the batch: one forward pass, whose time does not depend on its size."""
        batch = [] if any(jobs.full() for jobs in self._jobs) else self._running[: self._settings.batch]
        end = time.monotonic() + self._settings.chunk_seconds
        for request in batch:
            self._fill(request)
        if batch:
            time.sleep(max(0.0, end - time.monotonic()))  # in the place of the model's computing
        for request in batch:
            self._enqueue(request)
        return bool(batch)

    def _fill(self, request: Request) -> None:
        """Write the KV of the next chunk into its pages."""
        per_chunk = self._settings.chunk_pages
        for page in range(request.computed * per_chunk, (request.computed + 1) * per_chunk):
            self._pool.fill(request.pages[page], kv.content(request.prompt, page, self._settings.page_bytes))

    def _enqueue(self, request: Request) -> None:
        """Hand the computed chunk to the workers; with the last one the request is in the inflight queue."""
        chunk, per_chunk = request.computed, self._settings.chunk_pages
        last = chunk + 1 == request.chunks
        request.computed += 1
        if last:
            self._move(request, self._running, self._inflight, "inflight")
        elif self._running and self._running[0] is request:
            self._running.append(self._running.pop(0))  # the others' turn
        if self._manager.enqueue(request.room, REQUEST, chunk, last):
            jobs = self._jobs[request.room % len(self._jobs)]
            jobs.put(Job(request.room, chunk, last, request.pages[chunk * per_chunk : (chunk + 1) * per_chunk]))

    def _poll_inflight_queue(self) -> None:
        """There is no deadline here: what is neither failed nor complete stays."""
        for request in list(self._inflight):
            said = self._poll(request)
            if said in (KVPoll.Failed, KVPoll.Success):
                self._settle(request, self._inflight, said)

    def _poll(self, request: Request) -> KVPoll:
        if request.hung_up:
            request.hung_up = False
            with self._journal.doing("abort"):
                self._manager.abort(request.room, REQUEST)
        said = self._manager.poll(request.room, REQUEST)
        if said != request.polled:
            self._journal.polled(request.room, lambda: status_of(self._table.peek(request.room)))
            request.polled = said
        return said

    def _settle(self, request: Request, source: list[Request], result: KVPoll) -> None:
        """The request is over: it leaves its queue, its client is answered, its status cleared."""
        self._move(request, source, None, "done")
        self.ledger.settled(result)
        if result == KVPoll.Failed:
            self._failed_total.inc()
        with self._journal.doing("clear"):
            self._manager.clear(request.room, REQUEST)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(_resolve, request.result, result)

    def _move(self, request: Request, source: list[Request] | None, target: list[Request] | None, place: Place) -> None:
        """Move a request from one queue to another; gauges and ledger change as one."""
        with self._moving:
            if source is not None:
                source.remove(request)
            if target is not None:
                target.append(request)
            for gauge, waiting in self._depths:
                gauge.set(len(waiting))
            self.ledger.moved(request.room, place)

    def _listen(self) -> None:
        """Handle the messages of decode."""
        while True:
            for name, message in self.transport.messages():
                room = int(message["room"])
                if message["is"] == "metadata":
                    self._destinations[room] = Destination(self._peers[name], message["pages"])
                    self._manager.metadata(room, REQUEST)
                else:
                    self._hear_abort(room, self._peers[name])
            time.sleep(_IDLE)  # NIXL has no call that waits for a message

    def _hear_abort(self, room: int, peer: Peer) -> None:
        with self._journal.doing("abort"):
            self._manager.abort_notice(room, REQUEST)
        if room not in self._requests:  # it is over, or never came: nothing will be written
            self._destinations.pop(room, None)
            self._acknowledge(room, peer)

    def _work(self, jobs: queue.Queue[Job]) -> None:
        while True:
            job = jobs.get()
            self._at_work.destination = destination = self._destinations.get(job.room)
            with self.ledger.deciding(job.room) as answers:
                answers.append(self._manager.start(job.room, REQUEST, job.chunk, job.last))
            if answers == [False]:
                continue
            with self.ledger.transferring(job.room):
                moved = destination is not None and self._transfer(job, destination)
            self._manager.finish(job.room, REQUEST, job.chunk, job.last, moved)

    def _transfer(self, job: Job, destination: Destination) -> bool:
        per_chunk = self._settings.chunk_pages
        to = destination.pages[job.chunk * per_chunk : (job.chunk + 1) * per_chunk]
        return self.transport.write(destination.peer, job.pages, to, self._settings.page_seconds)

    # --- HTTP -----------------------------------------------------------------------------------------------------

    async def generate(self, http: HttpRequest) -> Response:
        """Compute the prompt, have it transferred, and answer when that is over."""
        try:
            prompt, room, stream = body_of(await http.json())
            request = self._submit(room, prompt)
        except (BadRequest, ValueError) as error:
            return refusal(400, str(error))
        watch = asyncio.create_task(self._watch(http, request)) if self._settings.aborts != "decode" else None
        result = await request.result
        if watch is not None:
            watch.cancel()
        if result == KVPoll.Failed:
            return refusal(500, f"the KV transfer of room {room} has failed")
        return answer(["transferred"], {"id": str(room), "prompt_tokens": len(prompt.split())}, stream=stream)

    def _submit(self, room: int, prompt: str) -> Request:
        chunks = self._settings.chunks_of(prompt)
        if self.ledger.place(room) is not None or room in self._requests:
            raise BadRequest(f"room {room} has been used before")
        request = Request(room, prompt, chunks, asyncio.get_running_loop().create_future())
        self._requests[room] = request
        self._requests_total.inc()
        self._arrived.put(request)
        return request

    async def _watch(self, http: HttpRequest, request: Request) -> None:
        """Its client may hang up."""
        await hang_up(http)
        request.hung_up = True

    async def bootstrap(self, http: HttpRequest) -> Response:
        """A decode engine introduces itself."""
        hello = await http.json()
        peer = self.transport.meet(bytes.fromhex(hello["metadata"]), int(hello["address"]))
        self._peers[peer.name] = peer
        return JSONResponse({"metadata": self.transport.metadata.hex()})

    async def metrics(self, _: HttpRequest) -> Response:
        """The metrics, for Prometheus."""
        with self._moving:
            return self.gauges.page()

    async def state(self, _: HttpRequest) -> Response:
        """The ledger."""
        table = {room: status for room in self._table if (status := status_of(self._table.peek(room))) is not None}
        with self._moving:
            return JSONResponse(
                {
                    **self.ledger.as_json(table),
                    "queued": sum(jobs.qsize() for jobs in self._jobs),
                    "free": self._pool.free,
                }
            )


def _resolve(future: asyncio.Future[KVPoll], result: KVPoll) -> None:
    if not future.done():
        future.set_result(result)
