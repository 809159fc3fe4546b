"""What stands in the place of the rest of the engine, name by name, for every version in one text.

A version that has not got a name does not ask for it. Whatever is asked for and is neither here nor upstream's own is
a stub, which decides nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

from kvlatch.reference.live.settings import EngineRole
from kvlatch.reference.live.upstream.load import SRT
from kvlatch.reference.live.upstream.ranks import Group
from kvlatch.reference.live.upstream.stubs import Missing

ARGUMENTS: Final[dict[str, Any]] = {
    # where, and how many
    "host": "127.0.0.1", "port": 0, "dist_init_addr": None, "nnodes": 1,
    "tp_size": 1, "tp_rank": 0, "pp_size": 1, "pp_rank": 0, "dp_size": 1, "dp_rank": 0, "num_dp_ranks": 1,
    "attn_tp_size": 1, "attn_tp_rank": 0, "attn_cp_size": 1, "attn_cp_rank": 0, "attn_dp_size": 1, "attn_dp_rank": 0,
    "attn_dcp_size": 1, "attn_dcp_rank": 0,
    "dcp_size": 1, "dcp_rank": 0, "dcp_enabled": False, "gpu_id": 0, "device": "cpu",
    "attn_tp_group": SimpleNamespace(cpu_group=None), "pp_group": None, "world_group": None,
    # how pages and requests are handled: the plain way everywhere
    "page_size": 1, "kv_cache_dtype": "auto", "load_balance_method": "round_robin", "chunked_prefill_size": None,
    "enable_dp_attention": False, "enable_cp_tp_group_sharing": False, "enable_dsa_cache_layer_split": False,
    "enable_kv_cache_sharding": False, "disable_radix_cache": True, "optimistic_prefill_retries": 0,
    "optimistic_prefill_attempts": 0, "num_reserved_decode_tokens": 1, "speculative_algorithm": None,
    "speculative_num_draft_tokens": None, "strip_thinking_cache": False, "language_only": False,
    "sampling_mask_max_tokens": 0, "enable_pd_role_switch": False, "enable_flexkv": False, "weight_version": None,
    "enable_trace": False, "enable_unified_memory": False,
    "disaggregation_transfer_backend": "nixl", "disaggregation_ib_device": None,
    "disaggregation_enable_kv_checksum": False, "disaggregation_decode_allocation_policy": "early",
    "disaggregation_decode_enable_radix_cache": False, "disaggregation_decode_enable_offload_kvcache": False,
    "disaggregation_decode_polling_interval": 1,
    "disaggregation_decode_host_receive_threshold": 1,
    "disaggregation_decode_retraction_backup": None,
}  # fmt: skip
"""The arguments of the server, and what its later versions keep of them by subject."""

GETTERS: Final = (
    "get_device", "get_disagg", "get_memory", "get_mm", "get_observability", "get_parallel", "get_schedule",
    "get_server_args", "get_serving", "get_spec",
)  # fmt: skip
_RANKS: Final = [f"get_attention_{kind}_{what}" for kind in ("tp", "cp", "dp") for what in ("size", "rank")]


class Arguments(SimpleNamespace):
    """Arguments that are known; whatever else is asked for is named."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise Missing(f"the server's argument {name} has no value here")


class Silent:
    """Statistics and traces: every call does nothing and answers None."""

    prefill_retry_count = 0
    bootstrap_done_time = 0.0
    enable_metrics = False

    def __init__(self, *_: object, **__: object) -> None:
        self.trace_ctx = SimpleNamespace(abort=lambda **_: None)

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: None


class Range(NamedTuple):
    """The tokens of a request that a batch computes."""

    start: int
    end: int


class PlainRequest:
    """A request has nothing to do with diffusion models."""

    def init_diffusion_llm(self, _: object) -> None:
        """Nothing."""


def no(*_: object, **__: object) -> bool:
    """What a machine without accelerators answers."""
    return False


def undecorated(*_: object, **__: object) -> Callable[[Any], Any]:
    """A decorator with arguments that leaves what it decorates as it is."""
    return lambda function: function


def in_time(function: Callable[[], Any], **_: object) -> Any:
    """Call a function; there is no accelerator whose driver could hang."""
    return function()


def arguments(role: EngineRole, bootstrap_port: int, group: Group | None = None, backend: str = "nixl") -> Arguments:
    """The server's arguments of one rank of an engine; ``group`` are its ranks, None if it is the only one."""
    place: dict[str, Any] = {}
    if group is not None:
        place = {"tp_size": group.size, "tp_rank": group.rank, "gpu_id": group.rank}
        place |= {"attn_tp_size": group.size, "attn_tp_rank": group.rank}
        place["attn_tp_group"] = SimpleNamespace(cpu_group=group)
    given = {**ARGUMENTS, **place, "disaggregation_mode": role, "disaggregation_bootstrap_port": bootstrap_port}
    return Arguments(**{**given, "disaggregation_transfer_backend": backend})


def replaced(given: Arguments) -> dict[str, dict[str, Any]]:
    """Names by module."""
    machine = dict.fromkeys(("is_npu", "is_hip", "is_cuda", "is_mps", "is_cpu", "is_xpu"), no)
    sizes = {"ceil_align": lambda size, page: -(-size // page) * page, "Range": Range}
    one = {name: partial(getattr, given, name.replace("attention", "attn")[4:]) for name in _RANKS}
    memory_saver = SimpleNamespace(region=lambda **_: contextlib.nullcontext())
    return {
        f"{SRT}.utils": {**machine, **sizes},
        f"{SRT}.utils.common": {**machine, **sizes, "run_with_deadline": in_time},
        f"{SRT}.utils.nvtx_utils": {"scheduler_nvtx_method": undecorated},
        f"{SRT}.utils.torch_memory_saver_adapter": {
            "TorchMemorySaverAdapter": SimpleNamespace(create=lambda **_: memory_saver)
        },
        f"{SRT}.observability.req_time_stats": {"SchedulerReqTimeStats": Silent},
        f"{SRT}.observability.scheduler_stage_metrics": {"scheduler_stage_method": undecorated},
        f"{SRT}.layers.dp_attention": one,
        f"{SRT}.distributed": {"get_pp_group": lambda: None},
        f"{SRT}.mem_cache.allocation": {"ensure_mamba_capacity": lambda *_: True},
        f"{SRT}.configs.model_config": {"is_minimax_sparse": no, "is_deepseek_dsa": no},
        f"{SRT}.dllm.mixin.req": {"ReqDllmMixin": PlainRequest},
        f"{SRT}.mem_cache.kv_cache_builder": {"get_draft_kv_pool": lambda **_: None},
        f"{SRT}.runtime_context": {
            **dict.fromkeys(GETTERS, lambda: given),
            "linear_attn_tp_size": lambda: given.attn_tp_size,
        },
        f"{SRT}.server_args": {"get_global_server_args": lambda: given},
    }
