"""The child process that runs the status code of an sglang wheel: JSON in, JSON out.

`kvlatch.reference.sglang` starts this file by its path. It needs the standard library only, so
that the foreign code meets nothing of kvlatch. Of the wheel, `sglang.srt.environ` and
`sglang.srt.disaggregation` are really loaded; every other module outside the standard library,
NumPy excepted, is answered by stand-ins: no GPU, no torch, no network.

The managers and senders are upstream's own classes, and so is the loop of the bootstrap thread.
Only the manager's constructor is not called, because it binds sockets and starts threads: its
plain attributes are set here instead, for a prefill of one rank.
"""

from __future__ import annotations

import abc
import dataclasses
import importlib
import inspect
import json
import logging
import os
import queue
import sys
import threading
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import CodeType, ModuleType, SimpleNamespace
from typing import Any, TextIO

ROOM = 7
ABSENT = "Absent"
LONG_AGO = 0.0


class Fault(Exception):
    """The script could not be carried out; the message says why."""


@dataclasses.dataclass(frozen=True)
class Ended:
    """An op has ended: what a poll returned, or what the real code raised."""

    value: str | None = None
    error: str | None = None


# --- Loading the wheel ----------------------------------------------------------------------------


class StubType(abc.ABCMeta):
    """The type of the stand-ins: false classes that come to nothing when called or subscripted.

    As a decorator, a stand-in gives back what it decorates. The type derives from `ABCMeta`, so
    that a foreign class may have a stand-in and an ABC as its bases.
    """

    def __getattr__(cls, name: str) -> Any:
        return stub(name)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if "is_stub" not in vars(cls):  # a foreign class, derived from a stand-in
            return super().__call__(*args, **kwargs)
        decorates = len(args) == 1 and not kwargs and callable(args[0])
        return args[0] if decorates else cls

    def __bool__(cls) -> bool:
        return False

    def __getitem__(cls, item: Any) -> Any:
        return cls

    def __gt__(cls, other: Any) -> bool:
        return False


def stub(name: str) -> StubType:
    """A new stand-in.

    Raises AttributeError for a special name: a stand-in must not pretend to follow protocols.
    """
    if name.startswith("__"):
        raise AttributeError(name)
    return StubType(name, (), {"is_stub": True})


class StubModule(ModuleType):
    """A module in which every name is a stand-in."""

    def __getattr__(self, name: str) -> Any:
        value = stub(name)
        setattr(self, name, value)
        return value


class Struct:
    """Stands in for `msgspec.Struct`, whose subclasses are constructed from their fields."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__()
        dataclasses.dataclass(cls)


class WheelFinder:
    """Finds the status code in the wheel and answers other third-party imports by stand-ins."""

    # Left empty: sglang's own __init__ would import the whole engine, the others have none.
    PACKAGES = ("sglang", "sglang.srt", "sglang.srt.disaggregation")

    def __init__(self, wheel: str) -> None:
        self.wheel = wheel

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        top = name.partition(".")[0]
        if top in sys.stdlib_module_names or top == "numpy":
            return None
        if name in self.PACKAGES:
            spec = ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = [str(Path(self.wheel, *name.split(".")))]
            return spec
        if name == "sglang.srt.environ" or name.startswith("sglang.srt.disaggregation."):
            return PathFinder.find_spec(name, path)
        return ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]  # a finder may be its own loader

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return StubModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ == "msgspec":
            vars(module)["Struct"] = Struct


class Upstream:
    """What one backend of the wheel defines."""

    def __init__(self, wheel: str, backend: str) -> None:
        sys.meta_path.insert(0, WheelFinder(wheel))
        logger: Any = logging.Logger
        logger.warning_once = logger.warning  # which the engine adds when it starts

        package = "sglang.srt.disaggregation"
        self.conn: Any = importlib.import_module(f"{package}.{backend}.conn")
        base: Any = importlib.import_module(f"{package}.base.conn")
        utils: Any = importlib.import_module(f"{package}.utils")

        self.backend = backend
        prefix = backend.capitalize()
        self.manager: Any = getattr(self.conn, f"{prefix}KVManager")
        self.sender: Any = concrete(getattr(self.conn, f"{prefix}KVSender"))
        self.prefill = utils.DisaggregationMode.PREFILL
        self.values = {n: v for n, v in vars(base.KVPoll).items() if not n.startswith("_")}
        self.names = {value: name for name, value in self.values.items()}


def concrete(cls: type) -> type:
    """A subclass that can be instantiated although some methods are still abstract.

    The common sender is abstract in most versions: its poll then does nothing and returns None.
    """
    subclass = type(cls)(cls.__name__, (cls,), {})
    subclass.__abstractmethods__ = frozenset()  # type: ignore[attr-defined]  # what ABCMeta sets
    return subclass


# --- One room of a real manager -------------------------------------------------------------------


class Table(dict[int, Any]):
    """The manager's `request_status`: before each store, the thread may have to wait."""

    def __setitem__(self, room: int, status: Any) -> None:
        pause()
        super().__setitem__(room, status)

    def __delitem__(self, room: int) -> None:
        pause()
        super().__delitem__(room)

    def pop(self, room: int, *default: Any) -> Any:
        pause()
        return super().pop(room, *default)


class Drained(BaseException):
    """No message is left. Not an `Exception`, which upstream's loop might catch."""


class Socket:
    """The end of the wire from which the bootstrap thread reads what decode sends."""

    def __init__(self) -> None:
        self.messages: list[list[bytes]] = []

    def recv_multipart(self) -> list[bytes]:
        if not self.messages:
            raise Drained
        return self.messages.pop()


class Room:
    """A fresh manager and, once created, the sender of its one room."""

    def __init__(self, upstream: Upstream) -> None:
        self.upstream = upstream
        self.created: Any = None
        self.socket = Socket()
        self.manager: Any = object.__new__(upstream.manager)
        vars(self.manager).update(
            request_status=Table(),
            transfer_infos={},
            req_to_decode_prefix_len={},
            decode_kv_args_table={},
            failure_records={},
            failure_lock=threading.Lock(),
            exceptions={},
            server_socket=self.socket,
            server_args=SimpleNamespace(dp_size=1, enable_pd_role_switch=False),
            disaggregation_mode=upstream.prefill,
            is_dummy_cp_rank=False,
            is_mla_backend=False,
            attn_dp_rank=0,
            bootstrap_timeout=300.0,
            enable_staging=False,
            enable_trace=False,
            # It moves acknowledgements between the engines, never a status.
            enable_deferred_decode_kv_release=False,
            _staging_ctx=None,
            _staging_outstanding=defaultdict(int),
            _deferred_ack_targets={},
            _deferred_ack_poisoned_rooms=set(),
            _stopped=False,
            _worker_threads=[],
        )

    @property
    def status(self) -> str:
        table = self.manager.request_status
        return self.upstream.names[table[ROOM]] if ROOM in table else ABSENT

    @property
    def has_infos(self) -> bool:
        return ROOM in self.manager.transfer_infos

    def perform(self, op: str, status: str | None) -> str | None:
        """Does one op in the current thread; returns what a poll returned.

        Raises whatever the real code raises, or a Fault.
        """
        match op:
            case "create":
                self.created = self.new_sender()
            case "write":
                self.manager.update_status(ROOM, self.upstream.values[status])
            case "register":
                self.register()
            case "abort_notice":
                self.abort_notice()
            case "abort":
                self.sender.abort()
            case "poll":
                return self.poll()
            case "pop_infos":
                self.manager.transfer_infos.pop(ROOM, None)
            case "clear":
                if hasattr(self.sender, "clear"):  # the scheduler asks, too: some have none
                    self.sender.clear()
            case "timeout":
                self.sender.init_time = LONG_AGO
                return self.poll()
            case _:
                raise Fault(f"unknown op {op!r}")
        return None

    def judge(self, error: Exception) -> Ended | Fault:
        """Upstream's error is an observation, except where we gave the manager too little."""
        if isinstance(error, AttributeError) and error.obj is self.manager:
            return Fault(f"the manager was made without {error.name}")
        return Ended(error=f"{type(error).__name__}: {error}")

    @property
    def sender(self) -> Any:
        """The sender created last."""
        if self.created is None:
            raise Fault("there is no sender: no constructor has come to its end")
        return self.created

    def new_sender(self) -> Any:
        arguments = {
            "mgr": self.manager,
            "bootstrap_addr": "",
            "bootstrap_room": ROOM,
            "dest_tp_ranks": [0],
            "pp_rank": 0,
        }
        accepted = inspect.signature(self.upstream.sender).parameters
        return self.upstream.sender(**{n: v for n, v in arguments.items() if n in accepted})

    def poll(self) -> str | None:
        result = self.sender.poll()
        if result is not None and result not in self.upstream.names:
            raise Fault(f"a poll returned {result!r}")
        return self.upstream.names.get(result)

    def register(self) -> None:
        """The first of two decode ranks sends its metadata, so no status is written yet."""
        peer = [str(ROOM).encode(), b"127.0.0.1", b"1", b"peer:1"]
        kv_indices, aux_index, required = b"\0\0\0\0", b"0", b"2"
        match self.upstream.backend:
            case "nixl":
                self.receive([self.upstream.conn.GUARD, *peer, kv_indices, aux_index, required])
            case "mooncake":
                self.receive([*peer, kv_indices, aux_index, b"", required])
            case _:  # no thread of its own: do what the threads of the others do
                self.manager.transfer_infos.setdefault(ROOM, {})["peer:1"] = SimpleNamespace()

    def abort_notice(self) -> None:
        """Decode sends ABORT. Where no thread expects it, do what the others' threads do."""
        start = self.start_bootstrap
        if start is not None and handles_abort(self.manager, start):
            self.receive([b"ABORT", str(ROOM).encode(), b"127.0.0.1", b"1"])
            return
        status = self.manager.request_status.get(ROOM)
        if status is not None and status != self.upstream.values["Success"]:
            self.manager.record_failure(ROOM, "aborted by decode")
            self.manager.update_status(ROOM, self.upstream.values["Failed"])

    @property
    def start_bootstrap(self) -> Any:
        """The method that starts the backend's bootstrap thread; None if it has no such thread."""
        names = ("_start_bootstrap_thread", "start_prefill_thread")
        return next((getattr(self.manager, n) for n in names if hasattr(self.manager, n)), None)

    def receive(self, frames: list[bytes]) -> None:
        """Runs the real loop of the bootstrap thread, in this thread, over one message."""
        loops: list[Callable[[], None]] = []

        def thread(target: Callable[[], None], **_: Any) -> SimpleNamespace:
            loops.append(target)
            return SimpleNamespace(start=lambda: None)

        self.upstream.conn.threading = SimpleNamespace(Thread=thread)
        try:
            self.start_bootstrap()
        finally:
            self.upstream.conn.threading = threading
        self.socket.messages.append(frames)
        try:
            loops[0]()
        except Drained:
            return


def handles_abort(manager: Any, start: Any) -> bool:
    return hasattr(manager, "_handle_abort_notification") or "ABORT" in constants(start.__code__)


def constants(code: CodeType) -> Iterator[Any]:
    """The constants of a function and of the functions defined in it."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from constants(constant)
        else:
            yield constant


# --- Playing a script -----------------------------------------------------------------------------


class Held:
    """An op waits before a store."""


class Actor(threading.Thread):
    """A thread of the script: does one op at a time and reports that it is held or has ended."""

    def __init__(self, name: str, room: Room, patience: float) -> None:
        super().__init__(name=name, daemon=True)
        self.room = room
        self.patience = patience
        self.ops: queue.SimpleQueue[tuple[str, str | None] | None] = queue.SimpleQueue()
        self.reports: queue.SimpleQueue[Held | Ended | Fault] = queue.SimpleQueue()
        self.permits = threading.Semaphore(0)
        self.armed = False
        self.held = False

    def run(self) -> None:
        while (op := self.ops.get()) is not None:
            report: Ended | Fault
            try:
                report = Ended(value=self.room.perform(*op))
            except Fault as fault:
                report = fault
            except Exception as error:  # noqa: BLE001 - whatever it is, it is what is observed
                report = self.room.judge(error)
            self.armed = False
            self.reports.put(report)

    def pause(self) -> None:
        """Called in this thread before a store."""
        if self.armed:
            self.armed = False
            self.reports.put(Held())
            self.permits.acquire()

    # What follows is for the player's thread, and only while this one rests or is held.

    def take(self, op: str, status: str | None, part: str) -> Ended:
        """Does a step, or as much of it as the part says."""
        if part == "finish":
            return self.finish(op)
        self.armed = part == "begin"
        self.ops.put((op, status))
        return self.wait(op)

    def finish(self, op: str) -> Ended:
        """Lets a held op go on; nothing if none is held."""
        if not self.held:
            return Ended()
        self.permits.release()
        return self.wait(op)

    def wait(self, op: str) -> Ended:
        """What the op came to, which is nothing yet if it is held."""
        try:
            report = self.reports.get(timeout=self.patience)
        except queue.Empty:
            raise Fault(f"{self.name}: {op} came to no end in {self.patience:g} s") from None
        if isinstance(report, Fault):
            raise report
        self.held = isinstance(report, Held)
        return Ended() if isinstance(report, Held) else report


def pause() -> None:
    thread = threading.current_thread()
    if isinstance(thread, Actor):
        thread.pause()


def play(upstream: Upstream, script: list[dict[str, Any]], patience: float) -> list[dict[str, Any]]:
    """Plays a script on a fresh manager; returns one observation a step."""
    room = Room(upstream)
    actors: dict[str, Actor] = {}
    observations = []
    for step in script:
        name, op, part = step["thread"], step["op"], step["part"]
        if name not in actors:
            actors[name] = Actor(name, room, patience)
            actors[name].start()
        actor = actors[name]
        ended = actor.take(op, step["status"], part)
        observations.append(
            {
                "status": room.status,
                "infos": room.has_infos,
                "value": ended.value,
                "held": actor.held,
                "error": ended.error,
            }
        )
    for actor in actors.values():
        actor.finish("the last op")
        actor.ops.put(None)
    return observations


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Plays each script as often as asked; a failure of any kind becomes a `fault`."""
    try:
        upstream = Upstream(request["wheel"], request["backend"])
        repetitions = range(request["repeat"])
        return {
            "runs": [
                [play(upstream, script, request["patience"]) for _ in repetitions] for script in request["scripts"]
            ]
        }
    except Fault as fault:
        return {"fault": str(fault)}
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the parent has to be told
        traceback.print_exc()
        return {"fault": f"{type(error).__name__}: {error}"}


def private_stdout() -> TextIO:
    """The real standard output; from now on, what anybody prints goes to standard error."""
    private = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return private


if __name__ == "__main__":
    with private_stdout() as output:
        json.dump(answer(json.load(sys.stdin)), output)
