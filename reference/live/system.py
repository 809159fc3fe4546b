"""A whole system on this machine: prefill, decode and the router in front of them, started and stopped together.

Everything listens on 127.0.0.1 alone, on ports that were free.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Literal, Self

import attrs
import httpx

from kvlatch.reference.live.settings import EngineRole, Rules, Settings
from kvlatch.reference.live.upstream.subject import Published

_START_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 5.0
_WAIT: Final = 0.05

Subject = Rules | Published
"""What an engine runs: a status manager of ours that follows rules, or published code."""
Part = Literal["prefill", "decode", "router", "prefill rank 1", "decode rank 1"]
"""Of two ranks, the first is called as the engine is."""
_LOG: Final = "prefill.ndjson"
_SECOND: Final[dict[EngineRole, Part]] = {"prefill": "prefill rank 1", "decode": "decode rank 1"}
TOKENIZER: Final = {
    "version": "1.0",
    "model": {"type": "WordLevel", "vocab": {"unknown": 0}, "unk_token": "unknown"},
    "pre_tokenizer": {"type": "Whitespace"},
}
"""The router loads the tokenizer of a model, and asks a model hub if there is none: every word is one token."""


class CannotStart(Exception):
    """The system does not start; the message says which part, and where its output is."""


class CannotLoad(CannotStart):
    """Published code does not start in an engine of ours: it asks for what is not there."""


@attrs.define(eq=False)
class Process:
    """A running part."""

    name: Part
    popen: subprocess.Popen[str]
    output: Path
    port: int = 0

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"


class System:
    """Start it with ``with``. ``folder`` gets the output of every part, and event logs."""

    def __init__(self, subject: Subject, settings: Settings, folder: Path) -> None:
        self._subject = subject
        self._settings = settings
        self._folder = folder
        self._parts: dict[Part, Process] = {}
        self._ports: list[int] = []
        self._bootstrap_port = 0

    @property
    def log(self) -> Path:
        """The event log of prefill's first rank."""
        return self.logs[0]

    @property
    def logs(self) -> tuple[Path, ...]:
        """The event logs of prefill's ranks: the recorder's, with the number of their process, or our own engine's."""
        return tuple(sorted(self._folder.glob("prefill-*.ndjson"))) or (self._folder / _LOG,)

    def _ranks(self, role: EngineRole) -> tuple[Part, ...]:
        return (role, _SECOND[role])[: self._settings.ranks]

    @property
    def others(self) -> tuple[Part, ...]:
        """The second ranks."""
        return (*self._ranks("prefill")[1:], *self._ranks("decode")[1:])

    def url(self, part: Part) -> str:
        """Where a part listens."""
        return self._parts[part].url

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start every part, and wait until requests are served; CannotStart, and nothing runs, if that fails."""
        self._folder.mkdir(parents=True, exist_ok=True)
        raise_descriptor_limit()
        try:
            self._start_engines()
            self._start_router()
        except BaseException:
            self.stop()
            raise

    def _start_engines(self) -> None:
        model = self._folder / "model"
        model.mkdir(exist_ok=True)
        (model / "tokenizer.json").write_text(json.dumps(TOKENIZER), "utf-8")
        roles: tuple[EngineRole, ...] = ("prefill", "decode")
        with _free_ports(1) as (self._bootstrap_port,):
            pass
        parts: list[Part] = []
        for role in roles:
            for (rank, part), link in zip(enumerate(self._ranks(role)), _linked(self._settings.ranks), strict=True):
                configuration = {
                    "role": role,
                    "rank": rank,
                    "links": [link.fileno()] if link else [],
                    **self._subject.configuration(),
                    "bootstrap_port": self._bootstrap_port,
                    "settings": attrs.asdict(self._settings),
                    "log": str((self._folder / _LOG).resolve()),
                    "model": str(model.resolve()),
                }
                process = self._spawn(part, [self._subject.module], subprocess.PIPE, configuration["links"])
                if link:
                    link.close()  # the process has it
                _stream(process.popen.stdin).write(json.dumps(configuration) + "\n")
                _stream(process.popen.stdin).flush()
                parts.append(part)
        for part in parts:
            process = self._parts[part]
            line = _stream(process.popen.stdout).readline()  # empty if the process has ended
            if not line:
                raise self._failure(part)
            process.port = int(json.loads(line)["port"])
            self._ports.append(process.port)

    def _start_router(self) -> None:
        with _free_ports(2) as (port, metrics):
            pass
        prefill, decode = self._parts["prefill"], self._parts["decode"]
        bootstrap = self._bootstrap_port if isinstance(self._subject, Published) else prefill.port
        local = {"host": "127.0.0.1", "prometheus-host": "127.0.0.1"}
        options = {**local, "port": port, "prometheus-port": metrics, "policy": "round_robin", "log-level": "warn"}
        arguments = ["--pd-disaggregation", "--prefill", prefill.url, str(bootstrap), "--decode", decode.url]
        arguments += [word for name, value in options.items() for word in (f"--{name}", str(value))]
        # A request is tried once, so that what the client sees is what the engines did.
        arguments += ["--disable-retries", "--disable-circuit-breaker"]
        router = self._spawn("router", ["kvlatch.reference.live.router", *arguments], subprocess.DEVNULL)
        router.port = port
        self._ports += [port, metrics]
        deadline = time.monotonic() + _START_SECONDS
        with httpx.Client(trust_env=False, timeout=2.0) as client:
            while not _ready(client, router.url):
                if router.popen.poll() is not None or time.monotonic() > deadline:
                    raise self._failure("router")
                time.sleep(_WAIT)  # the router does not say when it knows its workers

    def _spawn(self, name: Part, module: list[str], stdout: int, files: Sequence[int] = ()) -> Process:
        output = self._folder / f"{name.replace(' ', '-')}.log"
        with output.open("w", encoding="utf-8") as errors:
            popen = subprocess.Popen(
                [sys.executable, "-m", *module],
                stdin=subprocess.PIPE,
                stdout=stdout,
                stderr=errors,
                text=True,
                env={**os.environ, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"},
                pass_fds=files,
                start_new_session=True,  # a Ctrl-C is for the storm, which then stops them in order
            )
        self._parts[name] = Process(name, popen, output)
        return self._parts[name]

    def _failure(self, name: Part) -> CannotStart:
        output = self._parts[name].output
        last = (output.read_text("utf-8", "replace").strip().splitlines() or ["it said nothing"])[-1]
        if isinstance(self._subject, Published) and name != "router":
            return CannotLoad(f"{self._subject.name} cannot be run here: {name}: {last} (all of it is in {output})")
        return CannotStart(f"the {name} does not start: {last} (all of it is in {output})")

    def kill(self, part: Part) -> None:
        """End a part, with all its ranks, as ``kill -9`` does; when this returns, it has ended."""
        for name, process in self._parts.items():
            if name == part or name.startswith(f"{part} rank"):
                process.popen.kill()
                process.popen.wait()

    def alive(self, part: Part) -> bool:
        """Whether a part still runs."""
        return self._parts[part].popen.poll() is None

    def stop(self) -> None:
        """End every part: its input ends, and if it does not end with it, it is killed."""
        for process in self._parts.values():
            with contextlib.suppress(BrokenPipeError):
                _stream(process.popen.stdin).close()
        for process in self._parts.values():
            try:
                process.popen.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.popen.kill()
                process.popen.wait()
            if process.popen.stdout is not None:
                process.popen.stdout.close()

    def left_behind(self) -> tuple[str, ...]:
        """What is still there of a system that was stopped: processes that run, ports that listen."""
        running = [f"process {p.popen.pid} ({p.name})" for p in self._parts.values() if p.popen.poll() is None]
        return (*running, *(f"port {port}" for port in self._ports if _listens(port)))


def _linked(ranks: int) -> Sequence[socket.socket | None]:
    """A connection between two ranks, an end for each; None for one rank."""
    return socket.socketpair() if ranks > 1 else [None]


def raise_descriptor_limit() -> None:
    """Allow as many open files as the system permits: every client is a connection, here and in each part."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _stream(stream: IO[str] | None) -> IO[str]:
    if stream is None:
        raise TypeError("the process was started without this pipe")
    return stream


def _ready(client: httpx.Client, router: str) -> bool:
    """The router answers, and knows both of its workers."""
    try:
        reply: Any = client.get(f"{router}/workers").json()
    except (httpx.HTTPError, ValueError):
        return False
    workers = reply.get("workers", []) if isinstance(reply, dict) else []
    return [worker.get("is_healthy") for worker in workers] == [True, True]  # prefill and decode


@contextlib.contextmanager
def _free_ports(count: int) -> Iterator[list[int]]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        yield [listener.getsockname()[1] for listener in sockets]


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
