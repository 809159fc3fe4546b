"""One room of a real manager, with all that acts on it: sender, bootstrap thread, worker, scheduler, decode.

The managers, senders and receivers are upstream's own classes, and so are the loops of the bootstrap thread, of the
transfer worker and of the scheduler. What decode sends is made by the real receiver, on a manager of its own, and heard
by the real thread; a thread that raises is dead from then on, as it would be. What is not real: the manager's
constructor passes over what needs an engine (`construct`), tables that can be watched and transfers that move nothing
take the place of the real ones (`parts`), and the receiver's constructor is not run, because it asks a server.

Longer than 400 lines because it is one room: a method for each thing that a real thread does to it.
"""

from __future__ import annotations

import functools
import importlib
import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress
from types import CodeType, MethodType, SimpleNamespace
from typing import Any, Final

from kvlatch.reference.published.sglang.child.parts import (
    PEER,
    ROOM,
    Chunks,
    Drained,
    Socket,
    Table,
    Transfers,
    Wire,
    WireToDecode,
    attributes,
    transferred,
)
from kvlatch.reference.published.sglang.child.threads import Ended, Fault, Incomplete, Lock
from kvlatch.reference.published.sglang.child.upstream import WORKERS, Upstream
from kvlatch.reference.published.stand_ins import Nothing, StubType

ABSENT: Final = "Absent"
LONG_AGO: Final = 0.0
PREFILL: Final = "prefill:1"
"""Where decode reaches the prefill engine."""
LONGEST_FRAME: Final = 24
PAGES: Final = 64
"""Pages that decode has for the request; a chunk is one page."""


class Missing(Exception):
    """This backend has no such code; the message says what there is instead."""


class Room:
    """A fresh manager and the senders of its one room."""

    def __init__(self, upstream: Upstream) -> None:
        self.upstream = upstream
        self.table = Table()
        self.infos = Table()
        self.socket = Socket()
        self.created = 0
        self.heard_from: dict[str, int] = {}
        self.wire = WireToDecode(lambda: self.created)
        self.transfers = Transfers()
        self.chunks = Chunks(upstream.new_queue(), self.transfers)
        self.senders: dict[str, Any] = {}
        self.numbers: dict[int, int] = {}
        self.inflight: list[Any] = []
        self.ended: list[list[Any]] = []
        self.released: list[int] = []
        self.dead: list[str] = []
        self.heard: list[str] = []
        self.locks_before = Lock.taken
        self.manager = self.new_manager("PREFILL", self.table, self.infos, self.wire)

    # --- What is observed

    @property
    def status(self) -> str:
        return self.name(dict.get(self.table, ROOM))

    def name(self, status: int | None) -> str:
        return ABSENT if status is None else self.upstream.names[status]

    def observe(self) -> dict[str, Any]:
        return {
            "status": self.status,
            "infos": bool(dict.get(self.infos, ROOM)),
            "told": self.told(),
            "inflight": len(self.inflight),
            "stores": self.table.stores,
            "others": self.table.others,
            "created": self.created,
            "chunks": [[record.request, record.state] for record in self.transfers.records],
            "ended": self.ended[:],
            "released": self.released[:],
            "dead": self.dead[:],
            "heard": self.new_frames(),
            "locks": Lock.taken - self.locks_before,
        }

    def new_frames(self) -> list[str]:
        """The messages that the bootstrap thread was sent since this was asked last."""
        new, self.heard = self.heard, []
        return new

    def told(self) -> list[list[Any]]:
        """What was sent to decode, and in the life of which request: the frame after the room's is a status."""
        room = str(ROOM).encode()
        about = [(life, f) for life, f in self.wire.sent if room in f[:-1] and not f[0].startswith(b"ABORT")]
        return [[life, self.name(int(frames[frames.index(room) + 1]))] for life, frames in about]

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
        self.created += 1
        number = self.created
        sender = self.new_sender()
        self.senders[threading.current_thread().name] = sender
        self.numbers[id(sender)] = number

    def do_write(self, status: int) -> None:
        self.manager.update_status(ROOM, status)

    def do_put(self, status: int) -> None:
        dict.__setitem__(self.table, ROOM, status)

    def do_register(self) -> None:
        if self.metadata_of(1, required=2).sent == self.metadata_of(1, required=1).sent:
            raise Missing("decode does not say how many ranks it has")
        self.hear(self.metadata_of(self.sent_by("register"), required=2))

    def do_metadata(self) -> None:
        self.hear(self.metadata_of(self.sent_by("metadata"), required=1))

    def do_abort_notice(self) -> None:
        """Decode sends ABORT: the frames of the real receiver."""
        wire = Wire()
        receiver = self.new_receiver(wire, required=1, request=self.sent_by("abort_notice"))
        for method in ("abort", "_send_abort_notification"):
            if not wire.sent and hasattr(self.upstream.receiver, method):
                getattr(receiver, method)()
        if not wire.sent:
            raise Missing("decode sends no abort")
        self.hear(wire)

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
            self.run_thread("worker", lambda: loop(self.queue, **extra))
        elif self.start_bootstrap is not None and len(loops := self.loops()) > 1:
            self.run_thread("worker", loops[1])  # 0.4.6: the worker is a function in the method that starts it
        else:
            raise Missing("there is no transfer worker: whoever sends a chunk posts its transfer")

    @property
    def queue(self) -> Any:
        """The manager's transfer queue, as it gives it to its workers."""
        name = "_transfer_queues" if self.upstream.backend == "mori" else "transfer_queues"
        return getattr(self.manager, name)[0]

    def do_break_transfer(self) -> None:
        """The next transfer ends in an error."""
        self.transfers.broken = True

    def do_conclude(self, status: int) -> None:
        if not hasattr(self.upstream.manager, "conclude_transfer"):
            raise Missing("there is no conclude_transfer")
        self.manager.conclude_transfer(bootstrap_room=ROOM, status=status)

    def do_settle(self) -> None:
        """One round of the real loop over the inflight queue."""
        scheduler = scheduler_class(self.upstream)()
        scheduler.disagg_prefill_inflight_queue = before = self.inflight
        scheduler.tree_cache = Nothing(cache_finished_req=self.release)
        vars(self.upstream.prefill_module()).update(release_kv_cache=self.release)
        outcomes = {id(request): request.disagg_kv_sender for request in before}
        polled: dict[int, int] = {}
        for request in before:
            request.disagg_kv_sender = Polled(request.disagg_kv_sender, polled)
        try:
            if before:
                scheduler.process_disagg_prefill_inflight_queue()
        finally:
            self.inflight = scheduler.disagg_prefill_inflight_queue
            for request in before:
                request.disagg_kv_sender = outcomes[id(request)]
                if request not in self.inflight:
                    status = polled.get(id(request.disagg_kv_sender))
                    self.ended.append([request.number, self.name(status)])

    def release(self, request: Any, *_: Any, **__: Any) -> None:
        """The scheduler gives back the pages of a request."""
        self.released.append(request.number)

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

    def new_manager(self, mode: str, table: dict[int, Any], infos: dict[int, Any], wire: Wire) -> Any:
        """A manager of prefill or decode, as its own constructor leaves it, with parts of ours."""
        upstream = self.upstream
        disaggregation_mode = getattr(upstream.utils.DisaggregationMode, mode)
        given = attributes(upstream, table, infos, self.socket, wire, self.chunks)
        given["disaggregation_mode"] = disaggregation_mode
        manager: Any = object.__new__(manager_class(upstream))
        vars(manager).update(given, being_made=True)  # the constructor may ask for what it has just set
        upstream.threads.kept.clear()
        with suppress(Exception):  # a signature that is not upstream's: what it would set is missed by name
            manager.__init__(Nothing(), disaggregation_mode, Nothing(), False)
        for target in upstream.threads.kept:
            if target.__module__.startswith("overlay_") and target.__name__ not in WORKERS:
                raise Fault(f"an overlay starts a thread of its own, {target.__name__}, which nobody would run here")
        for name, value in [*vars(manager).items()]:
            if isinstance(value, (Nothing, StubType)):  # nothing is known of it: whoever asks for it has to be told
                delattr(manager, name)
        del manager.being_made
        vars(manager).update(given)
        manager.transfers = self.transfers
        return manager

    @property
    def sender(self) -> Any:
        """The sender that this thread created last, or else any thread."""
        if not self.senders:
            raise Missing("there is no sender: no constructor has come to its end")
        return self.senders.get(threading.current_thread().name, list(self.senders.values())[-1])

    def new_sender(self) -> Any:
        arguments = {
            "mgr": self.manager,
            "bootstrap_addr": "",
            "bootstrap_room": ROOM,
            "dest_tp_ranks": [0],
            "pp_rank": 0,
            "nonce": self.created,
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

    def sent_by(self, op: str) -> int:
        """Which request of decode's a message is about: the last one here, or the next one if that has sent it before.

        Decode sends a message once, so the second one after a room was cleared is an early one.
        """
        request = max(self.created, 1)
        if self.heard_from.get(op) == request and self.status == ABSENT:
            request += 1
        self.heard_from[op] = request
        return request

    def metadata_of(self, request: int, required: int) -> Wire:
        """A decode rank, one of ``required``, sends its metadata: the frames of the real receiver."""
        wire = Wire()
        receiver = self.new_receiver(wire, required, request)
        numpy = importlib.import_module("numpy")
        name = "send_metadata" if hasattr(self.upstream.receiver, "send_metadata") else "init"
        getattr(receiver, name)(numpy.zeros(PAGES, dtype=numpy.int32), 0)
        return wire

    def new_receiver(self, wire: Wire, required: int, request: int) -> Any:
        """A receiver of a request on a manager of decode's own, whose connections end in `wire`.

        Its nonce, which an overlay may put on the wire, is the request's number, and so is the sender's.
        """
        if self.start_bootstrap is None or self.upstream.receiver is None:
            raise Missing("there is no bootstrap thread that could hear from decode")
        receiver: Any = object.__new__(concrete_receiver(self.upstream.receiver, wire))
        receiver.kv_mgr = self.decode
        receiver.bootstrap_room = ROOM
        receiver.bootstrap_info = {"is_dummy": False, "rank_ip": "127.0.0.1", "rank_port": 1}
        receiver.bootstrap_infos = [receiver.bootstrap_info]
        receiver.required_dst_info_num = required
        receiver.session_id = PEER
        receiver.prefill_server_url = receiver.bootstrap_addr = PREFILL
        receiver.conclude_state = receiver.init_time = receiver._abort_generation = None
        receiver.abort_notified = False
        receiver.nonce = request
        return receiver

    @functools.cached_property
    def decode(self) -> Any:
        """Decode's manager, of which nothing is observed but what its receivers send."""
        return self.new_manager("DECODE", {}, {}, Wire())

    @property
    def start_bootstrap(self) -> Any:
        """The method that starts the backend's bootstrap thread; None if it has no such thread."""
        names = ("_start_bootstrap_thread", "start_prefill_thread")
        return next((getattr(self.manager, n) for n in names if hasattr(self.upstream.manager, n)), None)

    def hear(self, wire: Wire) -> None:
        """Runs the real loop of the bootstrap thread, in this thread, over what decode has sent."""
        messages = [frames for _, frames in wire.sent]
        self.heard += [" ".join(map(shown, frames)) for frames in messages]
        self.socket.messages += messages
        self.run_thread("bootstrap", self.loops()[0])

    def run_thread(self, name: str, loop: Callable[[], None]) -> None:
        """Runs the loop of a thread until it has nothing left to do; once it has raised, it is dead."""
        if name in self.dead:
            return
        try:
            loop()
        except Drained:
            return
        except Exception:
            self.dead.append(name)
            raise

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
        number = self.numbers[id(sender)]
        self.transfers.begin(number)
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
            self.inflight.append(SimpleRequest(sender, number))


@functools.cache
def manager_class(upstream: Upstream) -> Any:
    """Upstream's manager, but that it moves no data, and that a missing attribute does not lead it astray."""

    class Manager(upstream.manager):  # type: ignore[misc, name-defined]  # a class of the wheel
        def __getattr__(self, name: str) -> Any:
            if "being_made" in vars(self):
                raise AttributeError(name)
            raise Incomplete(f"found that the manager was made without {name}")

    def post(manager: Any, *_: Any, **__: Any) -> Any:
        return transferred(upstream.backend, manager.transfers)

    for name in dir(upstream.manager):
        if name.startswith(("send_kvcache", "send_aux", "send_state")):
            setattr(Manager, name, post)
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

    def __init__(self, sender: Any, number: int) -> None:
        self.disagg_kv_sender = sender
        self.number = number


class Polled:
    """A sender whose last answer to a poll is kept, by its identity."""

    def __init__(self, sender: Any, answers: dict[int, int]) -> None:
        self.sender = sender
        self.answers = answers

    def poll(self) -> Any:
        self.answers[id(self.sender)] = answer = self.sender.poll()
        return answer

    def __getattr__(self, name: str) -> Any:
        return getattr(self.sender, name)


def concrete_receiver(cls: Any, wire: Wire) -> Any:
    """A receiver class whose connections end in `wire`."""

    def connect(*_: Any, **__: Any) -> Any:
        return wire, nullcontext()

    def missing(_: Any, name: str) -> Any:
        raise Incomplete(f"found that the receiver was made without {name}")

    members = {"_connect_to_bootstrap_server": connect, "_connect": connect, "__getattr__": missing}
    subclass = type(cls)(cls.__name__, (cls,), members)
    subclass.__abstractmethods__ = frozenset()
    return subclass


def shown(frame: bytes) -> str:
    """A frame as a person reads it."""
    text = frame.decode("ascii", "replace")
    return text if text.isprintable() and len(text) <= LONGEST_FRAME else f"({len(frame)} bytes)"


def parameters(function: Any) -> tuple[str, ...]:
    """The names of a function's parameters, through one layer of decoration."""
    code: CodeType = getattr(function, "__wrapped__", function).__code__
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
