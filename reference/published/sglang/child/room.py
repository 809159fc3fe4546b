"""One room of a real manager, with all that acts on it: sender, bootstrap thread, worker, scheduler, decode.

The managers, senders and receivers are upstream's own classes, and so are the loops of the bootstrap thread, of the
transfer worker and of the scheduler. Only the manager's constructor is not called, because it binds sockets, registers
memory and starts threads: `parts` has its plain attributes, for an engine of one rank.
"""

from __future__ import annotations

import functools
import importlib
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from types import CodeType, MethodType, SimpleNamespace
from typing import Any, Final

from kvlatch.reference.published.sglang.child.parts import (
    PEER,
    ROOM,
    Chunks,
    Drained,
    Socket,
    Table,
    Wire,
    attributes,
    transferred,
)
from kvlatch.reference.published.sglang.child.threads import Ended, Fault, Incomplete
from kvlatch.reference.published.sglang.child.upstream import Upstream
from kvlatch.reference.published.stand_ins import Nothing

ABSENT: Final = "Absent"
LONG_AGO: Final = 0.0
PREFILL: Final = "prefill:1"
"""Where decode reaches the prefill engine."""
PAGES: Final = 64
"""Pages that decode has for the request; a chunk is one page."""


class Missing(Exception):
    """This backend has no such code; the message says what there is instead."""


class Room:
    """A fresh manager and the senders of its one room."""

    def __init__(self, upstream: Upstream) -> None:
        self.upstream = upstream
        self.table = Table()
        self.socket = Socket()
        self.wire = Wire()
        self.chunks = Chunks(upstream.new_queue())
        self.senders: dict[str, Any] = {}
        self.inflight: list[Any] = []
        self.manager = self.new_manager()

    # --- What is observed

    @property
    def status(self) -> str:
        return self.name(dict.get(self.table, ROOM))

    def name(self, status: int | None) -> str:
        return ABSENT if status is None else self.upstream.names[status]

    def observe(self) -> dict[str, Any]:
        return {
            "status": self.status,
            "infos": ROOM in self.manager.transfer_infos,
            "told": self.told(),
            "inflight": len(self.inflight),
            "stores": self.table.stores,
            "others": self.table.others,
        }

    def told(self) -> list[str]:
        """The terminal statuses that have been sent to decode: the frame after the room's."""
        room = str(ROOM).encode()
        about = [f for f in self.wire.sent if room in f[:-1] and not f[0].startswith(b"ABORT")]
        return [self.name(int(frames[frames.index(room) + 1])) for frames in about]

    # --- What can be done

    def perform(self, op: str, status: str | None) -> Ended:
        """Does one op in the current thread. Raises Fault."""
        try:
            return Ended(value=self.act(op, status))
        except Fault:
            raise
        except Missing as reason:
            return Ended(missing=str(reason))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what is observed
            return Ended(error=f"{type(error).__name__}: {error}")

    def act(self, op: str, status: str | None) -> str | None:
        """Does one op; returns what a poll returned. Raises whatever the real code raises."""
        method = getattr(self, f"do_{op}", None)
        if method is None:
            raise Fault(f"unknown op {op!r}")
        value: str | None = method() if status is None else method(self.upstream.values[status])
        return value

    # The ops, in the order of `sglang.Op`.

    def do_create(self) -> None:
        self.senders[threading.current_thread().name] = self.new_sender()

    def do_write(self, status: int) -> None:
        self.manager.update_status(ROOM, status)

    def do_put(self, status: int) -> None:
        dict.__setitem__(self.table, ROOM, status)

    def do_register(self) -> None:
        self.send_metadata(required=2)

    def do_metadata(self) -> None:
        self.send_metadata(required=1)

    def do_abort_notice(self) -> None:
        """Decode sends ABORT. Where no thread expects it, do what the others' threads do."""
        start = self.start_bootstrap
        if start is not None and handles_abort(self.upstream.manager, start):
            self.hear([b"ABORT", str(ROOM).encode(), b"127.0.0.1", b"1"])
            return
        status = self.table.get(ROOM)
        if status is not None and status != self.upstream.values["Success"]:
            if hasattr(self.upstream.manager, "record_failure"):
                self.manager.record_failure(ROOM, "aborted by decode")
            self.manager.update_status(ROOM, self.upstream.values["Failed"])

    def do_abort(self) -> None:
        self.method("abort")()

    def do_poll(self) -> str:
        return self.name(self.poll())

    def do_reduce(self, other: int) -> str:
        """A poll, reduced by the real function over two ranks, of which the other one has polled `other`."""
        ranks = self.upstream.ranks
        ranks.others = [other]
        try:
            [status] = self.upstream.utils.poll_and_all_reduce([SimpleNamespace(poll=self.poll)], None)
        finally:
            ranks.others = []
        return self.name(status)

    def do_pop_infos(self) -> None:
        self.manager.transfer_infos.pop(ROOM, None)

    def do_clear(self) -> None:
        self.method("clear")()

    def do_timeout(self) -> str:
        self.sender.init_time = LONG_AGO
        return self.do_poll()

    def do_send(self) -> None:
        self.send(last=False)

    def do_send_last(self) -> None:
        self.send(last=True)

    def do_work(self) -> None:
        """Runs the real loop of a transfer worker, in this thread, until its queue is empty."""
        worker = self.upstream.worker
        if worker is not None:
            loop = getattr(self.manager, worker)
            extra = {"executor": None} if "executor" in parameters(loop) else {}
            drain(lambda: loop(self.chunks, **extra))
        elif self.start_bootstrap is not None and len(loops := self.loops()) > 1:
            drain(loops[1])  # 0.4.6: the worker is a function in the method that starts it
        else:
            raise Missing("there is no transfer worker: whoever sends a chunk posts its transfer")

    def do_conclude(self, status: int) -> None:
        if not hasattr(self.upstream.manager, "conclude_transfer"):
            raise Missing("there is no conclude_transfer")
        self.manager.conclude_transfer(bootstrap_room=ROOM, status=status)

    def do_settle(self) -> None:
        """One round of the real loop over the inflight queue."""
        scheduler = scheduler_class(self.upstream)()
        scheduler.disagg_prefill_inflight_queue = self.inflight
        if self.inflight:
            scheduler.process_disagg_prefill_inflight_queue()
        self.inflight = scheduler.disagg_prefill_inflight_queue

    def do_receive(self) -> None:
        """From now on the manager is decode's; it writes what a receiver's constructor and init write."""
        self.manager.disaggregation_mode = self.upstream.utils.DisaggregationMode.DECODE
        self.manager.addr_to_rooms_tracker[PREFILL].add(ROOM)
        self.manager.update_status(ROOM, self.upstream.values["Bootstrapping"])
        self.manager.update_status(ROOM, self.upstream.values["WaitingForInput"])

    def do_lose_prefill(self) -> None:
        """The heartbeat thread has missed its prefill engine too often."""
        if not hasattr(self.upstream.manager, "_handle_node_failure"):
            raise Missing("there is no heartbeat thread")
        self.manager._handle_node_failure(PREFILL)

    # --- Manager and sender

    def new_manager(self) -> Any:
        manager: Any = object.__new__(manager_class(self.upstream))
        vars(manager).update(attributes(self.upstream, self.table, self.socket, self.wire, self.chunks))
        return manager

    @property
    def sender(self) -> Any:
        """The sender that this thread created last, or else any thread."""
        if not self.senders:
            raise Fault("there is no sender: no constructor has come to its end")
        return self.senders.get(threading.current_thread().name, list(self.senders.values())[-1])

    def new_sender(self) -> Any:
        arguments = {
            "mgr": self.manager,
            "bootstrap_addr": "",
            "bootstrap_room": ROOM,
            "dest_tp_ranks": [0],
            "pp_rank": 0,
        }
        accepted = self.upstream.sender_accepts
        return self.upstream.sender(**{n: v for n, v in arguments.items() if n in accepted})

    def method(self, name: str) -> Any:
        """A method of the sender. Raises Missing if its class has none, or an abstract one."""
        method = getattr(type(self.sender), name, None)
        if method is None or getattr(method, "__isabstractmethod__", False):
            raise Missing(f"the sender has no {name}")
        return MethodType(method, self.sender)

    def poll(self) -> int:
        result = self.method("poll")()
        if result is None:
            raise Missing("the sender's poll does nothing")
        if result not in self.upstream.names:
            raise Fault(f"a poll returned {result!r}")
        return int(result)

    # --- Bootstrap thread

    def send_metadata(self, required: int) -> None:
        """A decode rank, one of so many that are required, sends its metadata: the frames of the real receiver."""
        if self.start_bootstrap is None or self.upstream.receiver is None:
            # No thread of its own: do what the threads of the others do.
            self.manager.transfer_infos.setdefault(ROOM, {})[PEER] = SimpleNamespace()
            if required == 1:
                self.manager.update_status(ROOM, self.upstream.values["WaitingForInput"])
            return
        wire = Wire()
        receiver = object.__new__(concrete_receiver(self.upstream.receiver, wire))
        receiver.kv_mgr = self.manager
        receiver.bootstrap_room = ROOM
        receiver.bootstrap_info = {"is_dummy": False, "rank_ip": "127.0.0.1", "rank_port": 1}
        receiver.bootstrap_infos = [receiver.bootstrap_info]
        receiver.required_dst_info_num = required
        receiver.session_id = PEER
        receiver.prefill_server_url = PREFILL
        numpy = importlib.import_module("numpy")
        send = getattr(receiver, "send_metadata", receiver.init)
        send(numpy.zeros(PAGES, dtype=numpy.int32), 0)
        [frames] = wire.sent
        self.hear(frames)

    @property
    def start_bootstrap(self) -> Any:
        """The method that starts the backend's bootstrap thread; None if it has no such thread."""
        names = ("_start_bootstrap_thread", "start_prefill_thread")
        return next((getattr(self.manager, n) for n in names if hasattr(self.upstream.manager, n)), None)

    def hear(self, frames: list[bytes]) -> None:
        """Runs the real loop of the bootstrap thread, in this thread, over one message."""
        self.socket.messages.append(frames)
        drain(self.loops()[0])

    def loops(self) -> list[Callable[[], None]]:
        """The loops of the threads that the backend starts on the prefill side."""
        threads = self.upstream.threads
        threads.kept.clear()
        self.start_bootstrap()
        return [*threads.kept]

    # --- Transfers

    def send(self, *, last: bool) -> None:
        """The scheduler hands over a chunk of one page; with the last one the request enters the inflight queue."""
        if not hasattr(self.upstream.manager, "add_transfer_request"):
            raise Missing("the manager transfers nothing")
        sender = self.sender
        numpy = importlib.import_module("numpy")
        page = numpy.zeros(1, dtype=numpy.int32)
        if "is_last" in parameters(sender.send):  # 0.4.6: the scheduler says which pages these are
            sender.aux_index = 0
            sender.send(page, slice(0, 1), last)
        else:
            done = sender.curr_idx
            sender.init(done + 1 if last else PAGES, 0)
            sender.send(page)
        if last:
            self.inflight.append(SimpleRequest(sender))


@functools.cache
def manager_class(upstream: Upstream) -> Any:
    """Upstream's manager, but that it moves no data, and that a missing attribute does not lead it astray."""

    class Manager(upstream.manager):  # type: ignore[misc, name-defined]  # a class of the wheel
        def __getattr__(self, name: str) -> Any:
            raise Incomplete(f"found that the manager was made without {name}")

    for name in dir(upstream.manager):
        if name.startswith(("send_kvcache", "send_aux", "send_state")):
            setattr(Manager, name, lambda *_, **__: transferred(upstream.backend))
    return Manager


@functools.cache
def scheduler_class(upstream: Upstream) -> Any:
    """The scheduler's part of a prefill engine, of which all other parts are nothing."""

    class Scheduler(upstream.prefill()):  # type: ignore[misc]  # a class of the wheel
        def __getattr__(self, name: str) -> Any:
            return Nothing()

    return Scheduler


class SimpleRequest(Nothing):
    """A request in the inflight queue: its sender, and nothing else of interest."""

    metadata_buffer_index = -1  # it holds no buffer

    def __init__(self, sender: Any) -> None:
        self.disagg_kv_sender = sender


def concrete_receiver(cls: Any, wire: Wire) -> Any:
    """A receiver class whose connections end in `wire`."""

    def connect(*_: Any, **__: Any) -> Any:
        return wire, nullcontext()

    subclass = type(cls)(cls.__name__, (cls,), {"_connect_to_bootstrap_server": connect, "_connect": connect})
    subclass.__abstractmethods__ = frozenset()
    return subclass


def drain(loop: Callable[[], None]) -> None:
    """Runs a loop until it has nothing left to do."""
    try:
        loop()
    except Drained:
        return


def parameters(function: Any) -> tuple[str, ...]:
    """The names of a function's parameters, through one layer of decoration."""
    code: CodeType = getattr(function, "__wrapped__", function).__code__
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


def handles_abort(manager: Any, start: Any) -> bool:
    """Whether the backend's bootstrap thread has a branch for ABORT."""
    methods = ("_handle_abort_notification", "_handle_abort_message")
    return any(hasattr(manager, name) for name in methods) or "ABORT" in constants(start.__code__)


def constants(code: CodeType) -> Iterator[Any]:
    """The constants of a function and of the functions defined in it."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from constants(constant)
        else:
            yield constant
