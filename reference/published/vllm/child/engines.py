"""Two vLLM engines, prefill and decode, that are one request's whole world; what can be done to them and seen of them.

Upstream's own code runs in each: `Scheduler` (what finishes a request, frees its blocks, and takes in what a step has
brought), `NixlConnector` with the scheduler's and the worker's half, and the model runner's part that calls the latter.
Only the choice of what to schedule is not upstream's: `Engine.schedule` makes its calls about the one request, which
is computed in one step and has then reached its length.
"""

from __future__ import annotations

import copy
import queue
from collections import deque
from types import SimpleNamespace
from typing import Any, Final

from kvlatch.reference.published.stand_ins import Nothing
from kvlatch.reference.published.vllm.child.parts import (
    BLOCK_SIZE,
    REQUEST,
    ROLES,
    Agent,
    Blocks,
    Build,
    Network,
    Pool,
    Waiting,
)
from kvlatch.reference.published.vllm.child.upstream import Upstream

LEASE: Final = 481.0
"""Seconds: longer than any version keeps blocks for a reader that it does not hear of."""
REST: Final = 12
"""More rounds than two engines need to come to rest."""
RECEIVED: Final = ("finished_recving_kv_req_ids", "failed_recving_kv_req_ids")
"""What a scheduler knows of loads that are over."""


class Fault(Exception):
    """The script could not be carried out; the message says why."""


class Engine:
    """One engine, with one request at a time; `generation` is its number among those that had the one id."""

    def __init__(self, upstream: Upstream, build: Build, network: Network) -> None:
        self.upstream = upstream
        self.build = build
        self.role = build.role
        self.network = network
        self.status = upstream.request.RequestStatus
        self.agent = Agent(network, self.role)
        self.pool = Pool()
        self.connector, self.scheduling = build.scheduling.copied()
        self.worker, self.working = build.working.copied()
        self.working.nixl_wrapper = self.agent
        self.scheduler = self.constructed()
        self.steps: deque[SimpleNamespace] = deque()
        self.generation = 0
        self.computed = False
        self.aborted = False
        self.answer: dict[str, Any] | None = None
        self.conclusions: list[str] = []
        self.dead: str | None = None

    def constructed(self) -> Any:
        """The scheduler as its constructor would leave it, as far as it matters here."""
        scheduler = object.__new__(self.upstream.scheduler)
        waiting = Waiting()
        vars(scheduler).update(
            vllm_config=self.build.config, kv_cache_config=self.build.caches, block_size=BLOCK_SIZE,
            kv_cache_manager=self.pool, connector=self.connector, ec_connector=None, aux_output_connector=None,
            requests={}, running=[], waiting=waiting, skipped_waiting=waiting, kv_holding_waiting=waiting,
            finished_req_ids=set(), finished_req_ids_dict=None, **{name: set() for name in RECEIVED},
            grammar_compile_error_reqs=set(), encoder_cache_mismatch_reqs=set(), recompute_kv_load_failures=False,
            perf_metrics=None, log_stats=False, _kv_fetch_stages=None,
        )  # fmt: skip
        return scheduler

    @property
    def request(self) -> Any:
        """The request that the scheduler has, if any."""
        return self.scheduler.requests.get(REQUEST)

    # --- What can be done -----------------------------------------------------------------------------

    def arrive(self, generation: int, parameters: dict[str, Any]) -> None:
        """A request is added to the scheduler, with what the router says about its transfer."""
        self.generation = generation
        self.agent.generation = self.generation
        self.computed = self.aborted = False
        self.conclusions = []
        self.answer = None
        request = object.__new__(self.upstream.request.Request)
        vars(request).update(
            request_id=REQUEST, generation=self.generation, status=self.status.WAITING, client_index=0, events=[],
            kv_transfer_params=parameters, prompt_token_ids=[0] * BLOCK_SIZE, _all_token_ids=[0] * BLOCK_SIZE,
            _output_token_ids=[], num_prompt_tokens=BLOCK_SIZE, num_computed_tokens=0, num_cached_tokens=0,
            num_external_computed_tokens=0, num_in_flight_tokens=0, num_stale_output_tokens=0, num_preemptions=0,
            last_sched_seq=0, max_tokens=1, trace_headers=None,
        )  # fmt: skip
        self.scheduler.requests[REQUEST] = request
        self.scheduler.waiting.append(request)
        if hasattr(self.connector, "on_new_request"):
            self.connector.on_new_request(request)

    def schedule(self) -> None:
        """A step is scheduled: what upstream's `schedule` does about the request, and the connector's metadata."""
        request = self.request
        if request is not None and request.status == self.status.WAITING:
            tokens, loads = self.connector.get_num_new_matched_tokens(request, 0)
            self.pool.allocate(request)
            self.connector.update_state_after_alloc(request, Blocks(), tokens)
            request.num_computed_tokens = tokens
            if loads:
                request.status = self.status.WAITING_FOR_REMOTE_KVS
            else:
                self.run(request)
        elif request is not None and request.status == self.status.WAITING_FOR_REMOTE_KVS and self.received:
            self.conclusions.append(self.received)
            self.scheduler._update_waiting_for_remote_kv(request)
            self.pool.allocate(request)  # anew, if what was loaded is of no use
            self.run(request)
        computes = request is not None and request.status == self.status.RUNNING and not self.computed
        if computes:
            self.computed = True
            request.num_computed_tokens = BLOCK_SIZE
        output = Nothing(num_scheduled_tokens={}, finished_req_ids=self.scheduler.finished_req_ids)
        vars(output)["kv_connector_metadata"] = self.connector.build_connector_meta(output)
        self.scheduler.finished_req_ids = set()
        self.steps.append(SimpleNamespace(output=output, computes=request if computes else None, brought=None))

    def run(self, request: Any) -> None:
        request.status = self.status.RUNNING
        self.scheduler.waiting.remove(request)
        self.scheduler.running.append(request)

    def work(self) -> None:
        """The worker carries out the oldest step that it has not."""
        step = next(step for step in self.steps if step.brought is None)
        heard = bool(self.network.completions())
        runner = self.upstream.runner
        runner.get_kv_transfer_group, runner.has_kv_transfer_group = lambda: self.worker, lambda: True
        with runner.KVConnectorModelRunnerMixin._get_kv_connector_output(step.output) as brought:
            step.brought = brought
        if REQUEST in (brought.finished_sending or ()):
            self.conclusions.append("Success" if heard else "Failed")

    def update(self) -> None:
        """The scheduler takes in what the oldest step has brought; a request that the step has computed is over."""
        step = self.steps.popleft()
        done, request = step.computes, self.request
        if done is not None and not done.is_finished():
            self.scheduler.running.remove(done)
            done.status = self.status.FINISHED_LENGTH_CAPPED
            freed = self.scheduler._free_request(done)
            self.answer = freed[0] if isinstance(freed, tuple) else freed
        brought = Nothing(kv_connector_output=step.brought, pooler_output=[], sampled_token_ids=[])
        self.scheduler.update_from_output(step.output, brought)
        if request is not None and request.status.name == "FINISHED_ERROR" and "Failed" not in self.conclusions:
            self.conclusions.append("Failed")

    def abort(self) -> None:
        """The client has gone."""
        self.aborted = True
        self.scheduler.finish_requests(REQUEST, self.status.FINISHED_ABORTED)

    # --- What can be seen -----------------------------------------------------------------------------

    @property
    def received(self) -> str | None:
        """What the scheduler believes of the load: Success, Failed, or None if it is not over."""
        finished, failed = (REQUEST in vars(self.scheduler)[name] for name in RECEIVED)
        return None if not finished else "Failed" if failed else "Success"

    def tracked(self) -> list[str]:
        """The collections in which the request's id stands, beside the scheduler's table of requests."""
        found = [f"scheduler.{name}" for name in RECEIVED if REQUEST in vars(self.scheduler)[name]]
        for half, part in ((self.build.scheduling, self.scheduling), (self.build.working, self.working)):
            found += [f"{half.name}.{name}" for name in half.collections if _mentions(vars(part)[name])]
        return found

    def observe(self) -> dict[str, Any]:
        """What an onlooker sees of the engine."""
        return {
            "generation": self.generation,
            "status": None if self.request is None else self.request.status.name,
            "holds": bool(self.pool.holds.get(self.generation)),
            "freed": self.pool.freed.get(self.generation, 0),
            "received": self.received,
            "conclusions": [*self.conclusions],
            "tracked": self.tracked(),
            "dead": self.dead,
        }

    def hidden(self) -> list[str]:
        """What decides what happens next beyond what an onlooker sees: what steps carry, and times."""
        now = self.upstream.clock.now
        lines = [f"{self.computed} {self.aborted} {bool(self.answer)}"]
        for step in self.steps:
            lines.append("worked" if step.brought else "scheduled")
            for part in (step.output.kv_connector_metadata, step.brought or Nothing()):
                lines += [name for name, value in vars(part).items() if _mentions(value)]
        for half, part in ((self.build.scheduling, self.scheduling), (self.build.working, self.working)):
            moments = {name: vars(part)[name] for name in half.moments}
            moments |= {n: vars(part)[n].get(REQUEST) for n in half.collections if isinstance(vars(part)[n], dict)}
            lines += [f"{name} {moment - now:+.0f}" for name, moment in moments.items() if isinstance(moment, float)]
        return lines


def _mentions(value: Any) -> bool:
    if isinstance(value, queue.Queue):
        value = [item[0] if isinstance(item, tuple) else item for item in value.queue]
    return isinstance(value, (dict, set, list)) and REQUEST in value


class World:
    """A prefill engine, a decode engine, the network between them, and the time."""

    def __init__(self, upstream: Upstream, builds: dict[str, Build]) -> None:
        self.clock = upstream.clock
        self.clock.now = 2 * LEASE  # upstream takes it for long ago that a heartbeat was sent at 0
        self.network = Network()
        self.engines = {role: Engine(upstream, builds[role], self.network) for role in ROLES}

    def perform(self, who: str, op: str) -> None:
        """One op of an engine, of the network or of the time. Raises Fault if it is not possible."""
        if not self.allows(who, op):
            raise Fault(f"{who} {op} is not possible there")
        match who, op:
            case "time", "expire":
                self.clock.now += LEASE
            case "time", "settle":
                self.settle()
            case "network", _:
                {"read_ends": self.network.end, "read_breaks": self.network.fail,
                 "lose_notice": self.network.lose, "repeat_notice": self.network.repeat}[op]()  # fmt: skip
            case _, "step":
                for part in ("schedule", "work", "update"):
                    self.act(self.engines[who], part)
            case _:
                self.act(self.engines[who], op)

    def allows(self, who: str, op: str) -> bool:
        """The op is possible now."""
        if who == "time":
            return True
        if who == "network":
            return bool(self.network.flying() if op.startswith("read") else self.network.completions())
        engine = self.engines[who]
        waiting = [step.brought is None for step in engine.steps]
        possible = {
            "arrive": self.may_arrive(engine),
            "step": not waiting,
            "work": any(waiting),
            "update": bool(waiting) and not waiting[0],
            "abort": engine.request is not None,
        }
        return engine.dead is None and possible.get(op, True)

    def may_arrive(self, engine: Engine) -> bool:
        """A request reaches decode when prefill has answered it, and another one prefill when the first is over."""
        prefill, decode = (self.engines[role] for role in ROLES)
        if engine is prefill:
            return prefill.request is None and decode.request is None
        return decode.request is None and prefill.generation > decode.generation and bool(prefill.answer)

    def route(self, engine: Engine) -> None:
        """A request reaches the engine from the router: prefill's first, decode's with prefill's answer."""
        prefill = self.engines["prefill"]
        if engine is prefill:
            prefill.arrive(prefill.generation + 1, {"do_remote_decode": True, "do_remote_prefill": False})
        else:
            engine.arrive(prefill.generation, copy.deepcopy(prefill.answer or {}))

    def act(self, engine: Engine, op: str) -> None:
        """One op of an engine that is alive. What upstream's code raises ends the engine's process."""
        if engine.dead is not None:
            return
        try:
            if op == "arrive":
                self.route(engine)
            else:
                getattr(engine, op)()
        except (AttributeError, TypeError, NameError, ImportError) as error:  # what stands in for something lacks it
            raise Fault(f"{engine.role} {op}: {type(error).__name__}: {error}") from error
        except Exception as error:  # noqa: BLE001 - whatever it is
            engine.dead = f"{type(error).__name__}: {error}".removesuffix(": ")

    def settle(self) -> None:
        """Both engines step until nothing changes, every lease runs out, and they step again."""
        self.rest()
        self.clock.now += LEASE
        self.rest()

    def rest(self) -> None:
        for _ in range(REST):
            before = self.key()
            for engine in self.engines.values():
                while engine.steps and engine.dead is None:
                    self.act(engine, "work" if engine.steps[0].brought is None else "update")
                for part in ("schedule", "work", "update"):
                    self.act(engine, part)
            if self.key() == before:
                return
        raise Fault(f"the engines do not come to rest in {REST} steps")

    def observe(self) -> dict[str, Any]:
        """What an onlooker sees: both engines, and the reads, as the generation that each is for and how it stands."""
        return {
            **{role: engine.observe() for role, engine in self.engines.items()},
            "reads": [[read.generation, read.state] for read in self.network.reads],
        }

    def key(self) -> str:
        """Everything on which the future depends, as far as it is known here."""
        hidden = [engine.hidden() for engine in self.engines.values()]
        inbox = [[notice.decode() for notice in notices] for notices in self.network.inbox.values()]
        return repr((self.observe(), hidden, inbox))
