"""``python -m kvlatch.reference.live.upstream.engine``: one engine of published SGLang, as a process; see `server.py`.

Its scheduler runs upstream's own loop in a thread. A thread that dies is noted, and the process goes on without it.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import logging
import os
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from kvlatch.reference.live import pages as kv
from kvlatch.reference.live.journal import Noise
from kvlatch.reference.live.load import number_of
from kvlatch.reference.live.records import HELD
from kvlatch.reference.live.server import (
    MODEL,
    BadRequest,
    Gauges,
    answer,
    body_of,
    end_with_input,
    hang_up,
    refusal,
    serve,
)
from kvlatch.reference.live.settings import SCHEDULER, EngineRole, Settings
from kvlatch.reference.live.upstream.backend import Backend, follow_transfers
from kvlatch.reference.live.upstream.lives import Lives
from kvlatch.reference.live.upstream.load import SRT, Finder, load
from kvlatch.reference.live.upstream.observe import Watch, attach
from kvlatch.reference.live.upstream.overlays import lay_over
from kvlatch.reference.live.upstream.ranks import Group
from kvlatch.reference.live.upstream.replaced import arguments, replaced
from kvlatch.reference.live.upstream.rows import allocated, receives_into_no_host_memory
from kvlatch.reference.live.upstream.scheduler import scheduler
from kvlatch.reference.logs.recording.senders import recorder_of
from kvlatch.reference.logs.recording.senders import watch as watch_class
from kvlatch.reference.logs.recording.sglang import install
from kvlatch.reference.published.stand_ins import private_stdout
from kvlatch.spec.status import ABSENT, KVPoll

_TABLES: Final = ("request_status", "transfer_infos", "failure_records", "transfer_statuses")
"""Of a manager, by room: an entry of a request that is over has leaked."""
_NAMED: Final = 3
"""Rooms of each that are named."""


class Engine:
    """A scheduler of upstream's with its HTTP side: one rank of an engine. Requests come to rank 0."""

    def __init__(self, role: EngineRole, settings: Settings, configuration: dict[str, Any]) -> None:
        self._role = role
        self._settings = settings
        self._bootstrap_port = int(configuration["bootstrap_port"])
        self._rank = int(configuration["rank"])
        links = [socket.socket(fileno=number) for number in configuration["links"]]
        group = Group(self._rank, settings.ranks, links) if settings.ranks > 1 else None
        backend = Backend(settings.backend)
        given = arguments(role, self._bootstrap_port, group, backend.name)
        self.finder: Finder = load(Path(configuration["code"]), replaced(given))
        install(Path(configuration["log"]).parent, role)
        upstream = importlib.import_module(f"{SRT}.managers.scheduler")
        given.disaggregation_decode_host_receive_threshold = receives_into_no_host_memory()
        backend.on_the_host()
        for number, overlay in enumerate(configuration["overlays"]):
            lay_over(overlay, f"overlay_{number}", upstream, backend)
        self.lives = Lives()
        self.lives.follow_senders(backend)
        for part in ("KVSender", "KVReceiver"):
            watch_class(backend.get(part))
        if role == "prefill":
            if self._rank == 0:
                self._bootstrap_server = backend.get("KVBootstrapServer")("127.0.0.1", self._bootstrap_port)
            _wait_for_port(self._bootstrap_port)
        self.watch = Watch(Noise(settings.noise, settings.noise_seconds, settings.seed + self._rank))
        wire = settings.page_seconds * settings.chunk_pages if role == "prefill" else 0.0
        if backend.name == "mooncake":
            follow_transfers(backend.get("KVManager"), self._begun, self.watch.ended, wire)
        threading.excepthook = self.watch.died
        self.scheduler = scheduler(upstream, settings, given, self.watch, group)
        self.manager = self._queue.kv_manager
        queue = importlib.import_module(f"{SRT}.disaggregation.common.utils").FastQueue
        attach(self.manager, queue, self.watch, wire)
        self.lives.follow_chunks(queue, self.manager)
        self.scheduler.answered = self._answered
        self.scheduler.called = self._called
        self._futures: dict[str, asyncio.Future[Any]] = {}
        self._counts: Counter[str] = Counter()
        self._wrong: list[str] = []
        """The requests for which wrong bytes came to this rank."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self.gauges = Gauges(role)
        self._gauges = {
            name: (self.gauges.gauge(name, says), length)
            for name, says, length in (
                ("num_prefill_bootstrap_queue_reqs", "Requests in the bootstrap queue.", self._bootstrapping),
                ("num_prefill_inflight_queue_reqs", "Requests in the inflight queue.", self._inflight),
                ("num_decode_prealloc_queue_reqs", "Requests that wait for pages.", self._prealloc),
                ("num_decode_transfer_queue_reqs", "Requests whose pages are on their way.", self._transfer),
            )
            if (role in name)
        }

    @property
    def _queue(self) -> Any:
        return self.scheduler.disagg_prefill_bootstrap_queue or self.scheduler.disagg_decode_prealloc_queue

    def _bootstrapping(self) -> list[Any]:
        return list(self.scheduler.disagg_prefill_bootstrap_queue.queue)

    def _inflight(self) -> list[Any]:
        return list(self.scheduler.disagg_prefill_inflight_queue)

    def _prealloc(self) -> list[Any]:
        return [waiting.req for waiting in list(self.scheduler.disagg_decode_prealloc_queue.queue)]

    def _transfer(self) -> list[Any]:
        return [waiting.req for waiting in list(self.scheduler.disagg_decode_transfer_queue.queue)]

    def _begun(self, handle: int) -> None:
        self.watch.posted(handle)
        self.lives.transferred()

    def _deferred(self) -> int:
        """Pages that decode gives back when prefill has drained, or after 30 s: from 0.5.21 on, by default."""
        waiting = getattr(self.scheduler.disagg_decode_transfer_queue, "_deferred_releases", ())
        return sum(allocated(entry[0].req) for entry in list(waiting))

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start upstream's loop."""
        self._loop = loop
        run = getattr(self.scheduler, f"event_loop_normal_disagg_{self._role}")
        threading.Thread(target=run, name=SCHEDULER, daemon=True).start()

    @contextlib.contextmanager
    def _called(self, prompt: str) -> Iterator[None]:
        """In the logs of both engines a request is called as its client numbers it."""
        recorder, number = recorder_of(self.manager), number_of(prompt)
        if recorder is None:
            yield
            return
        recorder.mine.called = None if number is None else f"r{number}"
        try:
            yield
        finally:
            recorder.mine.called = None

    def _answered(self, req: Any) -> None:
        """The scheduler is through with a request."""
        if not getattr(req, "right", True):
            self._wrong.append(req.rid)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._resolve, req)

    def _resolve(self, req: Any) -> None:
        future = self._futures.get(req.rid)
        if future is not None and not future.done():
            future.set_result(req)

    # --- HTTP -----------------------------------------------------------------------------------------------------

    async def generate(self, http: HttpRequest) -> Response:
        """Have upstream serve a request, and say how it ended."""
        try:
            body = await http.json()
            prompt, room, stream = body_of(body)
            home = (str(body["bootstrap_host"]), int(body["bootstrap_port"]))
            self._settings.chunks_of(prompt)
        except (BadRequest, ValueError, KeyError, TypeError) as error:
            return refusal(400, f"bad request: {error}")
        rid = f"{room}-{self._counts['requests']:06d}"  # an abort is for all ids that begin as it says
        self._counts["requests"] += 1
        future = self._futures[rid] = asyncio.get_running_loop().create_future()
        self.scheduler.submit(rid, prompt, room, *home)
        watch = asyncio.create_task(self._watch(http, rid)) if self._looks else None
        try:
            req = await future
        finally:
            if watch is not None:
                watch.cancel()
            del self._futures[rid]
        return self._reply(req, prompt, stream=stream)

    @property
    def _looks(self) -> bool:
        return self._settings.aborts in (self._role, "both")

    async def _watch(self, http: HttpRequest, rid: str) -> None:
        """Abort a request whose client has hung up, as upstream's front end does."""
        await hang_up(http)
        self._counts["hung up"] += 1
        self.scheduler.abort(rid)

    def _reply(self, req: Any, prompt: str, *, stream: bool) -> Response:
        ended = type(req.finished_reason).__name__
        if ended != "FINISH_LENGTH":
            self._counts["failed"] += 1
            return refusal(500, getattr(req.finished_reason, "message", None) or "aborted")
        information = {"id": req.rid, "prompt_tokens": len(req.origin_input_ids)}
        if self._role == "prefill":
            self._counts["completed"] += 1
            return answer(["transferred"], information, stream=stream)
        self._counts["completed" if req.right else "wrong digest"] += 1
        count = self._settings.chunks_of(prompt) * self._settings.chunk_pages
        digest = kv.digest_of(prompt, count, self._settings.page_bytes) if req.right else "wrong"
        return answer([digest, "is", "the", "digest"], information, stream=stream)

    async def metrics(self, _: HttpRequest) -> Response:
        """The metrics, for Prometheus: the lengths of upstream's own queues."""
        for gauge, requests in self._gauges.values():
            gauge.set(len(requests()))
        return self.gauges.page()

    async def state(self, _: HttpRequest) -> Response:
        """The ledger."""
        table = dict(self.manager.request_status)
        here = set(self.scheduler.open.copy().values())
        left = {name: set(vars(self.manager).get(name, ())) - here for name in _TABLES}
        allocator = self.scheduler.token_to_kv_pool_allocator
        common = {
            "unfit": self.watch.unfit,
            "deaths": self.watch.deaths,
            "ghosts": [str(room) for room in table if room not in here],
            "left": {name: len(rooms) for name, rooms in left.items()},
            "stays": {name: sorted(map(str, rooms))[:_NAMED] for name, rooms in {HELD: here, **left}.items()},
            "pages_out": allocator.size - allocator.available_size() - self._deferred(),
            "open": sorted(map(str, here)),
            "waiting": len(self.scheduler.open),
            "wrong": self._wrong,
            "reused": self.lives.reused,
            "old_chunks": self.lives.old_chunks,
        }
        if self._role == "decode":
            how = ("completed", "wrong digest", "failed")
            return JSONResponse({**common, "ended": {name: self._counts[name] for name in how}})
        changes = self.scheduler.queue_changes()
        inflight = {str(req.bootstrap_room): _name(table.get(req.bootstrap_room)) for req in self._inflight()}
        counts = {"hits": self.watch.counts["hits"], "released_early": self.watch.counts["released early"]}
        return JSONResponse({**common, **counts, "inflight": inflight, "changes": changes})


def _name(status: int | None) -> str:
    return ABSENT if status is None else KVPoll(status).name


def _wait_for_port(port: int) -> None:
    """Until the bootstrap server listens, which it does in a thread of its own that says nothing."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)  # nothing says when it listens
    raise TimeoutError("upstream's bootstrap server does not listen")


def main() -> None:
    """Read the configuration, and serve."""
    configuration = json.loads(sys.stdin.readline())
    output = private_stdout()
    role: EngineRole = configuration["role"]
    settings = Settings(**configuration["settings"])
    os.environ.update(
        GLOG_minloglevel="2", UCX_NET_DEVICES="lo", UCX_WARN_UNUSED_ENV_VARS="n", NIXL_LOG_LEVEL="FATAL",
        SGLANG_HOST_IP="127.0.0.1",
        SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT=f"{settings.bootstrap_timeout:g}",
        SGLANG_DISAGGREGATION_WAITING_TIMEOUT=f"{settings.waiting_timeout:g}",
    )  # fmt: skip
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    end_with_input()
    engine = Engine(role, settings, configuration)
    model = configuration["model"]
    says = {
        "model_path": model, "tokenizer_path": model, "served_model_name": MODEL, "is_generation": True,
        "disaggregation_mode": role, "version": configuration["name"], "pid": os.getpid(),
        "fingerprint": configuration["fingerprint"],
    }  # fmt: skip

    async def info(_: HttpRequest) -> Response:
        return JSONResponse(says)

    async def health(_: HttpRequest) -> Response:
        return Response()

    routes = [
        Route("/generate", engine.generate, methods=["POST"]),
        Route("/health", health),
        Route("/health_generate", health),
        Route("/metrics", engine.metrics),
        Route("/kvlatch", engine.state),
        *(Route(path, info) for path in ("/server_info", "/get_server_info", "/model_info", "/get_model_info")),
    ]
    serve(routes, engine.start, lambda port: print(json.dumps({"port": port}), file=output, flush=True))


if __name__ == "__main__":
    main()
