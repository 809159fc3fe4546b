"""What both engines have in common: their HTTP side, in the manner of an SGLang server, and how a process ends.

An engine is a process that reads its configuration as one line of JSON from its standard input, prints one line of
JSON once it listens, and ends when its standard input does: so it cannot outlive whoever started it.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from kvlatch.reference.live.load import room_of
from kvlatch.reference.live.settings import EngineRole, Rules

MODEL: Final = "kvlatch-random-pages"
_BACKLOG: Final = 4096


class BadRequest(Exception):
    """The body of a request is not one that the engine can serve; the message is for the client."""


class Gauges:
    """The metrics of an engine, under SGLang's names."""

    def __init__(self, role: EngineRole) -> None:
        self._registry = CollectorRegistry()
        self._labels = {"model_name": MODEL, "engine_type": role, "tp_rank": "0", "pp_rank": "0"}

    def gauge(self, name: str, says: str) -> Gauge:
        """A gauge of this engine."""
        return Gauge(f"sglang:{name}", says, list(self._labels), registry=self._registry).labels(**self._labels)

    def counter(self, name: str, says: str) -> Counter:
        """A counter of this engine; its name ends in _total on the page."""
        return Counter(f"sglang:{name}", says, list(self._labels), registry=self._registry).labels(**self._labels)

    def page(self) -> Response:
        """The page that Prometheus reads."""
        return Response(generate_latest(self._registry), media_type=CONTENT_TYPE_LATEST)


def information(role: EngineRole, rules: Rules, model: Path) -> dict[str, Any]:
    """What the engine says of itself, to the router and to whoever compares builds."""
    return {
        "model_path": str(model),
        "tokenizer_path": str(model),
        "served_model_name": MODEL,
        "is_generation": True,
        "disaggregation_mode": role,
        "version": "kvlatch",
        "pid": os.getpid(),
        "fingerprint": rules.fingerprint,
        "design": rules.design.name,
        "atomicity": rules.level,
    }


def body_of(data: object) -> tuple[str, int, bool]:
    """Prompt, room and whether to stream; BadRequest for anything else.

    The room is the router's, unless the client names one in its request id (:func:`.load.room_id`).
    """
    if not isinstance(data, dict):
        raise BadRequest("the body is no JSON object")
    prompt, room = data.get("text"), data.get("bootstrap_room")
    if not isinstance(prompt, str) or not prompt.split():
        raise BadRequest("text has to be a string with at least one word")
    if not isinstance(room, int) or room < 0:
        raise BadRequest("bootstrap_room has to be an unsigned integer: send requests to the router, which adds it")
    named = room_of(data.get("rid"))
    return prompt, room if named is None else named, data.get("stream") is True


def refusal(code: int, why: str) -> Response:
    """An error in the form that SGLang gives it."""
    return JSONResponse({"error": {"message": why, "code": code}}, code)


async def hang_up(request: Request) -> None:
    """Return when the client has hung up; the body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def answer(words: Sequence[str], information: dict[str, Any], *, stream: bool) -> Response:
    """A finished answer: at once, or word by word as server-sent events."""

    def said(count: int, reason: dict[str, str] | None) -> dict[str, Any]:
        return {"text": " ".join(words[:count]), "meta_info": {**information, "finish_reason": reason}}

    stop = {"type": "stop"}
    if not stream:
        return JSONResponse(said(len(words), stop))
    last = len(words)
    events = [f"data: {json.dumps(said(n, stop if n == last else None))}\n\n" for n in range(1, last + 1)]

    async def stream_of() -> Any:
        for event in (*events, "data: [DONE]\n\n"):
            yield event

    return StreamingResponse(stream_of(), media_type="text/event-stream")


def serve(
    routes: Sequence[Route], start: Callable[[asyncio.AbstractEventLoop], None], announce: Callable[[int], None]
) -> None:
    """Serve until the process ends. ``start`` begins the engine's threads; ``announce`` gets the port."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG)

    async def run() -> None:
        start(asyncio.get_running_loop())
        announce(listener.getsockname()[1])
        config = uvicorn.Config(Starlette(routes=list(routes)), log_level="warning", lifespan="off", backlog=_BACKLOG)
        await uvicorn.Server(config).serve(sockets=[listener])

    asyncio.run(run())


def end_with_input() -> None:
    """End this process when its standard input ends, or when a thread dies: half an engine is worse than none."""

    def watch() -> None:
        while os.read(0, 1):  # not sys.stdin, whose lock would block the interpreter at its end
            pass
        os._exit(0)

    def died(arguments: threading.ExceptHookArgs) -> None:
        traceback.print_exception(arguments.exc_type, arguments.exc_value, arguments.exc_traceback)
        sys.stderr.flush()
        os._exit(70)

    threading.excepthook = died
    threading.Thread(target=watch, name="lifeline", daemon=True).start()
