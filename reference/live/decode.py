"""The decode engine: it asks prefill for the pages of a prompt, and answers with their digest.

A *receiver* thread hears what prefill says; everything else happens in the event loop. A request holds its pages until
nothing writes into them any more: with a design that releases *at once* that is taken to be when the request is over;
with one that waits until its workers have *drained* prefill says so, and only then do they go back to the pool (SGLang
has kept them for an acknowledgement since 0.5.21).
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter, deque
from typing import Any, Final, Literal

import attrs
import httpx
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from kvlatch.reference.live import pages as kv
from kvlatch.reference.live.server import BadRequest, Gauges, answer, body_of, hang_up, refusal
from kvlatch.reference.live.settings import Rules, Settings
from kvlatch.reference.live.transport import Peer, Transport
from kvlatch.spec.status import KVPoll

_POLL: Final = 0.002
"""Seconds between two looks for messages."""
_HEARTBEAT: Final = 0.5
"""Seconds between two heartbeats."""
_MISSED: Final = 3
"""Heartbeats in a row without an answer after which prefill is taken to be dead."""

Ending = Literal["Success", "Failed", "hung up", "timed out", "prefill is gone"]


@attrs.define(eq=False)
class Transfer:
    """A request that waits for its pages."""

    room: int
    home: str
    pages: list[int]
    ended: asyncio.Future[Ending]
    over: bool = False
    safe: bool = False
    """Nothing writes into its pages any more."""


class Decode:
    """The engine."""

    def __init__(self, rules: Rules, settings: Settings) -> None:
        self._settings = settings
        self._at_once = rules.design.release == "at once"
        self._pool = kv.Pool(settings.pages, settings.page_bytes)
        self.transport = Transport("decode", self._pool)
        self._transfers: dict[int, Transfer] = {}
        self._prefills: dict[str, Peer] = {}
        self._meeting = asyncio.Lock()
        self._counts: Counter[str] = Counter()
        self._queue: deque[tuple[int, asyncio.Future[list[int]]]] = deque()
        self._background: set[asyncio.Task[None]] = set()
        self.gauges = Gauges("decode")
        self._prealloc = self.gauges.gauge("num_decode_prealloc_queue_reqs", "Requests that wait for pages.")
        self._transfer = self.gauges.gauge("num_decode_transfer_queue_reqs", "Requests whose pages are on their way.")
        self._requests_total = self.gauges.counter("num_requests", "Requests that came in.")
        self._aborted_total = self.gauges.counter("num_aborted_requests", "Requests whose client hung up.")
        self._failed_total = self.gauges.counter("num_transfer_failed_reqs", "Requests that failed.")

    # --- Threads --------------------------------------------------------------------------------------------------

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the threads."""
        threading.Thread(target=self._receive, args=(loop,), name="receiver", daemon=True).start()

    def _receive(self, loop: asyncio.AbstractEventLoop) -> None:
        while True:
            for _, message in self.transport.messages():
                loop.call_soon_threadsafe(self._heard, message)
            time.sleep(_POLL)  # NIXL has no call that waits for a message

    def _heard(self, message: dict[str, str | int]) -> None:
        """Prefill says that a request has ended, or that nothing writes into its pages any more."""
        transfer = self._transfers.get(int(message["room"]))
        if transfer is None:
            return
        if message["is"] == "released":
            transfer.safe = True
            self._end(transfer, "Failed")  # unless prefill has said otherwise before
            self._free(transfer)
        elif message["status"] == KVPoll.Success.name:
            self._end(transfer, "Success")
        else:
            self._end(transfer, "Failed")

    # --- Requests -------------------------------------------------------------------------------------------------

    async def generate(self, http: HttpRequest) -> Response:
        """Fetch the pages of a prompt; answer with their digest."""
        try:
            body = await http.json()
            prompt, room, stream = body_of(body)
            home = f"http://{body['bootstrap_host']}:{int(body['bootstrap_port'])}"
            count = self._settings.chunks_of(prompt) * self._settings.chunk_pages
        except (BadRequest, ValueError, KeyError, TypeError) as error:
            return refusal(400, f"bad request: {error}")
        self._requests_total.inc()
        watch = asyncio.create_task(self._hung_up(http))
        try:
            return await self._serve(prompt, room, home, count, watch, stream=stream)
        except httpx.HTTPError as error:
            self._counts["failed"] += 1
            return refusal(503, f"no prefill at {home}: {error!r}")
        finally:
            watch.cancel()

    async def _hung_up(self, http: HttpRequest) -> None:
        """Return when the client has hung up, if anybody looks here."""
        if self._settings.aborts == "prefill":
            await asyncio.Event().wait()
        await hang_up(http)

    async def _serve(
        self, prompt: str, room: int, home: str, count: int, watch: asyncio.Task[None], *, stream: bool
    ) -> Response:
        deadline = time.monotonic() + self._settings.waiting_timeout
        peer = await self._prefill(home)
        pages = await self._take(count, watch, deadline)
        if pages is None:
            return self._without_pages(room, watch)
        transfer = Transfer(room, home, pages, asyncio.get_running_loop().create_future())
        self._transfers[room] = transfer
        self._transfer.set(len(self._transfers))
        if not self.transport.send(peer, {"is": "metadata", "room": room, "pages": pages}):
            transfer.safe = True
            self._end(transfer, "prefill is gone")
        await _first(transfer.ended, watch, deadline)
        if not transfer.ended.done():
            self._end(transfer, "hung up" if watch.done() else "timed out")
            self.transport.send(peer, {"is": "abort", "room": room})
        digest = self._pool.digest(pages) if transfer.ended.result() == "Success" else ""
        self._over(transfer)
        return self._reply(prompt, transfer, digest, stream=stream)

    def _without_pages(self, room: int, watch: asyncio.Task[None]) -> Response:
        """The request has never had pages: its client has not waited, or has waited too long."""
        if watch.done():
            self._aborted()
            return refusal(499, "the client has hung up")
        self._counts["failed"] += 1
        return refusal(503, f"no pages have become free for room {room}")

    def _reply(self, prompt: str, transfer: Transfer, digest: str, *, stream: bool) -> Response:
        """What the client is told, and what the ledger remembers."""
        match transfer.ended.result():
            case "Success":
                right = digest == kv.digest_of(prompt, len(transfer.pages), self._settings.page_bytes)
                self._counts["completed" if right else "wrong digest"] += 1
                information = {"id": str(transfer.room), "prompt_tokens": len(prompt.split())}
                return answer([digest, "is", "the", "digest"], information, stream=stream)
            case "hung up":
                self._aborted()
                return refusal(499, "the client has hung up")
            case why:
                self._counts["failed"] += 1
                self._failed_total.inc()
                return refusal(500, f"the KV transfer of room {transfer.room} has failed: {why}")

    def _aborted(self) -> None:
        self._counts["aborted"] += 1
        self._aborted_total.inc()

    def _end(self, transfer: Transfer, how: Ending) -> None:
        if not transfer.ended.done():
            transfer.ended.set_result(how)

    def _over(self, transfer: Transfer) -> None:
        """The request is done with its pages."""
        transfer.over = True
        transfer.safe = transfer.safe or self._at_once
        self._free(transfer)

    def _free(self, transfer: Transfer) -> None:
        if transfer.over and transfer.safe and self._transfers.pop(transfer.room, None) is not None:
            self._pool.give_back(transfer.pages)
            self._transfer.set(len(self._transfers))
            self._serve_queue()

    async def _take(self, count: int, watch: asyncio.Task[None], deadline: float) -> list[int] | None:
        """Pages for a request, when its turn comes; None if its client leaves first, or the deadline passes."""
        turn: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
        self._queue.append((count, turn))
        self._serve_queue()
        await _first(turn, watch, deadline)
        if turn.done():
            return turn.result()
        turn.cancel()
        self._serve_queue()
        return None

    def _serve_queue(self) -> None:
        """Hand out pages, first come, first served, as long as there are enough for the next."""
        while self._queue:
            count, turn = self._queue[0]
            if not turn.done():
                try:
                    turn.set_result(self._pool.take(count))
                except kv.NoPages:
                    break
            self._queue.popleft()
        self._prealloc.set(sum(not turn.done() for _, turn in self._queue))

    # --- Prefill engines ------------------------------------------------------------------------------------------

    async def _prefill(self, home: str) -> Peer:
        """The prefill engine at an address, introduced to this one first; httpx.HTTPError if nothing answers."""
        async with self._meeting:
            if home not in self._prefills:
                hello = {"metadata": self.transport.metadata.hex(), "address": self.transport.address}
                async with httpx.AsyncClient(trust_env=False) as client:
                    reply = (await client.post(f"{home}/bootstrap", json=hello)).raise_for_status()
                # Prefill's own pages are read by nobody else, so their address does not matter.
                self._prefills[home] = self.transport.meet(bytes.fromhex(reply.json()["metadata"]), 0)
                task = asyncio.create_task(self._monitor(home))
                self._background.add(task)
                task.add_done_callback(self._background.discard)
            return self._prefills[home]

    async def _monitor(self, home: str) -> None:
        """Fail the requests of a prefill engine that no longer answers."""
        missed = 0
        async with httpx.AsyncClient(trust_env=False, timeout=_HEARTBEAT * 4) as client:
            while missed < _MISSED:
                await asyncio.sleep(_HEARTBEAT)
                try:
                    await client.get(f"{home}/health")
                    missed = 0
                except httpx.HTTPError:
                    missed += 1
        del self._prefills[home]
        for transfer in [t for t in self._transfers.values() if t.home == home]:
            transfer.safe = True
            self._end(transfer, "prefill is gone")
            self._free(transfer)

    # --- HTTP -----------------------------------------------------------------------------------------------------

    async def metrics(self, _: HttpRequest) -> Response:
        """The metrics, for Prometheus."""
        return self.gauges.page()

    async def state(self, _: HttpRequest) -> Response:
        """The ledger."""
        return JSONResponse(
            {
                "ended": {how: self._counts[how] for how in ("completed", "wrong digest", "failed", "aborted")},
                "transfers": [str(room) for room in self._transfers],
                "waiting": len(self._queue),
                "free": self._pool.free,
            }
        )


async def _first(one: asyncio.Future[Any], other: asyncio.Future[Any], deadline: float) -> None:
    """Wait for either of two events, until the deadline at most."""
    await asyncio.wait([one, other], timeout=deadline - time.monotonic(), return_when="FIRST_COMPLETED")
