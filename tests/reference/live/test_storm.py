"""A run of a storm, phase by phase, on a system made up for the test."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

httpx = pytest.importorskip("httpx", reason="needs the extra live")
pytest.importorskip("prometheus_client", reason="needs the extra live")

from kvlatch.reference.live import storm as storms  # noqa: E402
from kvlatch.reference.live.foreign import Foreign  # noqa: E402
from kvlatch.reference.live.load import POLITE, Load  # noqa: E402
from kvlatch.reference.live.pages import digest_of  # noqa: E402
from kvlatch.reference.live.records import Build, Run  # noqa: E402
from kvlatch.reference.live.settings import EngineRole, Settings  # noqa: E402
from kvlatch.reference.live.storm import GAUGE, NotAnswering, Storm, gauge_of  # noqa: E402

SMALL = Settings(chunk_tokens=4, chunk_pages=1, page_bytes=16)
LOAD = Load(requests=12, clients=3, seconds=30.0, patience=(20.0, 30.0), limit=20.0, chunks=(1, 1))
LOG = Path(__file__).parents[2] / "logs" / "seed.ndjson"
LEDGER = {
    "changes": 1, "inflight": {"771203388710254007": "Transferring"}, "hits": 3, "ghosts": ["5"], "released_early": 2,
}  # fmt: skip


@attrs.define(eq=False)
class Made:
    """A target whose every answer is given; ``left`` requests stay in its queue."""

    left: int = 1
    before: int = 0
    asked: int = 0
    marks: list[str] = attrs.field(factory=lambda: ["x"])
    metric: Callable[[int], int] = lambda n: n
    build: Build = attrs.field(factory=lambda: Build("made", "latch", "locked", ""))
    settings: Settings | None = SMALL
    url: str = "http://router"
    log: Path | None = LOG
    killed: list[str] = attrs.field(factory=list)
    fault: asyncio.Event = attrs.field(factory=asyncio.Event)

    async def fingerprint(self) -> str:
        return self.marks.pop(0) if len(self.marks) > 1 else self.marks[0]

    async def gauge(self) -> float:
        self.asked += 1
        return self.metric(self.before if self.asked == 1 else self.left)

    async def ledger(self) -> dict[str, Any] | None:
        inflight = LEDGER["inflight"] if self.left else {}
        return {**LEDGER, "inflight": inflight, "changes": 1 if self.asked else 0}

    async def decode_ledger(self) -> dict[str, Any] | None:
        return {"ended": {"wrong digest": 4}}

    async def second_ledgers(self) -> tuple[tuple[EngineRole, dict[str, Any]], ...]:
        return ()

    @property
    def logs(self) -> tuple[Path, ...]:
        return () if self.log is None else (self.log,)

    def kill(self, part: str) -> None:
        self.killed.append(part)
        self.fault.set()

    def dead(self) -> bool:
        return "prefill" in self.killed


async def right(request: Any) -> Any:
    """Answer with the right digest."""
    body = json.loads(request.content)
    said = {"text": digest_of(body["text"], len(body["text"].split()) // 4, 16)}
    return httpx.Response(200, json=said) if not body["stream"] else httpx.Response(
        200, text=f"data: {json.dumps(said)}\n\ndata: [DONE]\n\n"
    )  # fmt: skip


def run(target: Made, answer: Any = right, load: Load = LOAD, **more: Any) -> Run:
    """A whole run on a target."""

    async def go() -> Run:
        async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as http:
            return await Storm(target, load, 1, http, **more).run()

    return asyncio.run(go())


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storms, "_LEAST_DRAIN", 0.2)
    monkeypatch.setattr(storms, "_SAMPLE", 0.01)


def test_a_run_has_three_phases_and_all_figures() -> None:
    """What the ledgers and the log say is in the counts; the pinned room comes with its law and its command."""
    done = run(Made(left=1))
    assert [phase.name for phase in done.phases] == ["baseline", "storm", "drain"]
    assert all(before.end <= after.start for before, after in itertools.pairwise(done.phases))
    counts = done.counts
    assert (counts.sent, counts.completed, counts.aborted, counts.unaccounted) == (15, 15, 0, 0)
    assert sorted(request.number for request in done.requests) == list(range(-3, 12))
    assert (counts.pinned, counts.hits, counts.ghosts, counts.released_early, counts.wrong_digests) == (1, 3, 1, 2, 4)
    assert counts.lost_failures == 1
    (pinned,) = done.pinned
    assert (pinned.law, pinned.line, pinned.status) == ("terminal-sticky", 15, "Transferring")
    assert pinned.show == f"kvlatch show {LOG} --room 771203388710254007"
    assert done.build.fingerprint == "x"
    assert done.metric is not None
    assert done.metric.compared > 0
    assert done.metric.differed == 0


def test_a_queue_that_does_not_empty_is_watched_until_the_deadline() -> None:
    """The deadline is derived from the longest request; then what is left is stuck."""
    stuck, free = run(Made(left=1)), run(Made(left=0))
    assert stuck.drained is None
    assert stuck.phases[2].end - stuck.phases[2].start >= stuck.deadline
    assert stuck.deadline == max(0.2, 3 * stuck.longest)
    assert free.drained is not None
    assert free.counts.pinned == 0
    assert free.pinned == ()


def test_what_was_in_the_queue_before_is_none_of_the_storms_doing() -> None:
    """A deployment may have requests of others in it, or pinned ones from before: only what is beyond them counts."""
    busy = run(Made(before=5, left=5))
    assert (busy.idle, busy.counts.pinned) == (5, 0)
    assert busy.drained is not None
    worse = run(Made(before=5, left=7))
    assert (worse.idle, worse.counts.pinned, worse.drained) == (5, 2, None)


def test_an_engine_that_is_gone_says_so_in_its_fingerprint() -> None:
    """The run is recorded, and can be compared with nothing."""

    class Gone(Made):
        async def fingerprint(self) -> str:
            if len(self.marks) > 1:
                return self.marks.pop(0)
            raise httpx.ConnectError("refused")

    done = run(Gone(marks=["x", "x", "never said"]))
    assert [phase.fingerprint for phase in done.phases] == ["x", "x", "no answer"]


def test_a_page_that_loses_its_gauge_in_the_middle_loses_no_run() -> None:
    """An engine that was started again shows no gauge at first; that is a sample less, not the end of the storm."""

    class Restarted(Made):
        async def gauge(self) -> float:
            if self.asked == 1:
                self.asked += 1
                raise NotAnswering("no gauge")
            return await super().gauge()

    done = run(Restarted(left=0))
    assert done.drained is not None
    assert len(done.gauge) >= 3


def test_a_gauge_that_is_not_exact_is_found_out() -> None:
    """It is held against the ledger whenever that has stood still."""
    off = run(Made(left=1, metric=lambda n: n + 1))
    assert off.metric is not None
    assert off.metric.differed == off.metric.compared > 0


def test_the_fingerprint_is_asked_for_in_every_phase() -> None:
    """A build that is exchanged in the middle shows."""
    done = run(Made(marks=["x", "y", "z"]))
    assert [phase.fingerprint for phase in done.phases] == ["x", "y", "z"]


def test_a_system_that_does_not_answer_is_not_stormed() -> None:
    """The baseline says so before anything is concluded."""

    async def refuse(_: Any) -> Any:
        return httpx.Response(503, text="no worker")

    with pytest.raises(NotAnswering, match="made does not answer a polite request: no worker"):
        run(Made(), refuse)


def test_a_storm_that_is_stopped_is_recorded() -> None:
    """Its clients have hung up, the drain is not waited for, and the run says that it was interrupted."""

    async def go() -> Run:
        stop, asked = asyncio.Event(), 0

        async def answer(request: Any) -> Any:
            nonlocal asked
            asked += 1
            if asked > POLITE:  # the baseline is over
                stop.set()
                await asyncio.Event().wait()
            return await right(request)

        async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as http:
            return await Storm(Made(left=1), LOAD, 1, http, stop=stop).run()

    done = asyncio.run(go())
    assert done.interrupted
    assert {request.outcome for request in done.requests if request.number >= 0} == {"aborted"}
    assert done.counts.pinned == 1
    assert done.phases[2].end - done.phases[2].start < done.deadline


def test_a_part_is_killed_in_the_middle_and_a_dead_queue_is_not_waited_for() -> None:
    """The fault comes at its share of the storm's time; after kill-prefill nothing can drain."""
    target = Made(left=1)
    load = attrs.evolve(LOAD, seconds=0.2)

    async def once_killed(request: Any) -> Any:
        """Hold what is stormed until the fault has come."""
        if "request -" not in json.loads(request.content)["text"]:
            await target.fault.wait()
        return await right(request)

    done = run(target, once_killed, load, faults=("kill-prefill",))
    assert target.killed == ["prefill"]
    assert done.faults == ("kill-prefill",)
    assert done.drained is None
    assert done.phases[2].end - done.phases[2].start < done.deadline


# --- Deployments that are not ours --------------------------------------------------------------------------------

PAGE = f'# TYPE {GAUGE} gauge\n{GAUGE}{{tp_rank="0"}} 2.0\n{GAUGE}{{tp_rank="1"}} 3.0\nother 7.0\n'


def asked(answer: Callable[[Any], Any], *calls: str, pages: tuple[str, ...] = ("http://p/metrics",)) -> list[Any]:
    """What a deployment that answers so is found to say."""

    async def go() -> list[Any]:
        async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as http:
            target = Foreign("http://router", pages, "mine", http)
            return [await getattr(target, call)() for call in calls]

    return asyncio.run(go())


def test_the_gauge_is_summed_over_ranks_and_engines() -> None:
    """Every sample of the gauge on every page counts, and nothing else does."""
    assert asked(lambda _: httpx.Response(200, text=PAGE), "gauge") == [5.0]
    assert asked(lambda _: httpx.Response(200, text=PAGE), "gauge", pages=("http://p/m", "http://q/m")) == [10.0]


def test_a_page_without_the_gauge_is_no_metrics_page_of_a_prefill_engine() -> None:
    """Silence is not taken for 0."""
    with pytest.raises(NotAnswering, match=r"no sglang:num_prefill_inflight_queue_reqs on http://p/metrics"):
        asked(lambda _: httpx.Response(200, text="other 7.0\n"), "gauge")


def test_the_fingerprint_of_a_foreign_build_is_what_stays_while_it_runs() -> None:
    """Version and model make it, a counter does not; the older path is tried as well."""

    def says(path: str, **information: Any) -> Callable[[Any], Any]:
        return lambda request: (
            httpx.Response(200, json=information) if request.url.path == path else httpx.Response(404)
        )

    old = asked(says("/get_server_info", version="0.5.9", requests=1), "fingerprint")
    assert old == asked(says("/server_info", version="0.5.9", requests=2), "fingerprint")
    assert old != asked(says("/server_info", version="0.5.23", requests=1), "fingerprint")
    with pytest.raises(NotAnswering, match="nobody knows which build runs"):
        asked(says("/elsewhere"), "fingerprint")


def test_nothing_else_is_known_of_a_foreign_build() -> None:
    """No ledger and no log: the counts that need them are unknown, not 0."""
    answers = {"/metrics": httpx.Response(200, text=f"# TYPE {GAUGE} gauge\n{GAUGE} 0.0\n")}

    async def answer(request: Any) -> Any:
        if request.url.path == "/generate":
            return await right(request)
        return answers.get(request.url.path, httpx.Response(200, json={"version": "0.5.23"}))

    async def go() -> Run:
        async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as http:
            return await Storm(Foreign("http://router", ("http://p/metrics",), "", http), LOAD, 1, http).run()

    done = asyncio.run(go())
    unknown = attrs.asdict(done.counts)
    assert [name for name, count in unknown.items() if count is None] == [
        "hits", "lost_failures", "ghosts", "released_early", "wrong_digests", "leaks", "unsettled",
        "starved", "pages_left", "reused", "old_chunks",
    ]  # fmt: skip
    assert done.metric is None
    assert done.log is None
    assert done.build.name == "http://router"
    assert asyncio.run(gauge_of_once(answer)) == 0.0


async def gauge_of_once(answer: Any) -> float:
    """One look at the page."""
    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as http:
        return await gauge_of(http, ["http://p/metrics"])


@attrs.define(eq=False)
class Upstream(Made):
    """Published code with an empty queue, whose prefill answers its last request at the ``answers``-th look."""

    answers: int | None = None
    looks: int = 0

    async def ledger(self) -> dict[str, Any] | None:
        self.looks += 1
        waiting = int(self.answers is None or self.looks < self.answers)
        return {**LEDGER, "inflight": {}, "waiting": waiting}

    async def decode_ledger(self) -> dict[str, Any] | None:
        return {"ended": {"wrong digest": 0}, "waiting": 0}


@pytest.mark.parametrize(("answers", "drains"), [(60, True), (None, False)])
def test_published_code_drains_when_it_has_answered_everybody(answers: int | None, drains: bool) -> None:
    """An empty inflight queue is not enough: prefill gives up what decode never asks for at its own deadline."""
    build = Build("made", None, None, "", published=True)
    settings = attrs.evolve(SMALL, bootstrap_timeout=60.0 if drains else 0.2)
    target = Upstream(left=0, answers=answers, build=build, settings=settings)
    done = run(target)
    assert (done.drained is not None) == drains
    assert target.looks >= (answers or 0)
