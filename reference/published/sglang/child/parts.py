"""The parts that a real manager is made of here: tables that can be watched, and what moves data, moving none.

Whatever upstream's code asks of them beyond what they have is `Incomplete`: a fault of ours, never its behaviour.

Longer than 400 lines because it is a list: a small class for each part, and no two of them know each other.
"""

from __future__ import annotations

import dataclasses
import threading
from collections import defaultdict
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, Final

from kvlatch.reference.published.sglang.child.threads import Incomplete, Lock, pause
from kvlatch.reference.published.sglang.child.upstream import Upstream

ROOM: Final = 7
PEER: Final = "peer:1"
"""The one decode rank, by whatever name a backend knows it."""


class Drained(BaseException):
    """A loop has nothing left to do. No `Exception`, which the loop might catch."""


class Part(SimpleNamespace):
    """An object with just the attributes that it was given."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise Incomplete(f"asked for {name}, which it was not given")


class Table(dict[int, Any]):
    """A table of the manager, `request_status` or `transfer_infos`: before each access, a thread may be held."""

    def __init__(self) -> None:
        super().__init__()
        self.stores = 0
        self.others = False

    def about(self, room: object) -> None:
        self.others |= room != ROOM

    def __getitem__(self, room: int) -> Any:
        pause("read")
        self.about(room)
        return super().__getitem__(room)

    def __contains__(self, room: object) -> bool:
        pause("read")
        self.about(room)
        return super().__contains__(room)

    def get(self, room: int, default: Any = None) -> Any:
        pause("read")
        self.about(room)
        return super().get(room, default)

    def __setitem__(self, room: int, value: Any) -> None:
        pause("store")
        self.about(room)
        self.stores += 1
        super().__setitem__(room, value)

    def __delitem__(self, room: int) -> None:
        pause("store")
        self.about(room)
        super().__delitem__(room)

    def pop(self, room: int, *default: Any) -> Any:
        pause("store")
        self.about(room)
        return super().pop(room, *default)

    def setdefault(self, room: int, default: Any = None) -> Any:
        pause("store")
        self.about(room)
        return super().setdefault(room, default)


class Peers(dict[str, Any]):
    """`decode_kv_args_table`: whoever it is asked for, it is the one decode rank."""

    def __init__(self, peer: Any) -> None:
        super().__init__()
        self.peer = peer

    def __contains__(self, name: object) -> bool:
        return True

    def __getitem__(self, name: str) -> Any:
        return self.peer

    def get(self, name: str, default: Any = None) -> Any:
        return self.peer


@dataclasses.dataclass
class Record:
    """What becomes of a chunk of a request: queued, flying, done, or failed."""

    request: int
    state: str = "queued"


class Transfers:
    """The transfers of the room, each over as soon as the thread that waits for it goes on.

    It stands in for NIXL's agent, Mooncake's and MoRI's engine.
    """

    name = PEER

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.in_hand: dict[str, Record] = {}
        self.broken = False

    def begin(self, request: int) -> Record:
        """A chunk of a request is handed over."""
        self.records.append(Record(request))
        return self.records[-1]

    def take(self, record: Record) -> None:
        """This thread works on a chunk from now on."""
        self.in_hand[threading.current_thread().name] = record

    @property
    def record(self) -> Record:
        """The chunk that this thread works on, or else the one that was handed over last."""
        handed_over = self.records[-1] if self.records else Record(0)
        return self.in_hand.get(threading.current_thread().name, handed_over)

    def fly(self, record: Record) -> bool:
        """One transfer of a chunk, from when it is posted to its end; False if it ends in an error."""
        failed, self.broken = self.broken or record.state == "failed", False
        record.state = "flying"
        pause("transfer")
        record.state = "failed" if failed else "done"
        return not failed

    # What upstream's code calls.

    def check_xfer_state(self, handle: Handle) -> str:
        return "DONE" if self.fly(handle.record) else "ERR"

    def wait_all(self, statuses: list[MoriStatus], timeout_ms: int) -> str:
        return "SUCCESS" if self.fly(statuses[0].record if statuses else self.record) else "ERROR"

    def get_session_id(self) -> str:
        return PEER

    def add_remote_agent(self, metadata: object) -> str:
        return PEER

    def get_agent_metadata(self) -> bytes:
        return b""


class Chunks:
    """A transfer queue of upstream's own kind, whose reader is told when there is no chunk left, and does not wait."""

    def __init__(self, queue: Any, transfers: Transfers) -> None:
        self.queue = queue
        self.transfers = transfers
        self.records: list[Record] = []

    def put(self, chunk: Any) -> None:
        self.queue.put(chunk)
        self.records.append(self.transfers.records[-1])

    def get(self, timeout: float = 0) -> Any:
        if not self.records:
            raise Drained
        self.transfers.take(self.records.pop(0))
        return self.queue.get()


class Socket:
    """The end of the wire from which a thread reads what the other engine sends."""

    def __init__(self) -> None:
        self.messages: list[list[bytes]] = []

    def recv_multipart(self) -> list[bytes]:
        if not self.messages:
            raise Drained
        return self.messages.pop(0)

    def bind(self, address: object) -> None:
        """Up to 0.5.5 the method that starts the threads binds the socket, too."""


class Wire:
    """The other end, which keeps what is sent, and how many requests there had been by then."""

    def __init__(self, requests: Callable[[], int] = lambda: 0) -> None:
        self.requests = requests
        self.sent: list[tuple[int, list[bytes]]] = []

    def send_multipart(self, frames: list[bytes]) -> None:
        self.sent.append((self.requests(), frames))


class WireToDecode(Wire):
    """What prefill tells decode: before each word, a thread may be held."""

    def send_multipart(self, frames: list[bytes]) -> None:
        pause("tell")
        super().send_multipart(frames)


class Handle(str):
    """NIXL's handle of a transfer."""

    __slots__ = ("record",)
    record: Record


class MoriStatus:
    """The status of one of MoRI's transfers."""

    def __init__(self, transfers: Transfers) -> None:
        self.transfers = transfers
        self.record = transfers.record
        self.ended_well: bool | None = None

    def InProgress(self) -> bool:  # noqa: N802 - MoRI's name
        if self.ended_well is None:
            self.ended_well = self.transfers.fly(self.record)
        return False

    def Failed(self) -> bool:  # noqa: N802 - MoRI's name
        return self.ended_well is False

    def Message(self) -> str:  # noqa: N802 - MoRI's name
        return "the transfer has failed"


def transferred(backend: str, transfers: Transfers) -> Any:
    """What a method that posts a transfer returns: a handle, a status, or 0 once the transfer is done."""
    match backend:
        case "nixl":
            handle = Handle(PEER)
            handle.record = transfers.record
            return handle
        case "mori":
            return [MoriStatus(transfers)]
        case _:
            return 0 if transfers.fly(transfers.record) else 1


def attributes(
    upstream: Upstream, table: dict[int, Any], infos: dict[int, Any], socket: Socket, wire: Wire, chunks: Chunks
) -> dict[str, Any]:
    """What takes the place of what the constructors set, in one table; what a version does not know does it no harm.

    A remark says which versions ask for an attribute, where not all do.
    """
    return {
        "request_status": table,
        "failure_records": {},
        "failure_lock": Lock(),
        "server_socket": socket,
        "disaggregation_mode": upstream.utils.DisaggregationMode.PREFILL,
        "kv_args": Part(
            kv_data_ptrs=[1],  # without it a chunk that is not the last moves nothing
            kv_item_lens=[],
            aux_data_ptrs=[],
            engine_rank=0,
            pp_rank=0,
            gpu_id=0,
        ),
        "local_ip": "127.0.0.1",
        "rank_port": 1,
        "bootstrap_port": 1,
        **_of_one_rank(),
        "transfer_infos": infos,
        **_of_prefill(chunks),
        **_of_decode(),
        **_of_features(),
        **_of_transfers(upstream, chunks),
        "_connect": lambda *_, **__: wire,
        "_connect_threadsafe": lambda *_, **__: wire,  # MoRI since 0.5.12
        "_socket_send_locks": defaultdict(nullcontext),  # since 0.5.17
    }


def _of_one_rank() -> dict[str, Any]:
    return {
        "attn_tp_size": 1,
        "attn_tp_rank": 0,
        "attn_cp_size": 1,
        "attn_cp_rank": 0,
        "attn_dp_rank": 0,
        "pp_size": 1,
        "pp_rank": 0,
        "pp_group": Part(is_last_rank=True),
        "is_dummy_cp_rank": False,
        "enable_all_cp_ranks_for_transfer": False,
        "tp_size": 1,  # Mooncake up to 0.4.10.post2
        "dp_size": 1,  # Mooncake up to 0.5.1
        "transfer_source_rank": 0,  # NIXL 0.5.17 to 0.5.22
    }


def _of_prefill(chunks: Chunks) -> dict[str, Any]:
    return {
        "req_to_decode_prefix_len": {},
        "decode_kv_args_table": Peers(_new_peer()),
        "bootstrap_timeout": 300.0,
        "bootstrap_time_out": 300.0,  # its name in 0.4.8
        "transfer_queues": [chunks],
        "transfer_queue": chunks,  # 0.4.6
        "exceptions": {},  # NIXL 0.5.12 to 0.5.22
        "session_lock": Lock(),
        "session_failures": defaultdict(int),
        "failed_sessions": set(),
        "failed_session_probes": {},  # Mooncake 0.5.23
        "state_layout_rejections": {},  # Mooncake since 0.5.22
    }


def _of_decode() -> dict[str, Any]:
    sizes = ("dp", "tp", "attn_tp", "pp", "attn_cp")  # up to 0.5.9: later they are in prefill_info_table
    return {
        **{f"prefill_{size}_size_table": {} for size in sizes},
        "prefill_info_table": {},
        "prefill_response_tracker": defaultdict(set),
        "required_prefill_response_num_table": {},
        "transfer_statuses": {},
        "addr_to_rooms_tracker": defaultdict(set),
        "connection_pool": {},
        "connection_lock": Lock(),
        "heartbeat_failures": {},
        "session_pool": {},
        "session_pool_lock": Lock(),
    }


def _of_features() -> dict[str, Any]:
    """All switched off."""
    return {
        "server_args": Part(dp_size=1, enable_pd_role_switch=False),
        "is_mla_backend": False,
        "is_hybrid_mla_backend": False,  # since 0.5.16
        "enable_staging": False,
        "enable_trace": False,  # Mooncake since 0.5.13
        "_staging_ctx": None,
        "_staging_outstanding": defaultdict(int),  # since 0.5.18
        "_kv_replica_factor": 1,  # since 0.5.16
        "kv_shard_size": 1,  # 0.5.23
        "_dcp_pack_buffers": None,  # since 0.5.19
        "kv_item_lens_sum": 1,  # since 0.5.12: what metrics are computed of
        "state_item_lens_sum": 0,
        # Since 0.5.19: it moves acknowledgements between the engines, never a status.
        "enable_deferred_decode_kv_release": False,
        "_deferred_ack_targets": {},
        "_deferred_ack_poisoned_rooms": set(),
        "_stopped": False,  # since 0.5.21: whether the engine changes its role
        "_worker_threads": [],
    }


def _of_transfers(upstream: Upstream, chunks: Chunks) -> dict[str, Any]:
    transfers = chunks.transfers
    match upstream.backend:
        case "nixl":
            return {"agent": transfers, "peer_names": {PEER: PEER}}  # names: up to 0.4.8
        case "mori":
            upstream.conn.StatusCode = SimpleNamespace(SUCCESS="SUCCESS", IN_PROGRESS="IN_PROGRESS")
            return {
                "engine": transfers,
                "engine_desc": Part(key=PEER),
                "transfer_lock": Lock(),
                "state_mem_descs": [],
                "_num_shards": 1,  # since 0.5.13, as what follows
                "_transfer_queues": [chunks],
                "_transfer_timeout_ms": 0,
                "_wait_poll_ms": 1,
                "_room_status_notified": {},  # 0.5.19
                "_room_notify_lock": Lock(),  # 0.5.19
                "_abort_ack_lock": Lock(),  # since 0.5.22
            }
        case _:
            return {"engine": transfers}


def _new_peer() -> Part:
    """What the prefill engine knows of its one decode rank."""
    return Part(
        decode_tp_size=1,
        dst_attn_tp_size=1,
        dst_tp_size=1,  # up to 0.4.10.post2
        dst_tp_rank=0,
        gpu_id=0,
        dst_kv_ptrs=[],
        dst_kv_item_len=1,
        dst_kv_layer_ids=[],
        dst_aux_ptrs=[],
        dst_state_data_ptrs=[],
        enable_hisparse=False,  # Mooncake 0.5.10 to 0.5.12
        requires_dcp_relayout=False,  # since 0.5.17
        kv_xfer_segments=None,  # NIXL since 0.5.17
        dst_homogeneous_mem_kind="VRAM",  # NIXL since 0.5.16
    )
