"""Upstream's scheduler, with its queues and loops, over memory and a model of ours.

Replaced are: how requests come in and answers go out, which requests a batch takes (``PrefillAdder``), the model's
computing, and decode's steps, for which it checks the bytes that have come.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import time
from array import array
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any, Final

from kvlatch.reference.live.settings import Settings
from kvlatch.reference.live.upstream.load import SRT
from kvlatch.reference.live.upstream.memory import Pool, allocator, tree_cache
from kvlatch.reference.live.upstream.observe import Watch
from kvlatch.reference.live.upstream.ranks import Group
from kvlatch.reference.live.upstream.replaced import Arguments, Silent
from kvlatch.reference.live.upstream.rows import end_of, extend, row_of
from kvlatch.reference.live.upstream.stubs import Missing

_IDLE: Final = 0.001
"""Seconds between two turns of a loop that has nothing to do: upstream's polls."""
_ROWS: Final = 8
"""Requests that may have memory, for each one of a batch."""
_SWITCHED_OFF: Final = (
    "enable_decode_hicache", "enable_hicache_storage", "enable_hierarchical_cache", "enable_hisparse",
    "enable_lmcache", "enable_lora", "enable_metrics", "enable_overlap", "enable_priority_scheduling",
    "enable_unified_cache_external_linker", "enable_unified_memory", "enable_continuous_input_polling",
    "gracefully_exit", "schedule_low_priority_values_first", "_engine_paused",
)  # fmt: skip
_ABSENT: Final = (
    "attn_cp_cpu_group", "chunked_req", "cur_batch", "dllm_config", "draft_worker", "last_batch",
    "max_queued_requests", "mbs", "running_mbs", "rust_server", "sliding_window_size", "tp_group",
    "_pending_chunked_abort_req",
)  # fmt: skip


class Batch:
    """The requests that are computed together."""

    prefill_chunk_processed = batch_is_full = False
    spec_info = prefill_stats = dp_cooperation_info = None

    def __init__(self, reqs: list[Any], chunked_req: Any) -> None:
        self.reqs = reqs
        self.chunked_req = chunked_req
        self.forward_mode = SimpleNamespace(is_extend=lambda: True, is_prebuilt=lambda: False)

    def batch_size(self) -> int:
        """How many requests it has."""
        return len(self.reqs)

    def filter_batch(self, chunked_req_to_exclude: Any = (), reqs_to_exclude: Any = ()) -> None:
        """Keep the requests that go on."""
        gone = [*chunked_req_to_exclude, *reqs_to_exclude]
        self.reqs = [req for req in self.reqs if req not in gone and not req.finished()]


class Replaced:
    """What comes before upstream's own methods; :func:`scheduler` puts it there."""

    upstream: Any
    """The module of upstream's scheduler."""
    chunked_req: Any

    def __init__(self, settings: Settings, given: Arguments, watch: Watch, group: Group | None) -> None:
        tokens = settings.pages
        self.settings = settings
        self.answered: Callable[[Any], None] = _nobody
        self.called: Callable[[str], AbstractContextManager[None]] = _unnamed
        """Names the request that is made inside the block."""
        self.open: dict[str, int] = {}
        """The requests that have come in and have not been answered, with their rooms."""
        self._group = group
        self._arrived: list[list[Any]] = []
        self._queue_seen: list[str] = []
        self._changes = 0
        self.__dict__.update(dict.fromkeys(_SWITCHED_OFF, False), **dict.fromkeys(_ABSENT))
        self.__dict__.update(self._engine(settings, given))
        self.token_to_kv_pool_allocator = allocator(Pool(tokens, given.attn_tp_rank), tokens, watch.freed)
        decode = importlib.import_module(f"{SRT}.disaggregation.decode")
        self.req_to_token_pool = decode.DecodeReqToTokenPool(settings.batch * _ROWS, tokens, "cpu", False, 0)
        self.tree_cache = tree_cache(self.req_to_token_pool, self.token_to_kv_pool_allocator)
        self.running_batch = Batch([], None)
        self.init_disaggregation()

    def _engine(self, settings: Settings, given: Arguments) -> dict[str, Any]:
        """The other parts of the engine, by the names that the scheduler has for them."""
        silent = Silent()
        no = {"carries_draft_hidden_states": _no, "is_eagle": _no, "is_none": _yes}
        sizes = dict.fromkeys(
            ("max_token_pool_size", "effective_logical_max_total_num_tokens", "effective_max_total_num_tokens"),
            settings.pages,
        )
        runner = SimpleNamespace(**sizes, kv_cache_dtype_str=given.kv_cache_dtype)
        model = {"hf_config": None, "hf_text_config": None, "num_hidden_layers": 1, "num_key_value_heads": 1}
        return {
            "server_args": given,
            "ps": given,
            **dict.fromkeys(("attn_tp_cpu_group", "tp_cpu_group"), self._group),
            "random_seed": settings.seed,
            "max_total_num_tokens": settings.pages,
            "max_running_requests": settings.batch * _ROWS,
            "processed_tokens_counter": 0,
            "waiting_queue": [],
            "return_health_check_ipcs": [],
            **dict.fromkeys(
                ("batch_result_processor", "metrics_collector", "metrics_reporter", "scheduler_stage_metrics"), silent
            ),
            "spec_algorithm": SimpleNamespace(**no),
            "tp_worker": SimpleNamespace(is_hybrid_swa=False, model_runner=runner),
            "model_config": SimpleNamespace(**model, get_total_num_kv_heads=lambda: given.attn_tp_size),
            "beam_coordinator": SimpleNamespace(retire_group=_nobody),
            "dp_attn_adapter": SimpleNamespace(maybe_prepare_mlp_sync_batch=lambda batch: batch),
            "grammar_manager": SimpleNamespace(abort_requests=_nobody, has_waiting_grammars=_no),
            "ngram_embedding_manager": SimpleNamespace(prepare_for_forward=lambda batch, **_: batch),
            "output_streamer": SimpleNamespace(stream_output=self._stream_output),
            "ipc_channels": SimpleNamespace(send_to_tokenizer=SimpleNamespace(send_output=self._send_output)),
            "request_receiver": SimpleNamespace(recv_requests=self.recv_requests),
        }

    def __getattr__(self, name: str) -> Any:
        raise Missing(f"the scheduler's attribute {name} has no value here")

    # --- What comes in and what goes out --------------------------------------------------------------------------

    def submit(self, rid: str, prompt: str, room: int, host: str, port: int) -> None:
        """A request has come in; it gets into its first queue, on every rank, at the next turn of the loop."""
        self.open[rid] = room
        self._arrived.append(["request", rid, prompt, room, host, port])

    def abort(self, rid: str) -> None:
        """Its client has hung up."""
        self._arrived.append(["abort", rid])

    def _take_in(self, rid: str, prompt: str, room: int, host: str, port: int) -> None:
        self.open[rid] = room
        req = self.upstream.Req(
            rid=rid,
            origin_input_text="",
            origin_input_ids=array("q", map(_token, prompt.split())),
            sampling_params=SimpleNamespace(custom_params=None, max_new_tokens=1),
            bootstrap_host=host,
            bootstrap_port=port,
            bootstrap_room=room,
            disagg_mode=self.disaggregation_mode,
        )
        req.prompt = prompt
        with self.called(prompt):
            self._add_request_to_queue(req)

    def recv_requests(self, *_: object, **__: object) -> list[list[Any]]:
        """What has come in since the last turn: on every rank what rank 0 has got."""
        self.queue_changes()
        arrived, self._arrived = self._arrived, []
        return arrived if self._group is None else list(self._group.hand_on(arrived))

    def process_input_requests(self, recv_reqs: list[list[Any]]) -> None:
        """Take it in."""
        for kind, rid, *rest in recv_reqs:
            if kind == "request":
                self._take_in(rid, *rest)
            else:
                self.abort_request(SimpleNamespace(rid=rid, abort_all=False, abort_message=None, finished_reason=None))

    def ingest_requests(self, *_: object, **__: object) -> list[list[Any]]:
        """Both, under the name that they have in later versions."""
        arrived = self.recv_requests()
        self.process_input_requests(arrived)
        return arrived

    def _set_or_validate_priority(self, _: Any) -> bool:
        return True

    def _prefetch_kvcache(self, _: Any) -> None:
        """There is no cache to fetch from."""

    def _stream_output(self, reqs: list[Any], *_: object, **__: object) -> None:
        for req in reqs:
            self.answer(req)

    def _send_output(self, _: Any, req: Any = None) -> None:
        self.answer(req)

    def answer(self, req: Any) -> None:
        """This rank is through with a request."""
        self.open.pop(req.rid, None)
        self.answered(req)

    def queue_changes(self) -> int:
        """How often the inflight queue has been seen to have changed: here, and at the start of each turn."""
        queue = [req.rid for req in list(self.disagg_prefill_inflight_queue or ())]
        if queue != self._queue_seen:
            self._queue_seen, self._changes = queue, self._changes + 1
        return self._changes

    def on_idle(self) -> None:
        """Nothing to do."""
        time.sleep(_IDLE)  # upstream's loop polls

    # --- Prefill --------------------------------------------------------------------------------------------------

    def get_new_batch_prefill(self, running_batch: Any = None) -> Any:
        """The next batch, or a plan with it in later versions."""
        return self._planned(self._next_batch(), running_batch)

    def _planned(self, batch: Batch | None, running_batch: Any) -> Any:
        plan = getattr(self.upstream, "NextBatchPlan", None)
        return batch if plan is None else plan(batch_to_run=batch, running_batch=running_batch)

    def _next_batch(self) -> Batch | None:
        """The request in chunks goes on, and others join while there is room: first come, first served."""
        budget = self.settings.chunk_tokens
        reqs: list[Any] = []
        if self.chunked_req is not None:
            budget = self._extend(self.chunked_req, budget)
            reqs.append(self.chunked_req)
        while budget and self.waiting_queue and len(reqs) < self.settings.batch:
            if row_of(self.waiting_queue[0]) is None and self.req_to_token_pool.alloc(self.waiting_queue[:1]) is None:
                break
            reqs.append(self.waiting_queue.pop(0))
            budget = self._extend(reqs[-1], budget)
        if not reqs:
            return None
        last = reqs[-1]
        self.chunked_req = last if end_of(last) < len(last.origin_input_ids) else None
        if self.chunked_req is not None:
            self.chunked_req.inflight_middle_chunks += 1
        return Batch(reqs, self.chunked_req)

    def _extend(self, req: Any, budget: int) -> int:
        """Give a request memory for the tokens that this batch computes of it; what is left of the budget."""
        start = end_of(req)
        end = min(start + budget, len(req.origin_input_ids))
        indices = self.token_to_kv_pool_allocator.alloc(end - start)
        self.req_to_token_pool.write((row_of(req), slice(start, end)), indices)
        extend(req, start, end)
        req.computed_from = start
        return budget - (end - start)

    def run_batch(self, batch: Batch) -> Any:
        """Write the KV of a batch, in the time of one forward pass."""
        begun = time.monotonic()
        for req in batch.reqs:
            indices = self.req_to_token_pool.req_to_token[row_of(req), req.computed_from : end_of(req)]
            self.token_to_kv_pool_allocator.get_kvcache().fill(indices, req.prompt, req.computed_from)
        time.sleep(max(0.0, begun + self.settings.chunk_seconds - time.monotonic()))  # in the place of the model
        nothing = dict.fromkeys(
            ("auxiliary_host_output", "copy_done", "extend_input_len_per_req", "extend_logprob_start_len_per_req",
             "indexer_topk_output", "logits_output", "next_draft_input", "routed_experts_output")
        )  # fmt: skip
        tokens = SimpleNamespace(tolist=lambda: [1] * len(batch.reqs))
        return SimpleNamespace(**nothing, next_token_ids=tokens, can_run_cuda_graph=False)

    def process_batch_result(self, batch: Batch, result: Any) -> None:
        """Upstream's own, without the statistics around it."""
        self.process_batch_result_disagg_prefill(batch, result)

    # --- Decode ---------------------------------------------------------------------------------------------------

    def get_next_disagg_decode_batch_to_run(self, running_batch: Any = None, **_: object) -> Any:
        """In the place of decoding: each request that has come is checked, answered and released."""
        common = importlib.import_module(f"{SRT}.mem_cache.common")
        reasons = importlib.import_module(f"{SRT}.managers.schedule_batch")
        keeps = "checkpoint" in inspect.signature(common.release_kv_cache).parameters
        for req in self.waiting_queue:
            indices = self.req_to_token_pool.req_to_token[row_of(req), : len(req.origin_input_ids)]
            req.right = self.token_to_kv_pool_allocator.get_kvcache().holds(indices, req.prompt)
            req.finished_reason = reasons.FINISH_LENGTH(length=1)
            common.release_kv_cache(req, self.tree_cache, **({"checkpoint": False} if keeps else {}))
            self.answer(req)
        self.waiting_queue.clear()
        return self._planned(None, running_batch)


def scheduler(upstream: Any, settings: Settings, given: Arguments, watch: Watch, group: Group | None) -> Any:
    """A scheduler of upstream's; ``upstream`` is its module, ``group`` its ranks, None if it is the only one."""
    kind = type("Scheduler", (Replaced, upstream.Scheduler), {"upstream": upstream})
    return kind(settings, given, watch, group)


def _token(word: str) -> int:
    """The token of a word: no two words of a storm have the same."""
    return int.from_bytes(word.encode()[-7:])


def _unnamed(_: str) -> AbstractContextManager[None]:
    return contextlib.nullcontext()


def _no(*_: object, **__: object) -> bool:
    return False


def _yes(*_: object, **__: object) -> bool:
    return True


def _nobody(*_: object, **__: object) -> None:
    """Nobody is told."""
