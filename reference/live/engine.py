"""``python -m kvlatch.reference.live.engine``: one engine, prefill or decode, as a process; see ``server.py``."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from kvlatch.reference.live.decode import Decode
from kvlatch.reference.live.journal import LOGGED, Journal
from kvlatch.reference.live.prefill import Prefill
from kvlatch.reference.live.server import end_with_input, information, serve
from kvlatch.reference.live.settings import Rules, Settings
from kvlatch.reference.logs.write import LogWriter


def main() -> None:
    """Read the configuration, and serve."""
    configuration = json.loads(sys.stdin.readline())
    role, rules = configuration["role"], Rules.from_json(configuration["rules"])
    settings = Settings(**configuration["settings"])
    end_with_input()
    says = information(role, rules, Path(configuration["model"]))
    engine: Prefill | Decode
    if role == "prefill":
        start = time.monotonic()
        path = Path(configuration["log"])
        path.unlink(missing_ok=True)
        log = LogWriter(path, LOGGED, clock=lambda: time.monotonic() - start)
        engine = Prefill(rules, settings, Journal(log))
    else:
        engine = Decode(rules, settings)

    async def info(_: Request) -> Response:
        return JSONResponse(says)

    async def health(_: Request) -> Response:
        return Response()

    routes = [
        Route("/generate", engine.generate, methods=["POST"]),
        Route("/health", health),
        Route("/health_generate", health),
        Route("/metrics", engine.metrics),
        Route("/kvlatch", engine.state),
        *(Route(path, info) for path in ("/server_info", "/get_server_info", "/model_info", "/get_model_info")),
    ]
    if isinstance(engine, Prefill):
        routes.append(Route("/bootstrap", engine.bootstrap, methods=["POST"]))
    serve(routes, engine.start, lambda port: print(json.dumps({"port": port}), flush=True))


if __name__ == "__main__":
    main()
