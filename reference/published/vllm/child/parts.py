"""What vLLM's transfer code finds around it in the child: configuration, block pool, topology, and NIXL's agents.

One rank on each side, with the same layout; one group of caches; a prompt of one block, nothing of which is cached. The
handshake has been made. An agent moves nothing: a read that is posted stays in flight until the script ends it.
"""

from __future__ import annotations

import copy
import inspect
import queue
from types import SimpleNamespace
from typing import Any, Final

from kvlatch.reference.published.stand_ins import Nothing
from kvlatch.reference.published.vllm.child.upstream import Upstream

REQUEST: Final = "request"
"""The request's id, on both engines."""
ROLES: Final = ("prefill", "decode")
BLOCK: Final = 1
BLOCK_SIZE: Final = 16
"""In tokens."""

# --- NIXL -----------------------------------------------------------------------------------------


class Network:
    """The reads of decode, and the notices on their way to each engine."""

    def __init__(self) -> None:
        self.reads: list[SimpleNamespace] = []
        self.inbox: dict[str, list[bytes]] = {role: [] for role in ROLES}

    def flying(self) -> list[SimpleNamespace]:
        """The reads in flight."""
        return [read for read in self.reads if read.state == "PROC"]

    def completions(self) -> list[bytes]:
        """The notices on their way to prefill that decode has what it wants; the other ones are heartbeats."""
        return [notice for notice in self.inbox["prefill"] if not notice.startswith(b"HB:")]

    def end(self) -> None:
        """The oldest read has gone well, and prefill will hear of it."""
        read = self.flying()[0]
        read.state = "DONE"
        self.inbox["prefill"].append(read.notice)

    def fail(self) -> None:
        """The oldest read has failed."""
        self.flying()[0].state = "ERR"

    def lose(self) -> None:
        """The oldest notice is lost."""
        self.inbox["prefill"].remove(self.completions()[0])

    def repeat(self) -> None:
        """The oldest notice is delivered twice."""
        self.inbox["prefill"].append(self.completions()[0])


class Agent:
    """Stands in for NIXL's agent of one engine; `generation` is that of the engine's request."""

    def __init__(self, network: Network, role: str) -> None:
        self.network = network
        self.role = role
        self.generation = 0

    def get_new_notifs(self) -> dict[str, list[bytes]]:
        notices, self.network.inbox[self.role] = self.network.inbox[self.role], []
        return {"peer": notices}

    def send_notif(self, agent_name: str, notif_msg: bytes) -> None:
        self.network.inbox["prefill" if self.role == "decode" else "decode"].append(notif_msg)

    def make_prepped_xfer(self, *_: Any, notif_msg: bytes) -> int:
        self.network.reads.append(SimpleNamespace(state="INIT", notice=notif_msg, generation=self.generation))
        return len(self.network.reads) - 1

    def transfer(self, handle: int) -> None:
        self.network.reads[handle].state = "PROC"

    def check_xfer_state(self, handle: int) -> str:
        return str(self.network.reads[handle].state)

    def get_xfer_telemetry(self, handle: int) -> SimpleNamespace:
        return SimpleNamespace(xferDuration=1, postDuration=1, totalBytes=1, descCount=1)

    def release_xfer_handle(self, handle: int) -> None:
        """Upstream releases the handles of reads that are over."""

    def check_remote_metadata(self, agent_name: str) -> bool:
        return True


# --- What the scheduler finds ---------------------------------------------------------------------


class Pool(Nothing):
    """Stands in for the block pool: what each request of the id holds, and how often it gave that back."""

    def __init__(self) -> None:
        super().__init__(holds={}, freed={})

    def allocate(self, request: Any) -> None:
        if not self.holds.get(request.generation):
            self.holds[request.generation], self.freed[request.generation] = True, 0

    def free(self, request: Any) -> None:
        if request.generation in self.holds:
            self.holds[request.generation] = False
            self.freed[request.generation] += 1

    def get_block_ids(self, request_id: str) -> tuple[list[int]]:
        return ([BLOCK],)

    def get_block_ids_for_computed_tokens(self, **_: Any) -> tuple[list[int]]:
        return ([BLOCK],)

    def take_events(self) -> None:
        return None


class Blocks:
    """The blocks that a request has been given."""

    blocks = ((SimpleNamespace(block_hash=None, is_null=False, block_id=BLOCK),),)

    def get_block_ids(self) -> tuple[list[int]]:
        return ([BLOCK],)

    def get_unhashed_block_ids(self) -> list[int]:
        return [BLOCK]

    def get_unhashed_block_ids_all_groups(self) -> tuple[list[int]]:
        return ([BLOCK],)


class Waiting(list[Any]):
    """The scheduler's queue of requests that do not run."""

    def remove_requests(self, requests: Any) -> None:
        self[:] = [request for request in self if request not in requests]


def configuration(role: str) -> tuple[Nothing, Nothing]:
    """The configuration of vLLM and that of its caches; what is not set here has its default."""
    spec = Nothing(block_size=BLOCK_SIZE, prefix_replay_tokens=0, sliding_window=None)
    groups = [Nothing(kv_cache_spec=spec, layer_names=["layer"])]
    caches = Nothing(
        kv_cache_groups=groups, transfer_groups=groups, transfer_group_ids=(0,), num_blocks=2,
        select_transfer_block_ids=lambda block_ids: block_ids,
    )  # fmt: skip
    parallel = Nothing(
        tensor_parallel_size=1, pipeline_parallel_size=1, data_parallel_size=1, data_parallel_rank=0,
        data_parallel_index=0, decode_context_parallel_size=1, prefill_context_parallel_size=1,
    )  # fmt: skip
    transfer = Nothing(
        engine_id=role, kv_role="kv_producer" if role == "prefill" else "kv_consumer", kv_buffer_device="cuda",
        is_kv_producer=role == "prefill", get_from_extra_config=lambda _, default: default,
    )  # fmt: skip
    config = Nothing(
        parallel_config=parallel, kv_transfer_config=transfer, cache_config=Nothing(block_size=BLOCK_SIZE),
        scheduler_config=Nothing(disable_hybrid_kv_cache_manager=True), num_prefill_lookahead_tokens=0,
    )  # fmt: skip
    return config, caches


# --- Connectors -----------------------------------------------------------------------------------


class Topology:
    """Stands in for what a worker knows of the ranks and layouts of its peer."""

    block_size_ratio = tp_ratio = staticmethod(lambda *_: 1)
    block_size_ratio_from_engine_id = tp_ratio_from_engine_id = staticmethod(lambda *_: 1)
    get_target_remote_rank_from_engine_id = staticmethod(lambda *_: 0)
    get_target_remote_ranks_from_engine_id = staticmethod(lambda *_: [0])

    def __init__(self, peer: str) -> None:
        self.remote_block_size = {peer: BLOCK_SIZE}

    def get_engine_info(self, engine_id: str) -> SimpleNamespace:
        return SimpleNamespace(
            remote_block_size=BLOCK_SIZE, remote_tp_size=1, remote_dcp_size=1, remote_physical_blocks_per_logical=1
        )


class OnlyRank(dict[Any, Any]):
    """A table by rank, whose keys differ by version: whichever is asked for, it is the only one."""

    def __missing__(self, rank: object) -> Any:
        return next(iter(self.values()))


class Half:
    """One half of a connector as upstream has constructed it, of which every world has a copy of its own.

    `collections` are the attributes that can hold something about a request, by whatever name: they start empty.
    `moments` are those that hold a time.
    """

    def __init__(self, connector: Any, name: str) -> None:
        self.connector = connector
        self.name = name
        part = vars(getattr(connector, name))
        self.collections = [attribute for attribute, value in part.items() if _is_empty(value)]
        self.moments = [attribute for attribute, value in part.items() if isinstance(value, float)]

    def copied(self) -> tuple[Any, Any]:
        """The connector and this half of it."""
        connector, part = _shallow(self.connector), _shallow(getattr(self.connector, self.name))
        for name in self.collections:
            value = vars(part)[name]
            vars(part)[name] = queue.Queue() if isinstance(value, queue.Queue) else copy.copy(value)
        vars(connector)[self.name] = part
        return connector, part


def _shallow(part: Any) -> Any:
    copied = object.__new__(type(part))
    vars(copied).update(vars(part))
    return copied


def _is_empty(value: Any) -> bool:
    return value.empty() if isinstance(value, queue.Queue) else isinstance(value, (dict, set, list)) and not value


class Build:
    """One engine as it starts: its configuration, and its connector's halves, constructed by upstream."""

    def __init__(self, upstream: Upstream, role: str) -> None:
        self.role = role
        self.config, self.caches = configuration(role)
        accepts = len(inspect.signature(upstream.connector).parameters)
        scheduling, working = (
            upstream.connector(*(self.config, side, self.caches)[:accepts])
            for side in (upstream.role.SCHEDULER, upstream.role.WORKER)
        )
        worker = working.connector_worker
        type(worker).__del__ = lambda _: None  # it would close the agent and the threads, which copies share
        shake_hands(worker, next(other for other in ROLES if other != role))
        self.scheduling = Half(scheduling, "connector_scheduler")
        self.working = Half(working, "connector_worker")


def builds(upstream: Upstream) -> dict[str, Build]:
    """Both engines."""
    backend = Nothing(get_kv_cache_shape=lambda **_: (2, 1, BLOCK_SIZE, 1, 1))
    upstream.replace(
        NixlWrapper=lambda *_: None,
        check_nixl_version=lambda _: None,
        current_platform=Nothing(device_type="cuda", get_nixl_memory_type=lambda: "VRAM"),
        get_attn_backend=lambda *_, **__: backend,
        get_current_attn_backend=lambda _: backend,
        get_current_attn_backends=lambda _: [backend],
        get_tensor_model_parallel_rank=lambda: 0,
        get_tensor_model_parallel_world_size=lambda: 1,
        nixl_agent_config=None,
        select_common_block_size=lambda size, *_: size,
    )
    return {role: Build(upstream, role) for role in ROLES}


def shake_hands(worker: Any, peer: str) -> None:
    """What the worker knows, in any version, once its caches are registered and it has met the peer's only rank."""
    worker.transfer_topo = worker.kv_topo = Topology(peer)
    worker._remote_agents = {peer: OnlyRank(only="agent")}
    worker._engine_by_address = {("host", 1): peer}
    worker._engine_clock_offset = {peer: 0.0}
    worker._tp_size = {peer: 1, worker.engine_id: 1}
    worker.tp_mappings = {
        peer: SimpleNamespace(all_source_ranks=(0,), source_ranks_per_group=((0,),), local_consumers=1)
    }
    worker.dst_num_blocks = {peer: 2, worker.engine_id: 2}
    worker.dst_region_group_ids = {peer: []}
    worker.dst_uses_region_group_mapping = {peer: False}
    worker.dst_xfer_side_handles = {peer: OnlyRank(only=1)}
    worker.src_xfer_handles_by_block_size = {BLOCK_SIZE: 1}
    worker._get_block_descs_ids = worker._compute_desc_ids = lambda *_, **__: [BLOCK]
