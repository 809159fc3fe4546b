"""One storm on one build: baseline, storm, drain, and what they leave behind.

*Baseline*: the gauge of an idle system, and a few polite requests that have to be answered. *Storm*: many clients, most
of whom hang up. *Drain*: nobody asks any more, and the gauge has to come back to what it was before the storm, within a
deadline of several times the longest request that completed; what is left then is stuck, and not on its way.
"""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Literal, Protocol

import attrs
import httpx
from prometheus_client.parser import text_string_to_metric_families

from kvlatch.reference.live.clients import Clients
from kvlatch.reference.live.left import Left
from kvlatch.reference.live.load import POLITE, ROUNDS, Ask, Load, prompt, rounds
from kvlatch.reference.live.records import Build, Metric, Phase, PhaseName, PinnedRoom, Request, Role, Run
from kvlatch.reference.live.settings import SCHEDULER, EngineRole, Rules, Settings
from kvlatch.reference.live.system import Part, Subject, System
from kvlatch.reference.logs.check import check

GAUGE: Final = "sglang:num_prefill_inflight_queue_reqs"
_SAMPLE: Final = 0.1
"""Seconds between two samples of the gauge."""
_PATIENCE: Final = 3.0
"""The drain may take this many times as long as the longest request that completed."""
_LEAST_DRAIN: Final = 2.5
_CALM: Final = 3
"""Samples in a row that show the queue as it was before the storm."""
_FAULT_AT: Final = 0.4
"""A part is killed after this share of the storm's time."""
_NO_ANSWER: Final = "no answer"
"""The fingerprint of an engine that does not say any more what it is."""

Fault = Literal["kill-prefill", "kill-decode", "kill-router"]
_KILLED: Final[dict[Fault, Part]] = {"kill-prefill": "prefill", "kill-decode": "decode", "kill-router": "router"}


class NotAnswering(Exception):
    """The deployment does not do what a storm needs; the message says what."""


class Unfit(NotAnswering):
    """The code asks for a part of an engine that is not here: what it did then is not its own doing."""


class Target(Protocol):
    """What is stormed."""

    build: Build
    settings: Settings | None

    @property
    def url(self) -> str:
        """Where requests go."""

    @property
    def log(self) -> Path | None:
        """The event log of its prefill engine."""

    async def fingerprint(self) -> str:
        """Which build runs now."""

    async def gauge(self) -> float:
        """Requests in the prefill inflight queue, as the metrics say."""

    async def ledger(self) -> dict[str, Any] | None:
        """What the prefill engine knows of itself; None where it keeps no ledger, or is dead."""

    async def decode_ledger(self) -> dict[str, Any] | None:
        """What the decode engine knows of itself."""

    async def second_ledgers(self) -> tuple[tuple[EngineRole, dict[str, Any]], ...]:
        """What the second ranks know of themselves, each with its engine."""

    @property
    def logs(self) -> tuple[Path, ...]:
        """The event logs of prefill's ranks."""

    def kill(self, part: Part) -> None:
        """End a part."""

    def dead(self) -> bool:
        """The prefill engine is known to have ended: it has no queue that could drain."""


@attrs.define(eq=False)
class Embedded:
    """A system that was started here."""

    system: System
    build: Build
    settings: Settings | None
    http: httpx.AsyncClient

    @classmethod
    def of(cls, system: System, subject: Subject, settings: Settings, http: httpx.AsyncClient) -> Embedded:
        """What is known before it is asked."""
        if isinstance(subject, Rules):
            build = Build(subject.name, subject.design.name, subject.level, "")
        else:
            build = Build(subject.name, None, None, "", published=True)
        return cls(system, build, settings, http)

    @property
    def url(self) -> str:
        """The router's address."""
        return self.system.url("router")

    @property
    def log(self) -> Path | None:
        """Prefill's event log."""
        return self.system.log

    @property
    def logs(self) -> tuple[Path, ...]:
        """Those of all its ranks."""
        return self.system.logs

    async def fingerprint(self) -> str:
        """What prefill says of itself; of a dead one, what it said before."""
        if self.dead():
            return self.build.fingerprint
        return str((await self.http.get(f"{self.system.url('prefill')}/server_info")).json()["fingerprint"])

    async def gauge(self) -> float:
        """The gauge on prefill's page."""
        return await gauge_of(self.http, [f"{self.system.url('prefill')}/metrics"])

    async def ledger(self) -> dict[str, Any] | None:
        """Prefill's ledger."""
        return await self._state("prefill")

    async def decode_ledger(self) -> dict[str, Any] | None:
        """Decode's ledger."""
        return await self._state("decode")

    async def second_ledgers(self) -> tuple[tuple[EngineRole, dict[str, Any]], ...]:
        """Those of the second ranks."""
        found = [(part, await self._state(part)) for part in self.system.others]
        return tuple(("prefill" if part.startswith("prefill") else "decode", one) for part, one in found if one)

    async def _state(self, part: Part) -> dict[str, Any] | None:
        with contextlib.suppress(httpx.HTTPError):
            reply: dict[str, Any] = (await self.http.get(f"{self.system.url(part)}/kvlatch")).json()
            return reply
        return None

    def kill(self, part: Part) -> None:
        """End a part."""
        self.system.kill(part)

    def dead(self) -> bool:
        """Prefill's process has ended."""
        return not self.system.alive("prefill")


async def gauge_of(http: httpx.AsyncClient, pages: Iterable[str]) -> float:
    """The gauge, summed over all engines; NotAnswering if no page has it."""
    values: list[float] = []
    for page in pages:
        text = (await http.get(page)).raise_for_status().text
        for family in text_string_to_metric_families(text):
            values += [sample.value for sample in family.samples if sample.name == GAUGE]
    if not values:
        raise NotAnswering(f"no {GAUGE} on {', '.join(pages)}: is this the metrics page of a prefill engine?")
    return sum(values)


@attrs.define(eq=False)
class _Watch:
    """Polls the gauge, and holds it against the ledger where there is one."""

    target: Target
    start: float
    gauge: list[tuple[float, float]] = attrs.field(factory=list)
    compared: int = 0
    differed: int = 0

    async def sample(self) -> float | None:
        """One sample; None while the engine does not answer."""
        try:
            before = await self.target.ledger()
            value = await self.target.gauge()
            after = await self.target.ledger()
        except httpx.HTTPError:
            return None
        except NotAnswering:
            if not self.gauge:  # it never was the page of a prefill engine
                raise
            return None
        self.gauge.append((time.monotonic() - self.start, value))
        if before and after and before["changes"] == after["changes"]:
            self.compared += 1
            self.differed += value != len(after["inflight"])
        return value

    @contextlib.asynccontextmanager
    async def going(self) -> AsyncIterator[None]:
        """Sample meanwhile."""
        task = asyncio.create_task(self._go())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _go(self) -> None:
        while True:
            await self.sample()
            await asyncio.sleep(_SAMPLE)


@attrs.define(eq=False)
class Storm:
    """A run in the making. ``stop`` ends it early; what has been recorded until then is kept.

    ``hidden`` is as in :class:`Clients`.
    """

    target: Target
    load: Load
    seed: int
    http: httpx.AsyncClient
    role: Role = "alone"
    repetition: int = 1
    faults: Sequence[Fault] = ()
    stop: asyncio.Event = attrs.field(factory=asyncio.Event)
    hidden: tuple[str, ...] = attrs.field(default=(), repr=False)

    async def run(self) -> Run:
        """All three phases; NotAnswering if the baseline is not that of a working system."""
        start = time.monotonic()
        watch = _Watch(self.target, start)
        clients = Clients(self.target.url, self.load, self.target.settings, start, self.http, self.hidden)
        chunk_tokens = (self.target.settings or Settings()).chunk_tokens
        phases: list[Phase] = []
        async with self._phase("baseline", phases, start):
            idle = await self._baseline(watch, clients, chunk_tokens)
        async with watch.going():
            async with self._phase("storm", phases, start):
                await self._until_stop(self._storm(clients, rounds(self.load, self.seed, chunk_tokens)))
            longest = _longest(clients.done)
            deadline = max(_LEAST_DRAIN, _PATIENCE * longest, self._own_deadline)
            async with self._phase("drain", phases, start):
                drained = await self._drain(watch, idle, deadline)
        left = await self._look(watch)
        await self._fit(*(ledger for _, _, ledger in left.engines))
        return Run(
            role=self.role, repetition=self.repetition, build=self.target.build, phases=tuple(phases),
            gauge=tuple(watch.gauge), requests=tuple(clients.done), counts=left.counts(clients.done, idle),
            metric=None if left.ledger is None else Metric(len(watch.gauge), watch.compared, watch.differed),
            idle=idle, longest=longest, deadline=deadline, drained=drained, pinned=tuple(self._pinned(left)),
            log=self.target.log, faults=tuple(self.faults), interrupted=self.stop.is_set(), deaths=tuple(left.deaths),
            ranks=tuple(left.ranks),
        )  # fmt: skip

    @contextlib.asynccontextmanager
    async def _phase(self, name: PhaseName, phases: list[Phase], start: float) -> AsyncIterator[None]:
        begun = time.monotonic() - start
        yield
        try:
            mark = await self.target.fingerprint()
        except (httpx.HTTPError, NotAnswering):
            if not phases:
                raise
            mark = _NO_ANSWER
        if not phases:
            self.target.build = attrs.evolve(self.target.build, fingerprint=mark)
        phases.append(Phase(name, begun, time.monotonic() - start, mark))

    async def _baseline(self, watch: _Watch, clients: Clients, chunk_tokens: int) -> float:
        """What the gauge shows before anything is asked; and the system answers a polite request.

        One at least: a broken build may lose some of them.
        """
        idle = await watch.sample()
        if idle is None:
            raise NotAnswering("the metrics page does not answer")
        chunks = self.load.chunks[1]
        polite = [
            Ask(number, prompt(self.seed, number, chunks * chunk_tokens), chunks, None, stream=number % 2 == 0)
            for number in range(-POLITE, 0)
        ]
        await asyncio.gather(*(clients.ask(ask) for ask in polite))
        await watch.sample()
        if all(request.outcome != "completed" for request in clients.done):
            await self._fit(await self.target.ledger(), await self.target.decode_ledger())
            why = clients.done[0].detail
            raise NotAnswering(f"{self.target.build.name} does not answer a polite request: {why}")
        return idle

    async def _fit(self, *ledgers: dict[str, Any] | None) -> None:
        """Raise Unfit if an engine has asked for what it has not got."""
        for ledger in ledgers:
            if ledger is not None and ledger.get("unfit"):
                raise Unfit(f"{self.target.build.name} cannot be run here: {ledger['unfit']}")

    async def _storm(self, clients: Clients, drawn: Iterator[list[Ask]]) -> None:
        """Round after round, until the race has fired often enough; a storm that kills something has one round."""
        fault = asyncio.create_task(self._faults())
        try:
            for number in range(1, ROUNDS + 1):
                await clients.storm(next(drawn))
                if number == ROUNDS or self.faults or not await self._hit_too_rarely():
                    break
        finally:
            fault.cancel()
            await asyncio.gather(fault, return_exceptions=True)

    async def _hit_too_rarely(self) -> bool:
        """... and could still be: not after the death of a scheduler."""
        ledgers = await self.target.ledger(), await self.target.decode_ledger()
        if any(death["thread"] == SCHEDULER for one in ledgers for death in (one or {}).get("deaths", ())):
            return False
        return ledgers[0] is not None and ledgers[0]["hits"] < self.load.hits

    async def _faults(self) -> None:
        await asyncio.sleep(_FAULT_AT * self.load.seconds)
        for fault in self.faults:
            self.target.kill(_KILLED[fault])

    async def _until_stop(self, work: Any) -> None:
        """Do something, but no longer than until the storm is stopped."""
        doing, stopped = asyncio.create_task(work), asyncio.create_task(self.stop.wait())
        try:
            await asyncio.wait({doing, stopped}, return_when="FIRST_COMPLETED")
        finally:
            stopped.cancel()
            doing.cancel()
            result = (await asyncio.gather(doing, stopped, return_exceptions=True))[0]
        if isinstance(result, Exception):
            raise result

    async def _drain(self, watch: _Watch, idle: float, deadline: float) -> float | None:
        """Wait until the queue is as it was, or the deadline is over; when it was, in seconds of the run.

        It has to be so in several samples: a request may still be on its way into the queue.
        """
        end, calm = time.monotonic() + deadline, 0
        while time.monotonic() < end and not self.stop.is_set() and not self.target.dead():
            value = await watch.sample()
            calm = calm + 1 if value is not None and value <= idle and await self._through() else 0
            if calm == _CALM:
                return time.monotonic() - watch.start
            await asyncio.sleep(_SAMPLE)
        return None

    @property
    def _own_deadline(self) -> float:
        """Published code gives up by itself what decode never asks for: till then it is not stuck."""
        settings = self.target.settings
        return _PATIENCE / 2 * settings.bootstrap_timeout if settings and self.target.build.published else 0.0

    async def _through(self) -> bool:
        """Whether published code has answered every request; of other builds, the queue says enough."""
        ledgers = await self.target.ledger(), await self.target.decode_ledger()
        return not self.target.build.published or not any(ledger and ledger["waiting"] for ledger in ledgers)

    async def _look(self, watch: _Watch) -> Left:
        """What is there after the drain: both ledgers, and what the event log shows."""
        ledgers = await self.target.ledger(), await self.target.decode_ledger()
        left = Left(await watch.sample(), *ledgers, await self.target.second_ledgers())
        checked = [await asyncio.to_thread(check, log) for log in self.target.logs]
        return attrs.evolve(left, logs=tuple(checked))

    def _pinned(self, left: Left) -> Iterator[PinnedRoom]:
        """The rooms that are still in the inflight queue, and what the event log says of them."""
        if left.ledger is None or not left.logs:
            return
        found = {violation.room: violation for violation in left.logs[0].violations}
        for text, status in left.ledger["inflight"].items():
            room = int(text)
            show = shlex.join(["kvlatch", "show", str(self.target.log), "--room", text])
            if (violation := found.get(room)) is not None:
                yield PinnedRoom(room, status, violation.law, violation.line, violation.sentence, show)
            else:
                says = f"it is {status}, nobody works on it, and the inflight queue has no deadline"
                yield PinnedRoom(room, status, None, None, says, show)


def _longest(done: Iterable[Request]) -> float:
    """How long the longest request took that completed, in seconds."""
    return max((request.end - request.start for request in done if request.outcome == "completed"), default=0.0)
